"""The filter of system calls that a confined process runs under. Nothing here does I/O.

A program needs files, processes, threads, signals, sockets and time. The filter denies what else
the kernel offers and what attacks on kernels and sandboxes begin with: namespaces and mounts, other
processes' memory, keys, io_uring, BPF, memory that no limit counts, rare kinds of sockets, the
machine's own settings. What is denied fails with EPERM. What is newer than this table fails with
ENOSYS, as on an older kernel, and so does clone3, whose flags a filter cannot see: the C library
then uses clone. The selection follows what Docker's default profile, Flatpak and systemd's
`@system-service` leave out.

A filter is a program of the kernel's classic BPF (Documentation/userspace-api/seccomp_filter.rst):
instructions of 8 bytes that read `struct seccomp_data` and return a decision. This module assembles
one itself. The bindings of libseccomp would do it too, but need that library on each node.
"""

import platform
import struct
from collections.abc import Iterable
from errno import ENOMEM, ENOSYS, EPERM
from functools import cache
from typing import Final

from coordinate_eval.evaluators.sandbox.memory import SHARED_BYTES

LAST: Final = 450
"""The last system call of Linux 6.1. All since 424 have one number on every machine."""

OWNER: Final = 0x7EEDC0DE
"""Stands for the process that loads the filter, in the signals that it denies.

It is above the largest number of a process, 2^22.
"""

_ARCHITECTURES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}

# Names and numbers on x86_64 and aarch64, from Linux's asm/unistd_64.h and asm-generic/unistd.h.
_NUMBERS = """
    clone 56 220                kill 62 129                 tkill 200 130
    tgkill 234 131              rt_sigqueueinfo 129 138     rt_tgsigqueueinfo 297 240
    pidfd_open 434 434          prlimit64 302 261           prctl 157 167
    personality 135 92          socket 41 198               socketpair 53 199
    setsockopt 54 208           fcntl 72 25                 ioctl 16 29
    clone3 435 435              mmap 9 222
"""
_DENIED = """
    ptrace 101 117              process_vm_readv 310 270    process_vm_writev 311 271
    process_madvise 440 440     process_mrelease 448 448    kcmp 312 272
    pidfd_getfd 438 438         pidfd_send_signal 424 424   move_pages 279 239
    migrate_pages 256 238

    unshare 272 97              setns 308 268               mount 165 40
    umount2 166 39              pivot_root 155 41           chroot 161 51
    open_tree 428 428           move_mount 429 429          fsopen 430 430
    fsconfig 431 431            fsmount 432 432             fspick 433 433
    mount_setattr 442 442       open_by_handle_at 304 265   name_to_handle_at 303 264
    fanotify_init 300 262       fanotify_mark 301 263       quotactl 179 60
    quotactl_fd 443 443

    add_key 248 217             request_key 249 218         keyctl 250 219
    io_uring_setup 425 425      io_uring_enter 426 426      io_uring_register 427 427
    io_setup 206 0              bpf 321 280                 perf_event_open 298 241
    userfaultfd 323 282         seccomp 317 277             remap_file_pages 216 234
    lookup_dcookie 212 18

    memfd_create 319 279        memfd_secret 447 447        vmsplice 278 75
    shmget 29 194
    shmat 30 196                shmctl 31 195               shmdt 67 197
    msgget 68 186               msgsnd 69 189               msgrcv 70 188
    msgctl 71 187               semget 64 190               semop 65 193
    semtimedop 220 192          semctl 66 191               mq_open 240 180
    mq_unlink 241 181           mq_timedsend 242 182        mq_timedreceive 243 183
    mq_notify 244 184           mq_getsetattr 245 185

    init_module 175 105         finit_module 313 273        delete_module 176 106
    kexec_load 246 104          kexec_file_load 320 294     reboot 169 142
    swapon 167 224              swapoff 168 225             acct 163 89
    syslog 103 116              settimeofday 164 170        clock_settime 227 112
    adjtimex 159 171            clock_adjtime 305 266       sethostname 170 161
    setdomainname 171 162       vhangup 153 58              nfsservctl 180 42
    iopl 172 -                  ioperm 173 -                modify_ldt 154 -
    uselib 134 -                ustat 136 -                 sysfs 139 -
    create_module 174 -         get_kernel_syms 177 -       query_module 178 -
    _sysctl 156 -
"""

