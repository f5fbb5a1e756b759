"""`coordinate-eval.yaml`: what holds for all checkpoints in a folder, said once."""

from pathlib import Path
from typing import Final, NamedTuple

from coordinate_eval import _user_files
from coordinate_eval.coordinator.inputs.suites.located_yaml import Source, located, only, wrong

NAME: Final = "coordinate-eval.yaml"
_ABOVE = 3  # folders above a checkpoint in which it is looked for: its run, its user, their project


class FolderFile(NamedTuple):
    """Stand-ins for what lies beside a checkpoint. None: what lies there."""

    config: Path | None = None
    tokenizer: Path | None = None
    mapping: Path | None = None
    base: Path | None = None
    """Of adapters."""


def of(place: Path) -> FolderFile:
    """Return what the nearest file says, in the folder of a checkpoint or above it.

    Paths in it are relative to its own folder.

    Raises:
        UserError: It is malformed; names file and line.
    """
    folder = place if place.is_dir() else place.parent
    for above in (folder, *folder.parents[:_ABOVE]):
        if (above / NAME).is_file():
            return _read(above / NAME)
    return FolderFile()


def _read(path: Path) -> FolderFile:
    text = _user_files.read_text(path, NAME, anybodys=True)
    tree = located(Source(text, str(path), path.parent, str(path), "file"))
    only(tree, set(FolderFile._fields), NAME)
    for key, value in tree.items():
        if not isinstance(value, str):
            raise wrong(tree.at(key), f"{key} must be a path")
    return FolderFile(**{key: path.parent / value for key, value in tree.items()})
