"""Demands of runs on a folder's file system, tried out: names, locks, times, room."""

import fcntl
import os
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from coordinate_eval import _files


@dataclass(frozen=True)
class Tried:
    """Findings about a folder."""

    folder: Path
    """The folder tried: the one named, or the nearest above it that is there."""
    broken: dict[str, str] = field(default_factory=dict)
    """Operations that runs need and that fail there, and why."""
    locks: str = ""
    """Why files cannot be locked; empty if they can."""
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
