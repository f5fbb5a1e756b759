"""Files of `torch.save` that ranks of training write: tensors among values of any class.

States of optimizers name classes of the trainer. They are followed as if each were unknown: nothing
is made of them, and nothing is called.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from coordinate_eval._format import brief
from coordinate_eval.coordinator.inputs.checkpoints.formats import torch_file
from coordinate_eval.coordinator.inputs.checkpoints.formats.layouts import Layout
from coordinate_eval.coordinator.inputs.checkpoints.formats.named_classes import ANY_CLASS
from coordinate_eval.coordinator.inputs.checkpoints.formats.torch_pickle import StoredTensor
from coordinate_eval.errors import UserError


class RankFile(NamedTuple):
    """The contents of a rank's file."""

    path: Path
    content: Mapping[Any, Any]
    storages: Mapping[str, torch_file.Storage]

    def get(self, key: str, kind: type) -> Any:  # noqa: ANN401  # of that kind
        """Return a value of the content; without one, or instead of None, an empty one.

        Raises:
            UserError: It is of another kind.
        """
        value = self.content.get(key)
        if value is not None and not isinstance(value, kind):
            raise UserError(f"{self.path} is not what its name says: {key} is no {kind.__name__}")
        return kind() if value is None else value

    def layout(self, name: str, tensor: object) -> Layout:
        """Return where a tensor lies.

        Raises:
            UserError: It is no tensor, or lies beyond the file.
        """
        if not isinstance(tensor, StoredTensor):
            raise UserError(f"{self.path} is not what its name says: {brief(name)} is no tensor")
        return torch_file.layout_of(tensor, self.storages, self.path)


def check_one_save(steps: Iterable[tuple[Path, object]]) -> None:
    """Check that files are of one step, as far as they tell.

    Raises:
        UserError: They are of several.
    """
    told = {step: path for path, step in steps if type(step) is int}
    if len(told) > 1:
        first, last = min(told), max(told)
        raise UserError(
            f"the checkpoint mixes files of two steps: {told[first]} is of {first:,}, and "
            f"{told[last]} of {last:,}. Save it again, into an empty folder"
        )


def read(path: Path, key: str = "") -> RankFile:
    """Return what a rank saved, or the dict at a key of it.

    Raises:
        UserError: The file is torn, or holds no dict.
    """
    content, storages = torch_file.read(path, classes=ANY_CLASS)
    if key and isinstance(content, dict):
        content = content.get(key)
    if not isinstance(content, dict):
        raise UserError(
            f"{path} is not what its name says: it holds no dict{f' {key}' * bool(key)}"
        )
    return RankFile(path, content, storages)
