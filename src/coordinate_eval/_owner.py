"""Whose files these are. What another user owns or can write is never run, and never decides.

A file or folder is the user's own if it belongs to the user of this process and nobody else may
write to it. A file is judged by its open descriptor, so nobody can exchange it between the look
and the reading. Two kinds of people can always act as the user, and are trusted: root, and the
members of the user's private group, of whom there are none (files are group-writable there by
habit: "umask 002").

The folders above are not judged as strictly, because projects on clusters share them: somebody
who may write there can rename or remove a folder of the user's, which then is missing. What is
put in its place is refused, because it belongs to whoever put it there. Only a folder that
everybody can write to, such as one of mode 0777 without the sticky bit, is refused above a run.

Three functions judge, and no other module adds a look of its own:

- `run/own.py`, `own`: a run directory, when a command or a job enters it. From then on nobody else
  can put a file into it, or exchange, rename or remove one.
- `_files.own_folder`: any other folder of the user's that is changed, such as a cache.
- `_files.open_to_read`: each file that is read, by its open descriptor. A look at all files on
  entry would not do instead: a run has tens of thousands, and the user may open one to others
  later, or restore one with other rights. The look at an open file takes ten microseconds.
"""

import contextlib
import errno
import functools
import grp
import os
import pwd
import stat
from collections.abc import Callable, Iterable, Iterator
from contextvars import ContextVar
from pathlib import Path

from coordinate_eval.errors import ForeignError, UserError

_WRITABLE = stat.S_IWGRP | stat.S_IWOTH
_CAREFULLY = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_READ = os.O_RDONLY | _CAREFULLY
_APPEND = os.O_WRONLY | os.O_APPEND | os.O_CREAT | _CAREFULLY

_shown: ContextVar[bool] = ContextVar("_shown", default=False)
_trusted: set[int] = {0}


@contextlib.contextmanager
def for_show() -> Iterator[None]:
    """Read everybody's files while the block runs: what is read in it is shown and never run."""
    token = _shown.set(True)
    try:
        yield
    finally:
        _shown.reset(token)


def trust(names: Iterable[str]) -> None:
    """Trust what these users own like what root owns, from now on.

    Args:
        names: of users, or their numbers: a node or a container may know no names.

    Raises:
        UserError: this machine knows no user of a name.
    """
    for name in names:
        try:
            number = int(name) if name.isdecimal() else pwd.getpwnam(name).pw_uid
        except (KeyError, ValueError) as error:
            raise UserError(
                f"trusted_users: there is no user {name!r} on {os.uname().nodename}: correct the "
                "name, or give the user's number (`id -u`), which needs no list of users"
            ) from error
        _trusted.add(number)


def open_file(path: Path, *, anybodys: bool = False) -> int:
    """Open a regular file of the user's to read, and return its descriptor. Follow no link.

    With `anybodys` it may be another user's: its content must be harmless data.

    Raises:
        ForeignError: it is not the user's own, or no regular file.
        OSError: it cannot be opened.
    """

    def refused(status: os.stat_result, descriptor: int) -> str:
        why = "" if anybodys else foreign(status, descriptor)
        return why and f"{path} is not used: {why}. {advice(path, status)}"

    return _opened(path, _READ, refused)


def open_log(path: Path) -> int:
    """Open a log of the user's to append to, and return its descriptor. Make it if it is missing.

    In a folder that others write to, its name may lead to any file of the user's, and what is
    logged has words of others in it.

    Raises:
        ForeignError: it is a link, has a second name, is another user's, or no regular file.
        OSError: it cannot be opened.
    """

    def refused(status: os.stat_result, descriptor: int) -> str:
        why = foreign(status, descriptor) or "it is a hard link" * (status.st_nlink > 1)
        return why and f"log {path} is not written: {why}. Remove it"

    return _opened(path, _APPEND, refused)


