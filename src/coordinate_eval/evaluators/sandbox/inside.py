"""Confine this process, from inside: new namespaces, no rights, no keys, few system calls.

`sandbox.py` hands the code of this module and of `guest.py` to a bare interpreter, and
`confinement.py` hands it this text and calls `command`: inside, nothing of this package can be
imported. It must start fast. Numbers without another source are those of Linux's headers.
"""

import ctypes
import os
import struct
from _socket import AF_INET, SOCK_DGRAM, socket

Mounts = tuple[list[tuple[str, bool]], dict[str, str], list[str], list[str], int]
"""The namespaces' contents: paths and whether they are writable, parents before children; links and
their targets; files of /proc that are read-only; files of /proc that are empty; and the size of
each file system in memory in bytes."""

_KILL = 9
# <sched.h>: mounts, control groups, names, IPC, processes, network; users
_NEW, _NEW_USERS = 0x6E020000, 0x10000000
# <sys/mount.h>
_READ_ONLY, _NO_SETUID, _NO_DEVICES, _NO_EXECUTION = 1, 2, 4, 8
_REMOUNT, _BIND, _RECURSIVE, _PRIVATE, _DETACH = 32, 4096, 16384, 1 << 18, 2
_FLAGS = {"ro": _READ_ONLY, "nosuid": _NO_SETUID, "nodev": _NO_DEVICES, "noexec": _NO_EXECUTION}
# <linux/prctl.h>
_PARENT_DEATH, _DUMPABLE, _SECCOMP, _DROP_BOUNDING = 1, 4, 22, 24
_SUBREAPER, _NO_NEW_PRIVILEGES, _AMBIENT, _CLEAR_ALL = 36, 38, 47, 4
_CAPABILITIES = struct.pack("Ii", 0x20080522, 0)  # version 3, this process
_KEYCTL, _JOIN_SESSION_KEYRING = {"x86_64": 250, "aarch64": 219}, 1
_SET_INTERFACE, _UP = 0x8914, 1  # SIOCSIFFLAGS, IFF_UP

_DEVICES = ("null", "full", "random", "urandom")
_LIBC = ctypes.CDLL(None, use_errno=True)


def call(function: str, *arguments: int | bytes | None) -> None:
    """Call a function of the C library.

    Raises:
        OSError: the call failed.
    """
    given = [ctypes.c_long(a) if isinstance(a, int) else a for a in arguments]
    if getattr(_LIBC, function)(*given) < 0:
        error = ctypes.get_errno()
        raise OSError(error, f"{function}: {os.strerror(error)}")


