"""Check the folders in which a command works: can a run be kept there, and may tasks run there?"""

import contextlib
import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from coordinate_eval import _files, _owner
from coordinate_eval.coordinator.inputs.settings import Settings
from coordinate_eval.errors import UserError
from coordinate_eval.records import Checkpoint


@dataclass(frozen=True)
class Tried:
    """Findings about a folder."""

    folder: Path
    """The folder tried: the one named, or the nearest above it that is there."""
    broken: dict[str, str] = field(default_factory=dict)
    """Operations that runs need and that fail there, and why."""
    locks: str = ""
    """The reason why files cannot be locked; empty if they can."""
    ahead_seconds: float = 0.0
    """Seconds that the file server's clock is ahead of this machine's."""
    free_bytes: int = 0


def try_out(folder: Path) -> Tried:
    """Try in a folder what runs do there, and leave nothing behind.

    A folder that is missing is not made; the nearest one above it is tried.

    Raises:
        OSError: nothing can be written there.
    """
    place = _nearest(folder)
    scratch = place / f".{_files.token()}.tmp"
    scratch.mkdir(mode=0o700)
    try:
        before = time.time()
        written = _written(scratch / "written")
        after = time.time()
        # The folder's own time is the file server's; between the two looks it is not ahead.
        now = written.stat().st_mtime
        ahead = now - min(max(now, before), after)
        tests: dict[str, Callable[[Path], None]] = {
            "rename a file over another": _rename,
            "make a hard link": _link,
            "write a folder's names to disk (fsync)": _files.sync_folder,
        }
        failures = {what: _failure(test, scratch) for what, test in tests.items()}
        found = os.statvfs(place)
        return Tried(
            folder=place,
            broken={what: why for what, why in failures.items() if why},
            locks=_failure(_lock, scratch),
            ahead_seconds=ahead,
            free_bytes=found.f_bavail * found.f_frsize,
        )
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _nearest(folder: Path) -> Path:
    """Return a folder, or the nearest one above it that is there."""
    place = folder.absolute()
    while place != place.parent:
        try:
            place.stat()
            break
        except FileNotFoundError:
            place = place.parent
    return place


def _failure(test: Callable[[Path], None], folder: Path) -> str:
    """Return why a test fails, and an empty text if it does not."""
    try:
        test(folder)
    except OSError as error:
        return error.strerror or str(error)
    return ""


def _written(path: Path) -> Path:
    with path.open("xb") as file:
        file.write(b"x")
        file.flush()
        os.fsync(file.fileno())
    return path


def _rename(folder: Path) -> None:
    """Replace a file, as every record is replaced."""
    _written(folder / "old")
    _written(folder / "new").replace(folder / "old")


def _link(folder: Path) -> None:
    """Publish a file under a name that only one of two may get."""
    first, second, name = (folder / each for each in ("first", "second", "name"))
    os.link(_written(first), name)
    try:
        os.link(_written(second), name)
    except FileExistsError:
        return
    raise OSError("a second link took a name that was there")


def _lock(folder: Path) -> None:
    """Lock a file, as whoever fills a cache does."""
    path = _written(folder / "locked")
    with path.open("rb") as first, path.open("rb") as second:
        fcntl.flock(first, fcntl.LOCK_EX | fcntl.LOCK_NB)
        try:
            fcntl.flock(second, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return
    raise OSError("two processes can hold one lock")


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
"""The reason why runs need what a file system lacks, and the file systems that have it."""


def check_writable(settings: Settings, name: Name) -> None:
    """Check that a folder of the settings can be written, on a file system that runs can use.

    It is not created if it is missing.

    Raises:
        UserError: runs cannot use the folder; names the setting, the folder and the reason.
    """
    folder = Path(getattr(settings, name)).expanduser()
    _check_in_files(folder, f"setting {name}: {folder}")
    try:
        why = _unusable(folder)
    except OSError as error:
        raise UserError(
            f"setting {name}: {folder} cannot be written ({error.strerror}), but {USES[name]}: "
            "set it to a folder of yours on storage that all nodes share"
        ) from error
    if why:
        raise UserError(f"setting {name}: {why}")


def _check_in_files(folder: Path, what: str) -> None:
    if folder.parts and folder.parts[0].endswith(":") and not folder.exists():
        raise UserError(
            f"{what} is in a store, and runs need a file system: only checkpoints are read from "
            "stores. Use a folder of yours on storage that all nodes share"
        )


def check_new(root: Path) -> None:
    """Check that a run directory can be made where none is yet, and used. It is not made.

    Raises:
        UserError: no run can be made there; names the directory and the reason.
    """
    _check_in_files(root, f"run directory {root}")
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
    holds = {Path(name).resolve().parent for name in checkpoint.all_files if name.startswith("/")}
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
