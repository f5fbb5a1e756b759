"""The levels of confinement, and the command line of each.

At all levels but the last, a process has no privileges. It has its own namespaces (processes,
network, mounts, IPC) and a file system with nothing but a read-only Python, an empty /tmp of
limited size, and what a `View` adds. A program of root runs under another user id. That id owns no
file of this machine, and the limit on processes applies to it, which the kernel does not apply to
root. At every level the system calls are filtered, and no key of the user's can be reached.
"""

import os
import shutil
import site
import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from pathlib import Path

from coordinate_eval.evaluators.sandbox import seccomp
from coordinate_eval.evaluators.sandbox.inside import Mounts

TMPFS_BYTES = 64 << 20
INSIDE = Path(__file__).with_name("inside.py")

Confinement = tuple[Mounts | None, int | None, bytes, int]
"""Arguments of `inside.confine`."""

_SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib64", "/lib32")
_SETTINGS = ("/etc/ld.so.cache", "/etc/alternatives", "/etc/localtime")
# What lets root change the kernel's settings needs no capability, only root's user id. Everybody
# may have the kernel watch the load of the whole machine, by writing to files of `pressure`.
_KERNEL_SETTINGS = (
    "sys", "sysrq-trigger", "irq", "bus", "fs", "scsi", "acpi", "mtrr", "driver", "pressure",
)  # fmt: skip
# The names and numbers of the user's keys.
_KERNEL_SECRETS = ("keys", "key-users")

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
    absolute. /tmp and /dev/shm are its own, of `memory_bytes` at most each.
    """

    read: tuple[Path, ...] = ()
    write: tuple[Path, ...] = ()
    memory_bytes: int = TMPFS_BYTES


def wrapper(level: Level, view: View = View(), user: int | None = None) -> list[str]:
    """Return the arguments to put before the argv of a process that is to be confined.

    The process sees Python, its packages, an empty /tmp and the `view`. It has no capabilities and
    gains none. If this process is root, it gets the id `user`, or with None stays root, so that it
    can use root's own files in its view. A process of anybody else keeps its user. It ends with
    the process that starts it, and all that it has started ends with it. Its exit code becomes
    that of the command; 128 and a signal's number if a signal ended it.

    At the level `limits` nothing is put before, and nothing of this holds.

    Raises:
        OSError: what this level needs is not installed, or not known for this machine.
        ValueError: the view has a path that is not absolute, is the whole file system, or leads
            through a link inside another of its paths.
    """
    if level is Level.LIMITS:
        return []
    before, confinement = confined(level, view, user)
    source = INSIDE.read_text(encoding="utf-8")
    call = f"import sys\ncommand(sys.argv[1:], *{confinement!r})\n"
    return [*before, *bare_python(), "-c", f"{source}\n{call}"]


def confined(
    level: Level, view: View = View(), user: int | None = None
) -> tuple[list[str], Confinement]:
    """Return the arguments to put before a bare interpreter, and what it then has to `confine`.

    The arguments are as those of `wrapper`, which raises the same errors.
    """
    binds = _binds(view)
    before = _bubblewrap(binds, view.memory_bytes, user) if level is Level.BUBBLEWRAP else []
    secrets = _existing(_KERNEL_SECRETS)
    mounts = (binds, _links(), _existing(_KERNEL_SETTINGS), secrets, view.memory_bytes)
    return before, (
        mounts if level is Level.NAMESPACES else None,
        user,
        seccomp.compiled(),
        seccomp.OWNER,
    )


def bare_python() -> list[str]:
    """Return the command of this Python without packages, settings and the user's environment."""
    return [interpreter(), "-I", "-S"]


def _binds(view: View) -> list[tuple[str, bool]]:
    """Return what exists inside: paths and whether they are writable, parents before children."""
    system = [Path(path) for path in _visible()]
    read = (behind_links(path, system) for path in view.read)
    writable = dict.fromkeys(system, False) | dict.fromkeys(read, False)
    writable |= dict.fromkeys(view.write, True)
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


