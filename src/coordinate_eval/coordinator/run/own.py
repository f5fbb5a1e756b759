"""Run directories are programs: only the user's own is acted on, and by nobody else."""

import contextlib
import os
from pathlib import Path

from coordinate_eval import _files, _owner
from coordinate_eval.coordinator.run.paths import RunDir
from coordinate_eval.errors import ForeignError, RecordError


def own(root: Path) -> RunDir:
    """Return a run directory, after a look at who can write in it.

    Raises:
        ForeignError: it is not the user's own, or a link to it is not.
    """
    try:
        check_link(root)
        found = RunDir(root.resolve())
        _owner.check_folder(found.root)
    except OSError as error:
        raise RecordError(f"run directory {root} cannot be read: {error.strerror}") from error
    return found


def check_link(path: Path) -> None:
    """Check that a link is the user's own, if it is a link.

    Raises:
        ForeignError: the link is another user's.
    """
    status = path.lstat()
    if path.is_symlink() and (why := _owner.foreign(status)):
        raise ForeignError(f"the link {path} is not followed: {why}. Name the run directory itself")


def is_own(path: Path) -> bool:
    """Return whether a file, folder or link belongs to the user, whatever its mode."""
    with contextlib.suppress(OSError):
        return path.lstat().st_uid == os.geteuid()
    return False


def place(home: Path, identity: str) -> Path:
    """Return where the user's run of this id is in a folder of runs, or is to be made.

    A folder of runs may be shared. Where a colleague has a run of this id, the user's own is
    beside it, with the user's number at the end of its name.
    """
    there = home / identity
    if is_own(there) or not os.path.lexists(there):
        return there
    return home / f"{identity}-{os.geteuid()}"


def work_folder(run_dir: RunDir) -> Path:
    """Return the empty folder in which a run's processes work. Make it if it is missing."""
    run_dir.work.mkdir(mode=0o700, exist_ok=True)
    return run_dir.work


def is_removed(run_dir: RunDir) -> bool:
    """Return whether somebody has removed the run: it has no `run.json`."""
    try:
        run_dir.run.stat()
    except FileNotFoundError:
        return True
    except OSError:  # storage fails, which may pass
        return False
    return False


def check_there(run_dir: RunDir) -> None:
    """Check that nobody has removed the run.

    Raises:
        RecordError: the run was removed.
    """
    if is_removed(run_dir):
        raise RecordError(
            f"run directory {run_dir.root} has been removed: nothing more is done for this run"
        )


def enter(root: Path) -> RunDir:
    """Return the user's own run directory, and make its empty folder the working directory.

    This process does not make the directory again if it is removed.
    """
    run_dir = own(root)
    _files.never_make(run_dir.root)
    os.chdir(work_folder(run_dir))
    return run_dir
