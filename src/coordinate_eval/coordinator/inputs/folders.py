"""The folders in which a command works: can they be written, and may tasks run there?"""

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from coordinate_eval import _files, _owner
from coordinate_eval.coordinator.inputs.settings import Settings
from coordinate_eval.errors import UserError
from coordinate_eval.records import Checkpoint

Name = Literal["cache_dir", "runs_dir", "priors_dir"]

_USE = {
    "cache_dir": "requests are kept in it",
    "runs_dir": "run directories are made in it",
    "priors_dir": "measurements of finished runs are kept in it",
}


def check_writable(settings: Settings, name: Name) -> None:
    """Check that a folder of the settings can be written. It is not created if it is missing.

    Raises:
        UserError: it cannot; names the setting, the folder and the reason.
    """
    folder = Path(getattr(settings, name)).expanduser()
    try:
        _probe(folder)
    except OSError as error:
        raise UserError(
            f"setting {name}: {folder} cannot be written ({error.strerror}), but {_USE[name]}: "
            "set it to a folder of yours on storage that all nodes share"
        ) from error


def check_new(root: Path) -> None:
    """Check that a run directory can be made where none is yet. It is not made.

    Raises:
        UserError: it cannot; names the directory and the reason.
    """
    try:
        if not root.exists():
            _probe(root.parent)
    except OSError as error:
        raise UserError(
            f"run directory {root} cannot be made ({error.strerror}): choose a --run-dir in a "
            "folder of yours on storage that all nodes share"
        ) from error


def why_not_for_tasks(folder: Path, checkpoint: Checkpoint) -> str:
    """Return why tasks must not run in a folder; an empty text if they may.

    They look for data and for programs at relative paths: `load_dataset("x")` for a folder `x`. A
    checkpoint, and other users, could put them there.
    """
    try:
        place = folder.resolve(strict=True)
        why = _owner.foreign(place.stat(), place, roots=True)
    except OSError as error:
        return f"it cannot be read ({error.strerror})"
    holds = {Path(name).resolve().parent for name in (*checkpoint.files, *checkpoint.weights)}
    if any(place.is_relative_to(each) for each in holds):
        return "it holds the checkpoint"
    return why


@contextlib.contextmanager
def working_in(folder: str) -> Iterator[None]:
    """Make a folder the working directory while the block runs; an empty one if none is named."""
    before = Path.cwd()
    with tempfile.TemporaryDirectory(prefix="coordinate-eval-") as empty:
        os.chdir(folder or empty)
        try:
            yield
        finally:
            os.chdir(before)


def _probe(folder: Path) -> None:
    """Make and remove a folder in this one, or in the nearest parent that exists."""
    place = folder.absolute()
    while place != place.parent:
        with contextlib.suppress(FileNotFoundError):
            place.stat()
            break
        place = place.parent
    probe = place / f".{_files.token()}.tmp"
    probe.mkdir()
    probe.rmdir()
