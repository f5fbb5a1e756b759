"""The levels of confinement, and the command line of each. Nothing here runs a command.

At all levels but the last, a process has no privileges. It has its own namespaces (processes,
network, mounts, IPC) and a file system with nothing but a read-only Python, an empty /tmp of
limited size, and what a `View` adds. A program of root runs under another user id. That id owns no
file of this machine, and the limit on processes applies to it, which the kernel does not apply to
root.
"""

import os
import shlex
import shutil
import site
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from pathlib import Path

TMPFS_BYTES = 64 << 20

_SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib64", "/lib32")
_SETTINGS = ("/etc/ld.so.cache", "/etc/alternatives", "/etc/localtime")
_DEVICES = ("null", "zero", "full", "random", "urandom")
# What lets root change the kernel's settings needs no capability, only root's user id.
_KERNEL_SETTINGS = ("sys", "sysrq-trigger", "irq", "bus", "fs", "scsi", "acpi", "mtrr", "driver")

ENVIRONMENT = {
    "PATH": "/usr/bin:/bin",
    "HOME": "/tmp",  # noqa: S108  # the program's own
    "LANG": "C.UTF-8",
    # One thread for each core of a large node would exceed the limits.
    "OPENBLAS_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
}


class Level(StrEnum):
    """A level of confinement, from the strongest to the weakest."""

    BUBBLEWRAP = "bubblewrap"
    NAMESPACES = "namespaces"
    LIMITS = "limits"


@dataclass(frozen=True)
class View:
    """Files and folders of this machine that a confined process sees, at their own paths.

    A folder is seen with all that it contains. A path may lie inside another one. The paths are
    absolute.
    """

    read: tuple[Path, ...] = ()
    write: tuple[Path, ...] = ()


def wrapper(level: Level, view: View = View(), user: int | None = None) -> list[str]:
    """Return the arguments to put before the argv of a process that is to be confined.

    The process sees Python, its packages, an empty /tmp and the `view`. It has no capabilities and
    gains none. If this process is root, it gets the id `user`, or with None stays root, so that it
    can use root's own files in its view. A process of anybody else keeps its user.

    At the level `limits` nothing is put before, and `view` and `user` have no effect.

    Raises:
        FileNotFoundError: the command that this level needs is not installed.
        ValueError: the view has a path that is not absolute, is the whole file system, or leads
            through a link inside another of its paths.
    """
    if level is Level.LIMITS:
        return []
    make = _bubblewrap if level is Level.BUBBLEWRAP else _namespaces
    command, *argv = make(_binds(view), user)
    # Looked up here, because a program's environment has another PATH.
    found = shutil.which(command)
    if found is None:
        raise FileNotFoundError(f"{command} is not installed, or not on PATH")
    return [found, *argv]


def _binds(view: View) -> list[tuple[str, bool]]:
    """Return what exists inside: paths and whether they are writable, parents before children."""
    writable = dict.fromkeys(map(Path, _visible()), False)
    writable |= dict.fromkeys(view.read, False) | dict.fromkeys(view.write, True)
    kept: dict[Path, bool] = {}
    for path in sorted(writable, key=lambda path: path.parts):
        if not path.is_absolute() or path == Path("/") or ".." in path.parts:
            raise ValueError(f"{path} cannot be shown inside: it must be absolute, and not /")
        outer = next((parent for parent in path.parents if parent in kept), None)
        if outer is not None:
            # A link inside would move the mount to another place.
            if path.resolve() != outer.resolve() / path.relative_to(outer):
                raise ValueError(f"{path} cannot be shown inside: a link leads there from {outer}")
            if kept[outer] == writable[path]:
                continue
        kept[path] = writable[path]
    return [(str(path), write) for path, write in kept.items()]


def interpreter() -> str:
    """Return the real path of this Python. Links to it need not exist inside the sandbox."""
    # A virtual environment's interpreter may be a copy. The standard library is with its base.
    return os.path.realpath(getattr(sys, "_base_executable", "") or sys.executable)


def library_folders() -> list[str]:
    """Return the folders of this interpreter's packages, which programs may import."""
    return [folder for folder in site.getsitepackages() if Path(folder).is_dir()]


@cache
def _visible() -> list[str]:
    """Return the files and folders that exist inside. None of them contains another."""
    # The interpreter finds the standard library relative to itself. Extension modules look for
    # libraries under the prefix that they were built for, which may be a link.
    homes = [sys.base_prefix, sys.base_exec_prefix, str(Path(interpreter()).parent.parent)]
    wanted = [*_SYSTEM, *_SETTINGS, *homes, *library_folders()]
    # With a prefix of `/` or `~` (as of ~/bin/python3), the whole folder must not be visible.
    # A user id without an entry in the list of users may have no home.
    home = Path(os.path.expanduser("~"))  # noqa: PTH111  # Path.home() fails then
    homes_of_user = {home, home.resolve(), *home.parents, *home.resolve().parents}
    hidden = {Path("/"), *homes_of_user, *map(Path, _links())}
    there = {Path(path) for path in wanted if Path(path).exists()} - hidden
    return sorted(str(path) for path in there if there.isdisjoint(path.parents))