def behind_links(path: Path, system: Iterable[Path]) -> Path:
    """Return where a path is shown: where a link in one of the system's folders leads, else itself.

    Images for GPUs have `LD_LIBRARY_PATH=/usr/local/nvidia/lib`, which is often such a link.
    """
    outer = next((folder for folder in system if folder in path.parents), None)
    if outer is None or ".." in path.parts:
        return path
    moved = path.resolve() != outer.resolve() / path.relative_to(outer)
    return path.resolve() if moved else path


def interpreter() -> str:
    """Return the real path of this Python. Links to it need not exist inside the sandbox."""
    # A virtual environment's interpreter may be a copy. The standard library is with its base.
    return os.path.realpath(getattr(sys, "_base_executable", "") or sys.executable)


def library_folders() -> list[str]:
    """Return the folders of this interpreter's packages, which programs may import."""
    return [folder for folder in site.getsitepackages() if Path(folder).is_dir()]


def libraries() -> dict[str, str]:
    """Return the variable by which this Python finds its own libraries, as far as they are inside.

    A Python of an environment module is often built so that it needs it.
    """
    named = os.environ.get("LD_LIBRARY_PATH", "").split(":")
    inside = [
        folder
        for folder in named
        if any(Path(folder).is_relative_to(seen) for seen in _visible()) and ".." not in folder
    ]
    return {"LD_LIBRARY_PATH": ":".join(inside)} if inside else {}


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
def _existing(names: Sequence[str]) -> list[str]:
    """Return the paths of those names that are in /proc of this kernel."""
    return [f"/proc/{name}" for name in names if Path("/proc", name).exists()]


@cache
def _links() -> dict[str, str]:
    """Return the targets of system folders that are links, such as `/lib` → `usr/lib`."""
    return {path: str(Path(path).readlink()) for path in _SYSTEM if Path(path).is_symlink()}


@cache
def _bubblewrap_program() -> tuple[str, frozenset[str]]:
    """Return the path of bubblewrap, and those of its options that not all versions have."""
    # Looked up here, because a program's environment has another PATH.
    found = shutil.which("bwrap")
    if found is None:
        raise FileNotFoundError("bwrap is not installed, or not on PATH")
    told = subprocess.run([found, "--help"], capture_output=True, text=True, check=False)
    known = frozenset((told.stdout + told.stderr).split())
    if "--size" not in known:
        raise OSError(f"{found} is too old: 0.7 or later can limit the size of /tmp")
    return found, known & {"--disable-userns"}


def _bubblewrap(
    binds: Sequence[tuple[str, bool]], memory_bytes: int, user: int | None
) -> list[str]:
    command, options = _bubblewrap_program()
    argv = [command, "--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-uts"]
    argv += ["--unshare-cgroup-try", "--die-with-parent", "--new-session", "--as-pid-1"]
    argv += ["--cap-drop", "ALL"]
    if os.geteuid() != 0:
        argv += ["--unshare-user", *options]
    else:
        # To become `user` and to give up the rest for good.
        for capability in ("SETUID", "SETGID", "SETPCAP"):
            argv += ["--cap-add", f"CAP_{capability}"]
    tmpfs = ["--perms", "1777", "--size", str(memory_bytes), "--tmpfs"]
    argv += [*tmpfs, "/tmp", "--proc", "/proc", "--dev", "/dev", *tmpfs, "/dev/shm"]  # noqa: S108
    for path in _existing(_KERNEL_SETTINGS):
        argv += ["--ro-bind", path, path]
    # Mapped and shared, /dev/zero is memory that nobody could count. Of terminals the machine has
    # a number that all containers share.
    for path in [*_existing(_KERNEL_SECRETS), "/dev/zero", "/dev/pts/ptmx"]:
        argv += ["--ro-bind", "/dev/null", path]
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
    return argv
