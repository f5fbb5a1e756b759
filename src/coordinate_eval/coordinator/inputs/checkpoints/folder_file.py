"""`coordinate-eval.yaml`: what holds for all checkpoints in a folder, said once.

The file decides what is scored. So it counts only if it belongs to somebody who decides that
anyway: the user, root, a trusted user, or the owner of the checkpoint's folder. Nobody else may
write to it. In a store, whose owners are not known, it is whoever may write beside the checkpoint
or above it, and the file names only what is in stores.
"""

import itertools
import sys
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

from coordinate_eval import _format, _owner, _user_files
from coordinate_eval.coordinator.inputs.checkpoints import remote
from coordinate_eval.coordinator.inputs.yaml_file import Source, located, only, wrong
from coordinate_eval.errors import ForeignError, UserError

NAME: Final = "coordinate-eval.yaml"
_KEYS: Final = {"config", "tokenizer", "mapping", "base"}
_ABOVE = 3  # folders above a checkpoint in which it is looked for: its run, its user, their project


class FolderFile(NamedTuple):
    """Stand-ins for what lies beside a checkpoint. None: what lies there."""

    config: Path | None = None
    tokenizer: Path | None = None
    mapping: Path | None = None
    base: Path | None = None
    """The base of adapters."""
    folder: Path | None = None
    """The path of the file itself."""

    def unless(self, nearer: Iterable[Path], key: str, names: Iterable[str]) -> Path | None:
        """Return what the file says for a key, unless a folder nearer to the checkpoint has it.

        Args:
            nearer: folders of what lies beside the checkpoint.
            names: files, any of which is enough.
        """
        below = [folder for folder in nearer if self.folder in folder.parents]
        if any((folder / name).is_file() for folder in below for name in names):
            return None
        said: Path | None = getattr(self, key)
        return said


def of(place: Path) -> FolderFile:
    """Return what the nearest file says, in the folder of a checkpoint or above it.

    Paths in it are relative to its own folder. What is used, and what is not, is said once.

    Raises:
        UserError: It is malformed; names file and line.
    """
    folder = place if place.is_dir() else place.parent
    owner = folder.stat().st_uid
    # Above a bucket there is nothing.
    places = [folder, *(each for each in folder.parents[:_ABOVE] if each.is_absolute())]
    with ThreadPoolExecutor(len(places)) as pool:  # each waits for a server
        for place in itertools.compress(places, pool.map(_has, places)):
            try:
                found = _read(place / NAME, owner)
            except ForeignError as error:
                _say(str(error))
                continue
            _say(f"{place / NAME} is used for the checkpoints in its folder")
            return found
    return FolderFile()


def _has(folder: Path) -> bool:
    try:
        return (folder / NAME).is_file()
    except UserError as error:
        if isinstance(error.__cause__, PermissionError):  # of a bucket this user may read a part
            return False
        raise


def _read(path: Path, owner: int) -> FolderFile:
    stored = isinstance(path, remote.RemotePath)
    # Paths are relative to the folder of a link, so whoever made the link decides, too.
    if not stored and (why := _owner.foreign(path.lstat(), path, roots=True, owner=owner)):
        raise ForeignError(
            f"{path} is not used, because it decides what is scored: {why}; if you trust what is "
            "in it, copy it to a folder of yours, or name its owner in the setting `trusted_users`"
        )
    text = _user_files.read_text(path, NAME, owner=owner, anybodys=stored)
    tree = located(Source(text, str(path), path.parent, str(path), "file"))
    only(tree, _KEYS, NAME)
    for key, value in tree.items():
        if not isinstance(value, str):
            raise wrong(tree.at(key), f"{key} must be a path")
    paths = {key: remote.joined(path.parent, value) for key, value in tree.items()}
    if (own := paths.get("mapping")) and not isinstance(own, remote.RemotePath):
        _user_files.check_regular(own, "mapping")
    return FolderFile(**paths, folder=path.parent)


@cache
def _say(line: str) -> None:
    sys.stderr.write(f"{_format.visible(line)}\n")
