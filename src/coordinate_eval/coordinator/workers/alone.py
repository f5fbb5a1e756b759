"""A lock of this user on this node, for programs that must not disturb each other."""

import contextlib
import fcntl
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Final

FOLDER: Final = Path("/dev/shm")  # noqa: S108  # of this node, unlike a run directory


@contextlib.contextmanager
def alone_on_this_node(folder: Path = FOLDER) -> Iterator[None]:
    """Wait until no other process of this user on this node is in such a block, then run it.

    The kernel frees the lock of a process that dies. Everybody can write to the folder: where
    somebody else has put a file of that name, or the folder is missing, nobody waits for anybody.
    """
    path = folder / f"coordinate-eval-{os.getuid()}.alone"
    lock = _hold(path)
    try:
        yield
    finally:
        if lock is not None:
            path.unlink(missing_ok=True)
            os.close(lock)


def _hold(path: Path) -> int | None:
    """Return the open lock file, held; None if there can be none."""
    while True:
        try:
            flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
            lock = os.open(path, flags, 0o600)
        except OSError:
            return None
        try:
            found = os.fstat(lock)
            if not stat.S_ISREG(found.st_mode) or found.st_uid != os.getuid():
                os.close(lock)
                return None
            fcntl.flock(lock, fcntl.LOCK_EX)
            # Its last holder may have removed it meanwhile, and another one made it anew.
            with contextlib.suppress(FileNotFoundError):
                if path.lstat().st_ino == found.st_ino:
                    return lock
        except BaseException:
            os.close(lock)
            raise
        os.close(lock)
