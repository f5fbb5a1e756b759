"""The part of a model's config that describes its language model.

Multimodal models keep that below another key, and configs may leave out what is the default of
their class. `_text_config.csv` has those defaults as they are in transformers, for each type of
model; `scripts/every_model.py` writes it.
"""

import csv
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any, Final, NamedTuple

from coordinate_eval.errors import UserError

_NESTED = (
    "thinker_config",  # Qwen-Omni: a text_config lies in it
    "text_config",
    "llm_config",
    "language_config",
    "language_model_config",
    "text_model_config",
    "lm_config",
    "vlm_config",
    "llm_cfg",
    "llm",
    "decoder_config",
    "decoder",
    "generator",
    "text",
    "language_model",
)
_DEEPEST = 3

HEADS: Final = ("num_attention_heads", "n_head", "n_heads", "num_heads")
"""Names of the number of heads of queries."""

KV_HEADS: Final = (
    "num_key_value_heads", "n_head_kv", "num_kv_heads", "multi_query_group_num",
    "num_attention_groups",
)  # fmt: skip
"""Names of the number of heads of keys and values."""

WIDTHS: Final = ("n_embed", "hidden_size", "n_embd", "d_model", "dim")
"""Names of the width. Where BLOOM's configs have the first, it counts before the second."""

MOST_WIDTH: Final = 10**7
"""Above any model's, and small enough that no product of a few of them overflows."""


class _Row(NamedTuple):
    """The facts known of a type of model."""

    text: str
    """The type of its language model, which may be the same."""
    checks: str
    """The checks that hold for its checkpoints: letters, see `inputs/checkpoints/model/fit.py`."""
    numbers: Mapping[str, int]


class TextConfig(NamedTuple):
    """The config of a language model, with the defaults of its class."""

    given: Mapping[str, Any]
    defaults: Mapping[str, int]
    kind: str
    """Its type, such as `llama`; empty if it is not told."""
    checks: str
    file: Path
    """It is from this file, which messages name."""
    known: bool
    """Transformers has a class for its type."""

    def number(self, *names: str, most: int = MOST_WIDTH) -> int | None:
        """Return the first of these that is a positive number, else their default.

        Raises:
            UserError: The number is more than `most`.
        """
        return self.told(*names, most=most) or self.default(names)

    def told(self, *names: str, most: int = MOST_WIDTH) -> int | None:
        """Return the first of these that is a positive number; the largest if layers differ.

        Raises:
            UserError: The number is more than `most`.
        """
        for name in names:
            value = self.given.get(name)
            values = value if isinstance(value, list) else [value]
            numbers = [each for each in values if type(each) is int and each > 0]
            if numbers:
                if max(numbers) > most:
                    raise UserError(
                        f"{self.file}: {name} is larger than {most:,}, which no model has"
                    )
                return max(numbers)
        return None

    def default(self, names: Sequence[str]) -> int | None:
        """Return the default of one of these names, if the config gives none of them."""
        if any(name in self.given for name in names):
            return None
        return next((self.defaults[name] for name in names if name in self.defaults), None)


def text_config(config: Mapping[str, Any], file: Path) -> TextConfig:
    """Return the config of the language model in a config, as engines take it.

    Where the class is not known here, what the nested config does not say is taken from above it.
    """
    given, kind = config, _type(config)
    for _ in range(_DEEPEST):
        key = next((key for key in _NESTED if _is_config(given.get(key))), None)
        if key is None:
            break
        found = given[key]
        # A class of its own has its own defaults, whatever stands above.
        own = _type(found) in _table() or _text_type(kind) != kind
        kind = _type(found) or _text_type(kind)
        above = {} if own else {k: v for k, v in given.items() if k != key}
        given = {**above, **found}
    kind = _text_type(kind)
    row = _table().get(kind)
    numbers, checks = (row.numbers, row.checks) if row else ({}, "")
    return TextConfig(given, numbers, kind, checks, file, known=row is not None)


def _is_config(value: object) -> bool:
    return isinstance(value, dict) and bool(value)


def _type(config: Mapping[str, Any]) -> str:
    kind = config.get("model_type")
    return kind if isinstance(kind, str) else ""


def _text_type(kind: str) -> str:
    row = _table().get(kind)
    return row.text if row else kind


@cache
def _table() -> Mapping[str, _Row]:
    text = resources.files(__package__).joinpath("_text_config.csv").read_text(encoding="utf-8")
    return {
        row.pop("type"): _Row(
            row.pop("text"),
            row.pop("checks"),
            {name: int(value) for name, value in row.items() if value},
        )
        for row in csv.DictReader(text.splitlines())
    }