# CLONE_NEW…: NS, CGROUP, UTS, IPC, USER, PID, NET. <linux/sched.h>
_NEW_NAMESPACES = 0x7E020000
_UNIX, _INET, _INET6 = 1, 2, 10
_STREAM, _DATAGRAM, _PACKETS, _KINDS = 1, 2, 5, 0xF
_TCP, _UDP = 6, 17
# fcntl and ioctl: whom to signal when a file is ready, which ends processes as `kill` does, and
# the size of a pipe.
_DENIED_FCNTLS = (8, 10, 15, 1031)  # F_SETOWN, F_SETSIG, F_SETOWN_EX, F_SETPIPE_SZ
_DENIED_IOCTLS = (0x8901, 0x8902, 0x5412, 0x541C, 0x5423)  # …OWN, SIOCSPGRP, TIOCSTI, LINUX, SETD
_DUMPABLE_OPTION, _SECCOMP_OPTION = 4, 22  # PR_SET_DUMPABLE, PR_SET_SECCOMP
_SOCKET_LEVEL = 1
# SO_SNDBUF, SO_RCVBUF, SO_ATTACH_FILTER, _BPF, _REUSEPORT_CBPF, _REUSEPORT_EBPF
_DENIED_OPTIONS = (7, 8, 26, 50, 51, 52)
_SHARED, _ANONYMOUS, _HUGE_PAGES = 0x1, 0x20, 0x40000  # MAP_…

_LOAD, _AND, _RETURN = 0x20, 0x54, 0x06
_EQUAL, _MORE, _AT_LEAST, _ANY_BIT = 0x15, 0x25, 0x35, 0x45
_ALLOW, _ERROR = 0x7FFF0000, 0x00050000  # SECCOMP_RET_ALLOW, SECCOMP_RET_ERRNO

_Code = list[bytes]


def numbers(machine: str) -> dict[str, int]:
    """Return the numbers of the system calls that the filter knows on a machine, by name.

    Raises:
        OSError: the machine is neither x86_64 nor aarch64.
    """
    if machine not in _ARCHITECTURES:
        raise OSError(f"no filter of system calls is known for {machine}")
    words = iter((_NUMBERS + _DENIED).split())
    column = _ARCHITECTURES[machine][0]
    rows = ((name, (next(words), next(words))[column]) for name in words)
    return {name: int(number) for name, number in rows if number != "-"}


@cache
def compiled(machine: str = platform.machine()) -> bytes:
    """Return the filter's instructions.

    They deny signals to the process that loads the filter, whose number is to be put in place of
    `OWNER` and of `-OWNER`, each 4 bytes in the machine's order.

    Raises:
        OSError: the machine is neither x86_64 nor aarch64.
    """
    number = numbers(machine)
    checks = _checks()
    code = [
        _do(_LOAD, 4),
        _jump(_EQUAL, _ARCHITECTURES[machine][1], 1, 0),
        _do(_RETURN, _ERROR | ENOSYS),
        _do(_LOAD, 0),
        _jump(_AT_LEAST, LAST + 1, 0, 1),  # so are x32 calls, from 2^30 on
        _do(_RETURN, _ERROR | ENOSYS),
    ]
    for name in number:
        body = checks.get(name, [_do(_RETURN, _ERROR | EPERM)])
        code += [_jump(_EQUAL, number[name], 0, len(body)), *body]
    return b"".join([*code, _do(_RETURN, _ALLOW)])