def confine(mounts: Mounts | None, user: int | None, calls: bytes, owner: int) -> None:
    """Confine this process and all that it will start.

    With `mounts` it goes on in a child that is the first process of new namespaces, and this
    process ends with its status. It becomes `user`, if that is not None, and loses all
    capabilities. `calls` is the filter of system calls, in which `owner` stands for this process.

    The first process of a namespace ends with its parent, and the kernel ends all others with it.
    Any other process becomes the parent of all orphans among its descendants.

    Raises:
        OSError: a part of this is not possible here.
    """
    if mounts is not None:
        _enter(*mounts)
    _drop(user)
    # A key can also be reached through the file systems that ask for it. Where this fails, keys do
    # not exist, cannot be asked for, or are too many; the filter denies asking in any case.
    try:
        call("syscall", _KEYCTL[os.uname().machine], _JOIN_SESSION_KEYRING, None)
    except OSError:
        pass
    show(False)
    if os.getpid() == 1:
        end_with_parent()
    else:
        call("prctl", _SUBREAPER, 1)
    for number in (owner, -owner):
        own = os.getpid() if number > 0 else -os.getpid()
        calls = calls.replace(struct.pack("=i", number), struct.pack("=i", own))
    instructions = ctypes.create_string_buffer(calls, len(calls))
    program = struct.pack("HP", len(calls) // 8, ctypes.addressof(instructions))
    call("prctl", _NO_NEW_PRIVILEGES, 1, 0, 0, 0)
    call("prctl", _SECCOMP, 2, program)


def end_with_parent() -> None:
    """Have the kernel kill this process when its parent ends."""
    call("prctl", _PARENT_DEATH, _KILL, 0, 0, 0)


def show(visible: bool) -> None:
    """Let processes of the same user trace this one and open its files in /proc, or forbid it."""
    call("prctl", _DUMPABLE, int(visible), 0, 0, 0)


def exit_code(status: int) -> int:
    """Return the exit code of a process from its wait status; 128 and the number for a signal."""
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code


def command(
    argv: list[str], mounts: Mounts | None, user: int | None, calls: bytes, owner: int
) -> None:
    """Confine this process, run a command in a child, and end with its exit code."""
    confine(mounts, user, calls, owner)
    child = os.fork()
    if child == 0:
        show(True)
        os.execvp(argv[0], argv)  # noqa: S606  # the purpose of this process
    ended = None
    while ended != child:  # others are orphans of the command
        ended, status = os.wait()
    os._exit(exit_code(status))


def _drop(user: int | None) -> None:
    """Become another user, if one is given, and lose all capabilities for good."""
    call("prctl", _AMBIENT, _CLEAR_ALL, 0, 0, 0)
    try:
        for capability in range(64):
            call("prctl", _DROP_BOUNDING, capability)
    except OSError:
        pass  # there are no more, or this process has none and cannot get one
    if user is not None:
        os.setgroups([])
        os.setresgid(user, user, user)
        os.setresuid(user, user, user)
    call("capset", _CAPABILITIES, bytes(24))


def _enter(
    binds: list[tuple[str, bool]],
    links: dict[str, str],
    fixed: list[str],
    empty: list[str],
    size: int,
) -> None:
    """Go on in a child with new namespaces, whose file system has only what is given."""
    user, group = os.geteuid(), os.getegid()
    end_with_parent()
    call("unshare", _NEW | (_NEW_USERS if user != 0 else 0))
    if user != 0:
        for name, text in (
            ("setgroups", "deny"),
            ("gid_map", f"{group} {group} 1"),
            ("uid_map", f"{user} {user} 1"),
        ):
            with open(f"/proc/self/{name}", "w") as file:
                file.write(text)
    child = os.fork()
    if child:
        os.closerange(3, 1024)
        os._exit(exit_code(os.waitpid(child, 0)[1]))
    any_socket = socket(AF_INET, SOCK_DGRAM)
    request = struct.pack("16sh14x", b"lo", _UP)
    call("ioctl", any_socket.fileno(), _SET_INTERFACE, request)
    any_socket.close()
    mask = os.umask(0o022)
    # The new root is mounted on /sys, which exists and contains nothing that is to be visible.
    root = "/sys"
    _mount("", "/", _RECURSIVE | _PRIVATE)
    _mount("guest", root, _NO_SETUID | _NO_DEVICES, "tmpfs", "mode=755")
    for name in ("proc", "tmp", "dev", "dev/shm"):
        os.mkdir(f"{root}/{name}")
    _mount("proc", f"{root}/proc", _NO_SETUID | _NO_DEVICES | _NO_EXECUTION, "proc")
    for name in ("tmp", "dev/shm"):
        _mount(
            "guest", f"{root}/{name}", _NO_SETUID | _NO_DEVICES, "tmpfs", f"mode=1777,size={size}"
        )
    for path in (f"/dev/{name}" for name in _DEVICES):
        _bind(path, root + path)
    for path in empty:
        _bind("/dev/null", root + path)
    for path, _ in binds:
        _bind(path, root + path)
    for path in fixed:
        _bind(root + path, root + path)
    _restrict({root + path: write for path, write in [*binds, *((path, False) for path in fixed)]})
    for path, target in links.items():
        os.symlink(target, root + path)
    _mount("", root, _REMOUNT | _BIND | _READ_ONLY | _NO_SETUID | _NO_DEVICES)
    os.chdir(root)
    call("pivot_root", b".", b".")
    call("umount2", b".", _DETACH)
    os.chdir("/tmp")  # noqa: S108  # its own
    os.umask(mask)


def _mount(source: str, target: str, flags: int, kind: str = "", options: str = "") -> None:
    """Mount as mount(2) does."""
    texts = [os.fsencode(text) for text in (source, target, kind, options)]
    call("mount", texts[0], texts[1], texts[2], flags, texts[3])


def _bind(source: str, target: str) -> None:
    """Show a file or folder with all that is mounted in it at `target`, which is made."""
    if os.path.isdir(source):
        os.makedirs(target, exist_ok=True)
    elif not os.path.exists(target):
        os.makedirs(os.path.dirname(target), exist_ok=True)
        open(target, "x").close()
    _mount(source, target, _BIND | _RECURSIVE)


def _restrict(writable: dict[str, bool]) -> None:
    """Forbid writing, devices and other users' rights, in all that is mounted at or below paths.

    A path that is writable only loses the latter two. The innermost path decides.
    """
    with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as file:
        mounted = [line.split(" ")[4:6] for line in file]  # see proc(5)
    for point, options in mounted:
        path = point.replace("\\040", " ").replace("\\011", "\t").replace("\\012", "\n")
        path = path.replace("\\134", "\\")
        around = [outer for outer in writable if f"{path}/".startswith(f"{outer}/")]
        if around:
            # What the mount forbids already must stay so: the kernel lets nobody allow it.
            flags = sum(flag for name, flag in _FLAGS.items() if name in options.split(","))
            flags |= _NO_SETUID | _NO_DEVICES
            flags |= 0 if writable[max(around, key=len)] else _READ_ONLY
            _mount("", path, _REMOUNT | _BIND | flags)
