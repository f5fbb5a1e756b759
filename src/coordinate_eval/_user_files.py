"""Text files that a user names, pipes and devices included."""

import os
import stat
from pathlib import Path

from coordinate_eval import _owner
from coordinate_eval.errors import ForeignError, UserError

MOST_BYTES = 64 * 2**20
"""Largest settings, suite, cluster or plan file, in bytes: 64 MiB. A device may have no end."""


def read_text(path: Path, what: str, *, anybodys: bool = False, owner: int | None = None) -> str:
    """Return the text of a file; `what` names it for the user, such as "cluster file".

    The file must be the user's own, root's or of the user `owner`, unless it is `anybodys`: then
    it decides nothing that is run.

    Raises:
        ForeignError: The file is another user's, or others can write to it.
        UserError: The file is missing, a folder, larger than `MOST_BYTES`, or not UTF-8.
    """
    try:
        with path.open("rb") as file:
            if not anybodys:
                check_own(path, what, file.fileno(), owner=owner)
            content = file.read(MOST_BYTES + 1)
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        raise _unreadable(path, what, _why(error)) from error
    if len(content) > MOST_BYTES:
        raise _unreadable(path, what, f"it is larger than {MOST_BYTES // 2**20} MiB")
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise _unreadable(path, what, f"line {line} is not UTF-8") from error


def check_own(
    path: Path, what: str, descriptor: int | None = None, *, owner: int | None = None
) -> None:
    """Check that what decides about programs is the user's own, root's or of `trusted_users`.

    That of the user `owner` is as good.

    Raises:
        ForeignError: The file is anybody else's, or others can write to it.
        OSError: It is not there.
    """
    status = path.stat() if descriptor is None else os.fstat(descriptor)
    if stat.S_ISCHR(status.st_mode) and status.st_uid == 0:  # such as /dev/null
        return
    if why := _owner.foreign(
        status, path if descriptor is None else descriptor, roots=True, owner=owner
    ):
        mend = "copy it to a folder of yours, or name its owner in the setting `trusted_users`"
        if status.st_uid in (0, os.geteuid()):
            mend = f"if you trust what is in it, chmod go-w '{path}'"
        raise ForeignError(
            f"{what} {path} is not used, because it decides what is run: {why}; {mend}"
        )


def check_regular(path: Path, what: str) -> None:
    """Check that a regular file is there, not a pipe or device that may keep a reader waiting.

    Raises:
        UserError: Something else is there, or nothing.
    """
    try:
        mode = path.stat().st_mode
    except (OSError, ValueError) as error:
        raise _unreadable(path, what, _why(error)) from error
    if not stat.S_ISREG(mode):
        kind = "a folder" if stat.S_ISDIR(mode) else "a pipe or device"
        raise _unreadable(path, what, f"it is {kind}, not a regular file")


def _why(error: Exception) -> str:
    if isinstance(error, FileNotFoundError):
        return "it does not exist"
    if isinstance(error, IsADirectoryError):
        return "it is a folder, not a file"
    return getattr(error, "strerror", None) or str(error)


def _unreadable(path: Path, what: str, why: str) -> UserError:
    return UserError(f"{what} {path} cannot be read: {why}")