def _opened(path: Path, flags: int, refused: Callable[[os.stat_result, int], str]) -> int:
    """Return the descriptor of a regular file. `refused` says why it is not used, if it is not."""
    try:
        descriptor = os.open(path, flags, 0o644)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise ForeignError(f"{path} is a link, which is not followed: remove it") from error
        if error.errno == errno.ENXIO:  # a pipe that nobody reads
            raise ForeignError(f"{path} is no regular file: remove it") from error
        raise
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise ForeignError(f"{path} is no regular file: remove it")
        if why := refused(status, descriptor):
            raise ForeignError(why)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def check_folder(folder: Path) -> None:
    """Check that a folder and the folders in it are the user's own, and stay where they are.

    Raises:
        ForeignError: one is not, or everybody can put another in its place.
        OSError: it is not there.
    """
    try:
        descriptor = os.open(folder, _READ | os.O_DIRECTORY)
    except OSError:
        # Names its owner even if it cannot be opened.
        _check(folder, folder.lstat())
        raise
    try:
        _check(folder, os.fstat(descriptor), descriptor)
        with os.scandir(descriptor) as entries:
            for entry in entries:
                if not entry.is_file(follow_symlinks=False):
                    _check(folder / entry.name, entry.stat(follow_symlinks=False))
    finally:
        os.close(descriptor)
    check_above(folder)


def foreign(
    status: os.stat_result,
    file: int | Path | None = None,
    *,
    roots: bool = False,
    owner: int | None = None,
) -> str:
    """Return why something is not the user's own, and an empty text if it is.

    Args:
        status: of the file or folder.
        file: its descriptor or path, to look for an access control list.
        roots: what root or a trusted user owns is as good.
        owner: what this user owns is as good, too.
    """
    if _shown.get():
        return ""
    user = os.geteuid()
    known = is_trusted(status.st_uid, owner)
    good = known if roots else status.st_uid in (user, owner)
    if not good:
        return f"it belongs to {name_of(status.st_uid)}, not to you ({name_of(user)})"
    if stat.S_ISLNK(status.st_mode) or not status.st_mode & _WRITABLE:
        return ""
    if not status.st_mode & stat.S_IWOTH and _is_private(status, file):
        return ""
    return f"other users can write to it (mode {stat.S_IMODE(status.st_mode):04o})"


def is_trusted(user: int, owner: int | None = None) -> bool:
    """Return whether what a user owns is as good as one's own; `owner` is as good, too."""
    return user in (os.geteuid(), owner) or user in _trusted


def advice(path: Path, status: os.stat_result) -> str:
    """Return what to do about something that is not the user's own, as a sentence."""
    if status.st_uid == os.geteuid():
        return f"If you trust what is in it: chmod -R go-w '{path}'"
    if os.geteuid() == 0:
        return (
            "As root, give a --run-dir, and folders in the settings, on storage that does not map "
            "root to another user (root_squash)"
        )
    return "Give a --run-dir, and folders in the settings, that are yours"


def name_of(user: int) -> str:
    """Return a user's name, or the number where it has none."""
    try:
        return f"{pwd.getpwuid(user).pw_name} (uid {user})"
    except KeyError:
        return f"uid {user}"


def has_access_list(file: int | Path) -> bool:
    """Return whether a POSIX access list names others, by a file's descriptor or path."""
    try:
        os.getxattr(file, "system.posix_acl_access")
    except OSError:  # none, or a file system without lists
        return False
    return True


def _check(path: Path, status: os.stat_result, file: int | Path | None = None) -> None:
    if stat.S_ISLNK(status.st_mode) and not _shown.get():
        raise ForeignError(f"{path} is a link, which is not followed: remove it")
    if why := foreign(status, path if file is None else file):
        raise ForeignError(f"{path} is not used: {why}. {advice(path, status)}")


def check_above(folder: Path) -> None:
    """Check that not everybody can put another folder in the place of this one.

    Raises:
        ForeignError: everybody can.
        OSError: it is not there.
    """
    for above in folder.resolve().parents:
        mode = above.stat().st_mode
        if mode & stat.S_IWOTH and not mode & stat.S_ISVTX and not _shown.get():
            raise ForeignError(
                f"{folder} is not used: everybody can put another in its place, because {above} "
                f"has mode {stat.S_IMODE(mode):04o}. Have it changed (chmod o-w, or chmod +t), or "
                "use one elsewhere"
            )


def _is_private(status: os.stat_result, file: int | Path | None) -> bool:
    """Return whether nobody but the user is in the group, and no list names others."""
    if file is None or status.st_gid != _private_group():
        return False
    # A list of others shows as the rights of the group.
    return not has_access_list(file)


@functools.cache
def _private_group() -> int | None:
    """Return the group that has the user's name and no other member; None if there is none."""
    try:
        user = pwd.getpwuid(os.geteuid())
        group = grp.getgrgid(user.pw_gid)
    except KeyError:
        return None
    alone = group.gr_name == user.pw_name and set(group.gr_mem) <= {user.pw_name}
    return user.pw_gid if alone and user.pw_uid != 0 else None