@cache
def _settings() -> list[str]:
    """Return the files and folders of /proc that root could change the kernel with."""
    paths = (f"/proc/{name}" for name in _KERNEL_SETTINGS)
    return [path for path in paths if Path(path).exists()]


@cache
def _links() -> dict[str, str]:
    """Return the targets of system folders that are links, such as `/lib` → `usr/lib`."""
    return {path: str(Path(path).readlink()) for path in _SYSTEM if Path(path).is_symlink()}


def _drop_root(user: int) -> list[str]:
    return ["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups"]


def _bubblewrap(binds: Sequence[tuple[str, bool]], user: int | None) -> list[str]:
    argv = ["bwrap", "--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-uts"]
    argv += ["--unshare-cgroup-try", "--die-with-parent", "--new-session", "--cap-drop", "ALL"]
    if os.geteuid() != 0:
        argv += ["--unshare-user"]
    elif user is not None:
        argv += ["--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID"]
    tmpfs = ["--perms", "1777", "--size", str(TMPFS_BYTES), "--tmpfs"]
    argv += [*tmpfs, "/tmp", "--proc", "/proc", "--dev", "/dev", *tmpfs, "/dev/shm"]  # noqa: S108
    for path in _settings():
        argv += ["--ro-bind", path, path]
    # Bubblewrap would create parent folders that only root can enter.
    between = {str(folder) for path, _ in binds for folder in Path(path).parents}
    for folder in sorted(between - {"/", "/tmp"}):  # noqa: S108
        argv += ["--perms", "0755", "--dir", folder]
    for path, write in binds:
        argv += ["--bind" if write else "--ro-bind", path, path]
    for path, target in _links().items():
        argv += ["--symlink", target, path]
    # Bubblewrap makes both of memory without a size limit, so they must be read-only.
    argv += ["--remount-ro", "/dev", "--remount-ro", "/", "--chdir", "/tmp", "--"]  # noqa: S108
    return argv + (_drop_root(user) if user is not None else [])


def _namespaces(binds: Sequence[tuple[str, bool]], user: int | None) -> list[str]:
    argv = ["setpriv", "--pdeathsig=KILL", "unshare", "--mount", "--net", "--ipc", "--uts"]
    argv += ["--pid", "--fork", "--kill-child"]
    if os.geteuid() != 0:
        argv += ["--user", "--map-root-user"]
    drop = ["setpriv"] if user is None else _drop_root(user)
    drop += ["--no-new-privs", "--bounding-set=-all", "--inh-caps=-all"]
    return [*argv, "sh", "-c", _script(binds, _links(), drop), "sh"]


def _script(binds: Sequence[tuple[str, bool]], links: dict[str, str], drop: Sequence[str]) -> str:
    """Return shell lines that build the file system, enter it and run `"$@"` unprivileged.

    The shell stays as process 1. A program that is the first process of its namespace would not
    receive the signals that it sends to itself.
    """
    # The new root is mounted on /sys, which exists and contains nothing that is to be visible.
    root, size = "/sys", TMPFS_BYTES
    lines = [
        "set -e",
        "PATH=/usr/sbin:/usr/bin:/sbin:/bin",
        f"mount -t tmpfs -o mode=755 guest {root}",
        f"cd {root}",
        "mkdir proc tmp dev dev/shm",
        "mount -t proc proc proc",
        f"mount -t tmpfs -o mode=1777,size={size} guest tmp",
        f"mount -t tmpfs -o mode=1777,size={size} guest dev/shm",
    ]
    for path in _settings():
        lines += [f"mount --bind {root}{path} {root}{path}"]
        lines += [f"mount -o remount,bind,ro {root}{path}"]
    for device in (f"/dev/{name}" for name in _DEVICES):
        lines += [f"touch {root}{device}", f"mount --bind {device} {root}{device}"]
    for path, write in binds:
        source, target = shlex.quote(path), shlex.quote(root + path)
        parent = shlex.quote(os.path.dirname(root + path))  # noqa: PTH120  # text, not a path here
        lines += [
            f"mkdir -p {target}"
            if Path(path).is_dir()
            else f"mkdir -p {parent}; [ -e {target} ] || :> {target}"
        ]
        lines += [f"mount --rbind {source} {target}"]
        rights = "" if write else "ro,"
        lines += [f"mount -o remount,bind,{rights}nosuid,nodev {target}"]
    lines += [f"ln -s {shlex.quote(to)} {root}{path}" for path, to in links.items()]
    lines += [
        f"mount -o remount,bind,ro {root}",
        "pivot_root . .",
        "umount -l .",
        "cd /tmp",
        "set +e",
        f'{shlex.join(drop)} "$@"',
        "exit $?",
    ]
    return "\n".join(lines)
