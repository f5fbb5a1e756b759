"""Read files that a user names, and explain why one cannot be read."""

import stat
from pathlib import Path

from coordinate_eval.errors import UserError

MOST_BYTES = 64 * 2**20
"""Size limit of a settings, suite, cluster or plan file: 64 MiB."""


def read_text(path: Path, what: str) -> str:
    """Return the text of a file. `what` names its kind in messages, such as "cluster file".

    Raises:
        UserError: it is missing, not a regular file, larger than `MOST_BYTES`, or not UTF-8.
    """
    check_regular(path, what)
    try:
        with path.open("rb") as file:
            content = file.read(MOST_BYTES + 1)
    except OSError as error:
        raise _unreadable(path, what, error.strerror or str(error)) from error
    if len(content) > MOST_BYTES:
        raise _unreadable(path, what, f"it is larger than {MOST_BYTES // 2**20} MiB")
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise _unreadable(path, what, f"line {line} is not UTF-8") from error


def check_regular(path: Path, what: str) -> None:
    """Check that a path is a regular file. Reading a pipe or a device may never end.

    Raises:
        UserError: it is not.
    """
    try:
        mode = path.stat().st_mode
    except FileNotFoundError as error:
        raise _unreadable(path, what, "it does not exist") from error
    except (OSError, ValueError) as error:  # ValueError: the path has a NUL
        raise _unreadable(path, what, getattr(error, "strerror", None) or str(error)) from error
    if not stat.S_ISREG(mode):
        kind = "a folder" if stat.S_ISDIR(mode) else "a pipe or device"
        raise _unreadable(path, what, f"it is {kind}, not a regular file")


def _unreadable(path: Path, what: str, why: str) -> UserError:
    return UserError(f"{what} {path} cannot be read: {why}")
