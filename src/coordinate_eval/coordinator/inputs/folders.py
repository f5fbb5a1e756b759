"""Check the folders in which a command works: can they hold a run, and may tasks run there?"""

import contextlib
import os
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Literal

from coordinate_eval import _owner
from coordinate_eval.coordinator.inputs.file_system import try_out
from coordinate_eval.coordinator.inputs.settings import Settings
from coordinate_eval.errors import UserError
from coordinate_eval.records import Checkpoint

Name = Literal["cache_dir", "runs_dir", "priors_dir"]

USES: Mapping[Name, str] = {
    "cache_dir": "requests are kept in it",
    "runs_dir": "run directories are made in it",
    "priors_dir": "measurements of finished runs are kept in it",
}
"""The use of each folder of the settings."""

WHERE_IT_WORKS = (
    "without which a run could lose or double work: use a folder on another one, such as NFS, "
    "Lustre or a local disk"
)
"""Why runs need what a file system lacks, and which ones have it."""


def check_writable(settings: Settings, name: Name) -> None:
    """Check that a folder of the settings can be written, on a file system that runs can use.

    It is not created if it is missing.

    Raises:
        UserError: runs cannot use the folder; names the setting, the folder and the reason.
    """
    folder = Path(getattr(settings, name)).expanduser()
    try:
        why = _unusable(folder)
    except OSError as error:
        raise UserError(
            f"setting {name}: {folder} cannot be written ({error.strerror}), but {USES[name]}: "
            "set it to a folder of yours on storage that all nodes share"
        ) from error
    if why:
        raise UserError(f"setting {name}: {why}")


def check_new(root: Path) -> None:
    """Check that a run directory can be made where none is yet, and used. It is not made.

    Raises:
        UserError: no run can be made there; names the directory and the reason.
    """
    try:
        why = "" if root.exists() else _unusable(root.parent)
    except OSError as error:
        raise UserError(
            f"run directory {root} cannot be made ({error.strerror}): choose a --run-dir in a "
            "folder of yours on storage that all nodes share"
        ) from error
    if why:
        raise UserError(f"run directory {root}: {why}")


def folder_for_tasks(folder: str, checkpoint: Checkpoint) -> str:
    """Return the folder in which tasks run: this one, or an empty text if they must not run there.

    Tasks look for data and programs at relative paths: `load_dataset("x")` for a folder `x`. A
    checkpoint, and other users, could put them there.
    """
    if not folder:
        return ""
    try:
        place = Path(folder).resolve(strict=True)
        if _owner.foreign(place.stat(), place, roots=True):
            return ""
    except OSError:
        return ""
    holds = {Path(name).resolve().parent for name in (*checkpoint.files, *checkpoint.weights)}
    return "" if any(place.is_relative_to(each) for each in holds) else folder


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


def _unusable(folder: Path) -> str:
    """Return what the file system of a folder lacks and what to do; an empty text if nothing.

    Raises:
        OSError: nothing can be written there.
    """
    tried = try_out(folder)
    if not tried.broken:
        return ""
    lacks = " and cannot ".join(f"{what} ({why})" for what, why in tried.broken.items())
    return f"the file system of {tried.folder} cannot {lacks}, {WHERE_IT_WORKS}"