def _checks() -> dict[str, _Code]:
    """Return what decides calls by their arguments, by name. Each ends with a decision."""
    # The process, its group, and every process of the user.
    targets = [number & 0xFFFFFFFF for number in (OWNER, -OWNER, -1)]
    signals = ("kill", "tkill", "tgkill", "rt_sigqueueinfo", "rt_tgsigqueueinfo", "pidfd_open")
    return {name: _deny_any(0, targets) + _allow() for name in signals} | {
        "clone3": [_do(_RETURN, _ERROR | ENOSYS)],
        "clone": [_argument(0), _jump(_ANY_BIT, _NEW_NAMESPACES, 0, 1), *_deny(), *_allow()],
        # Limits of other processes: with a small one, the kernel kills them.
        "prlimit64": _deny_other(0, [0]) + _allow(),
        # A process that hides from its own user could not be looked at.
        "prctl": [
            *_deny_any(0, [_SECCOMP_OPTION]),
            _jump(_EQUAL, _DUMPABLE_OPTION, 0, 3),
            *_deny_any(1, [0]),
            *_allow(),
        ],
        "personality": _deny_other(0, [0, 0xFFFFFFFF]) + _allow(),
        "socket": [
            *_deny_other(0, [_UNIX, _INET, _INET6]),
            *_deny_other(1, [_STREAM, _DATAGRAM, _PACKETS], mask=_KINDS),
            _jump(_EQUAL, _PACKETS, 0, 3),  # of the internet they are SCTP
            _argument(0),
            _jump(_EQUAL, _UNIX, 1, 0),
            *_deny(),
            *_deny_other(2, [0, _TCP, _UDP]),
            *_allow(),
        ],
        "socketpair": _deny_other(0, [_UNIX]) + _allow(),
        "setsockopt": [
            _argument(1),
            _jump(_EQUAL, _SOCKET_LEVEL, 1, 0),
            *_allow(),
            *_deny_any(2, _DENIED_OPTIONS),
            *_allow(),
        ],
        # `memory.py` cannot see all of a large object. The pool of huge pages is the whole node's.
        "mmap": [
            _argument(3),
            _jump(_ANY_BIT, _HUGE_PAGES, 6, 0),
            _jump(_ANY_BIT, _ANONYMOUS, 0, 6),
            _jump(_ANY_BIT, _SHARED, 0, 5),
            _do(_LOAD, 16 + 8 + 4),  # the length's upper half
            _jump(_EQUAL, 0, 0, 2),
            _argument(1),
            _jump(_MORE, SHARED_BYTES, 0, 1),
            _do(_RETURN, _ERROR | ENOMEM),
            *_allow(),
        ],
        "fcntl": _deny_any(1, _DENIED_FCNTLS) + _allow(),
        "ioctl": _deny_any(1, _DENIED_IOCTLS) + _allow(),
    }


def _do(code: int, value: int) -> bytes:
    return _jump(code, value, 0, 0)


def _jump(code: int, value: int, if_true: int, if_false: int) -> bytes:
    """Return one instruction; the jumps say how many of the next ones to skip."""
    return struct.pack("=HBBI", code, if_true, if_false, value)


def _argument(index: int) -> bytes:
    """Load the lower half of an argument: the kernel reads no more of those that are checked."""
    return _do(_LOAD, 16 + 8 * index)


def _allow() -> _Code:
    return [_do(_RETURN, _ALLOW)]


def _deny() -> _Code:
    return [_do(_RETURN, _ERROR | EPERM)]


def _deny_any(index: int, values: Iterable[int]) -> _Code:
    """Deny a call whose argument has one of the values."""
    each = [[_jump(_EQUAL, value, 0, 1), *_deny()] for value in values]
    return [_argument(index), *(step for steps in each for step in steps)]


def _deny_other(index: int, values: list[int], mask: int = 0xFFFFFFFF) -> _Code:
    """Deny a call whose argument has none of the values, after `mask` is applied."""
    left = range(len(values), 0, -1)
    each = [_jump(_EQUAL, value, skip, 0) for value, skip in zip(values, left, strict=True)]
    return [_argument(index), _do(_AND, mask), *each, *_deny()]
