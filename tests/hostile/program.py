"""One program of the hostile corpus, and what it may count on.

A program knows its enemy: `W` tells it where the secrets lie that it must not read, which sockets
listen outside, and which name to give to what it leaves behind. It raises `Broke` when it has got
what it tried. One that ends without has been held.
"""

import textwrap
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from coordinate_eval.evaluators.sandbox.sandbox import Level

CONFINED = frozenset({Level.BUBBLEWRAP, Level.NAMESPACES})
EVERYWHERE = frozenset(Level)
NOWHERE: frozenset[Level] = frozenset()


class Must(StrEnum):
    """What must come of a program. In any case it leaves nothing behind and takes nothing away."""

    HOLD = "it ends, or is ended, and has not broken anything"
    FAIL = "it is not said to have passed"
    PASS = "it passes"
    TIME_OUT = "it times out"
    END = "whatever its verdict, there is one"


@dataclass(frozen=True)
class Program:
    """One program. `levels` are those whose promise it tests; it runs at no other.

    A `slow` one takes seconds or much memory, and runs in `make test-long` only. `seconds` is its
    time: ample, unless it never ends or may be ended at any moment.
    """

    name: str
    tries: str
    text: str
    must: Must = Must.HOLD
    levels: frozenset[Level] = CONFINED
    seconds: float = 120.0
    slow: bool = False
    needs: str = ""
    """A module that must be importable, for programs that are not hostile."""

    def source(self, world: dict[str, Any]) -> str:
        """Return the text to run: a program that means well knows nothing of the world."""
        text = textwrap.dedent(self.text)
        return text if self.must is Must.PASS else PRELUDE.replace("WORLD", repr(world)) + text


PRELUDE = '''
import ctypes, errno, os, platform, signal, socket, struct, sys, threading, time

W = WORLD
MARK = W["mark"]

class Broke(Exception):
    pass

libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long
COLUMN = {"x86_64": 0, "aarch64": 1}[platform.machine()]
NUMBERS = {
    "mmap": (9, 222), "shmget": (29, 194), "shmat": (30, 196), "getpid": (39, 172),
    "clone": (56, 220), "exit": (60, 93), "vfork": (58, -1), "semget": (64, 190),
    "msgget": (68, 186),
    "ptrace": (101, 117), "syslog": (103, 116), "personality": (135, 92),
    "modify_ldt": (154, -1), "pivot_root": (155, 41), "prctl": (157, 167), "chroot": (161, 51),
    "acct": (163, 89), "mount": (165, 40), "umount2": (166, 39), "swapon": (167, 224),
    "reboot": (169, 142), "sethostname": (170, 161), "iopl": (172, -1), "ioperm": (173, -1),
    "init_module": (175, 105), "clock_settime": (227, 112), "kexec_load": (246, 104),
    "setpriority": (141, 140), "sched_setscheduler": (144, 119), "mlockall": (151, 230),
    "sched_setaffinity": (203, 122), "ioprio_set": (251, 30), "inotify_init1": (294, 26),
    "mbind": (237, 235), "add_key": (248, 217), "request_key": (249, 218), "keyctl": (250, 219),
    "migrate_pages": (256, 238), "unshare": (272, 97), "move_pages": (279, 239),
    "perf_event_open": (298, 241), "fanotify_init": (300, 262), "name_to_handle_at": (303, 264),
    "open_by_handle_at": (304, 265), "setns": (308, 268), "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271), "kcmp": (312, 272), "seccomp": (317, 277),
    "memfd_create": (319, 279), "bpf": (321, 280), "userfaultfd": (323, 282),
    "io_uring_setup": (425, 425), "open_tree": (428, 428), "move_mount": (429, 429),
    "fsopen": (430, 430), "fsmount": (432, 432), "pidfd_open": (434, 434),
    "clone3": (435, 435), "pidfd_getfd": (438, 438), "mount_setattr": (442, 442),
    "quotactl_fd": (443, 443), "memfd_secret": (447, 447), "process_mrelease": (448, 448),
    "lsm_set_self_attr": (460, 460), "open_tree_attr": (467, 467),
}
NEW_USER, NEW_MOUNTS = 0x10000000, 0x00020000
NAMESPACES = {"user": NEW_USER, "mounts": NEW_MOUNTS, "network": 0x40000000, "ipc": 0x08000000,
              "processes": 0x20000000, "names": 0x04000000, "cgroups": 0x02000000, "time": 0x80}

def call(name, *arguments):
    """Make a system call by its name or number. Return its result and errno."""
    number = name if isinstance(name, int) else NUMBERS[name][COLUMN]
    given = [ctypes.c_long(a) if isinstance(a, int) else a for a in arguments]
    ctypes.set_errno(0)
    result = libc.syscall(ctypes.c_long(number), *given)
    return result, ctypes.get_errno()

def refused(name, *arguments):
    """The kernel must not even look at the arguments of this call."""
    result, error = call(name, *arguments)
    if result != -1:
        raise Broke(f"{name} worked: {result}")
    if error not in (errno.EPERM, errno.ENOSYS, errno.EACCES):
        raise Broke(f"{name} is reached: {errno.errorcode[error]}")

def others():
    """The processes to be seen that are not this one."""
    return [int(n) for n in os.listdir("/proc") if n.isdecimal() and int(n) != os.getpid()]

def linger(seconds=1000):
    """Stay, deaf and without a trace in the environment."""
    for stop in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGXCPU):
        signal.signal(stop, signal.SIG_IGN)
    os.closerange(0, 256)
    time.sleep(seconds)
    os._exit(0)

def opens(path, flags=os.O_RDONLY):
    try:
        descriptor = os.open(path, flags | os.O_NONBLOCK)
    except (OSError, ValueError):
        return None
    return descriptor
'''
