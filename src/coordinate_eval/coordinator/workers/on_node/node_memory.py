"""Folders in a node's memory: used by several processes of a user, removed by the last of them.

Such a folder is `<root>/coordinate-eval-<uid>/<name>/<folder>/`; that of the user has mode 0700.
Beside it are two lock files:

- `<folder>.lock` is held shared (flock) by every process that uses the folder. A process that ends
  tries to hold it exclusively. If it can, it is the last, and removes everything.
- `<folder>.copying` is held exclusively by the process that fills it.
"""

import contextlib
import errno
import fcntl
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from stat import S_ISDIR

from coordinate_eval import _owner
from coordinate_eval.coordinator.workers.signals import StopRequested, ignore_signals
from coordinate_eval.errors import UserError


def is_private(found: os.stat_result) -> bool:
    """Return whether this is a folder of this user that nobody else can open."""
    return S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o077


def user_folder(root: str) -> Path:
    """Return the folder of this user below a node's memory file system."""
    return Path(root) / f"coordinate-eval-{os.getuid()}"


def work_folder(folder: Path) -> Path:
    """Return the folder beside one, in which processes that use it may work."""
    return folder.with_name(f"{folder.name}.work")


def _private_folder(folder: Path) -> None:
    while True:
        try:
            with contextlib.suppress(FileExistsError):
                folder.mkdir(mode=0o700)
        except OSError as error:
            raise UserError(
                f"cannot stage weights in {folder}: {error.strerror}; see [stage] where and root"
            ) from error
        # Another process that was the last to use the folder may remove it at this moment.
        with contextlib.suppress(FileNotFoundError):
            if is_private(folder.lstat()):
                _owner.check_above(folder)
                return
            raise UserError(
                f"{folder} is not a private folder of this user; "
                "somebody else made it, or its mode was changed: remove it or set [stage] where"
            ) from FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(folder))


@contextlib.contextmanager
def held(folder: Path) -> Iterator[int]:
    """Hold a folder while the block runs, and yield its lock. Who leaves last removes it."""
    try:
        lock = open_lock(_lock_of(folder))
    except StopRequested:  # who had the folder may have left meanwhile
        _remove_unless_held(folder)
        raise
    try:
        yield lock
    finally:
        ignore_signals()
        os.close(lock)
        _remove_unless_held(folder)


def _lock_of(folder: Path) -> Path:
    return folder.with_name(f"{folder.name}.lock")


def open_lock(path: Path) -> int:
    """Open the lock file and hold it shared. Make sure that nobody removed it meanwhile."""
    while True:
        _private_folder(path.parent.parent)
        try:
            path.parent.mkdir(mode=0o700, exist_ok=True)
            lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        except FileNotFoundError:
            continue
        try:
            fcntl.flock(lock, fcntl.LOCK_SH)
            if _is_at(path, lock):
                return lock
        except BaseException:
            os.close(lock)
            raise
        os.close(lock)


def _is_at(path: Path, lock: int) -> bool:
    """Return whether the file at `path` is still the one that is open as `lock`."""
    with contextlib.suppress(FileNotFoundError):
        return os.fstat(lock).st_ino == path.lstat().st_ino
    return False


def _remove_unless_held(folder: Path) -> bool:
    """Remove a folder and its lock if no process holds it. Return whether it did."""
    path, above = _lock_of(folder), folder.parent
    with contextlib.suppress(OSError):  # it is held, or gone
        # In a folder that another user can write to, names may lead anywhere.
        if above.is_symlink() or not is_private(above.parent.lstat()):
            return False
        lock = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            # Of two processes that end at the same time, one gets it.
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if not _is_at(path, lock):
                return False
            shutil.rmtree(folder, ignore_errors=True)
            shutil.rmtree(work_folder(folder), ignore_errors=True)
            (above / f"{folder.name}.copying").unlink(missing_ok=True)
            path.unlink(missing_ok=True)
            with contextlib.suppress(OSError):
                above.rmdir()
                above.parent.rmdir()
            return True
        finally:
            os.close(lock)
    return False


def remove_abandoned(user_folder: Path, but: Path | None = None) -> list[Path]:
    """Remove the folders of a user that no process holds, but one. Return them."""
    folders = [path.with_suffix("") for path in user_folder.glob("*/*.lock")]
    return [each for each in folders if each != but and _remove_unless_held(each)]


@contextlib.contextmanager
def copy_lock(folder: Path, *, wait: bool = False) -> Iterator[bool]:
    """Try to become the only process that copies, while the block runs. Yield whether it is.

    With `wait`, wait until no other process is copying.
    """
    path = folder.parent / f"{folder.name}.copying"
    lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            alone = True
        except BlockingIOError:
            alone = False
        yield alone
    finally:
        os.close(lock)
