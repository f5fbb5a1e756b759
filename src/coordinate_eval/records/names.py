"""Rules by which the tensors of a trainer become those of a Hugging Face model."""

from typing import Final

from pydantic import Field

from coordinate_eval.records.base import Record

KEPT: Final = "*"
"""Stands for the name that a tensor has."""


class Rule(Record):
    """The tensors of one kind, and what becomes of them. docs/checkpoints.md has the language."""

    source: list[str] = Field(description="patterns of names; several are parts of one tensor")
    to: list[str] = Field(description="names that they get; none leaves them out")
    unflatten: str = Field(default="", description="parts of equal size in the first dimension")
    groups: str = Field(default="1", description="of rows, each with a piece of every part")
    parts: list[str] = Field(default=[], description="of each group, in proportion")
    into: str = Field(default="1", description="groups in which parts are put together")
    transpose: bool = Field(default=False, description="the last two dimensions are exchanged")
    rotary: list[str] = Field(
        default=[], description="heads whose rows are pairs, and become halves; 0: none"
    )
    rows: str = Field(default="", description="that are kept, of a padded vocabulary")
    zero: bool = Field(default=False, description="it is left out, since all its numbers are 0")

    @property
    def kept(self) -> bool:
        """Return whether tensors stay as they are."""
        return self.to == [KEPT]


class TensorMapping(Record):
    """The rules that hold for a checkpoint. The first that matches a name counts."""

    trainer: str
    rules: list[Rule]
