"""The filter of system calls that a confined process runs under. Nothing here does I/O.

Each system call, and each command of fcntl, ioctl and prctl, is allowed by name here or is denied.
A program needs files, processes, threads, signals, sockets and time. It does not need what attacks
on kernels and sandboxes begin with (namespaces, mounts, other processes' memory, keys, io_uring,
BPF), memory that no limit counts (System V objects, extended attributes, locked pages), what
reaches beyond its own processes (leases and watches on files, priorities of others), or the
machine's settings.

What is denied fails with EPERM; a command fails like one that the kernel does not know. What is
newer than this table fails with ENOSYS, as on an older kernel, and so does clone3, whose flags a
filter cannot see: the C library then uses clone. Locks of files succeed and lock nothing: one on a
file that is shown inside, such as a package's, would keep the user's other processes waiting, and
the kernel's memory for each is in no count.

A filter is a program of the kernel's classic BPF (Documentation/userspace-api/seccomp_filter.rst):
instructions of 8 bytes that read `struct seccomp_data` and return a decision. This module assembles
one itself. The bindings of libseccomp would do it too, but need that library on each node.
"""

import platform
import struct
from collections.abc import Iterable, Iterator, Sequence
from errno import EINVAL, ENOMEM, ENOSYS, ENOTTY, EPERM
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
_ALLOWED = """
    read 0 63                   write 1 64                  open 2 -
    close 3 57                  openat 257 56               openat2 437 437
    creat 85 -                  close_range 436 436         lseek 8 62
    pread64 17 67               pwrite64 18 68              readv 19 65
    writev 20 66                preadv 295 69               pwritev 296 70
    preadv2 327 286             pwritev2 328 287            stat 4 -
    fstat 5 80                  lstat 6 -                   newfstatat 262 79
    statx 332 291               statfs 137 43               fstatfs 138 44
    access 21 -                 faccessat 269 48            faccessat2 439 439
    getdents 78 -               getdents64 217 61           getcwd 79 17
    chdir 80 49                 fchdir 81 50                dup 32 23
    dup2 33 -                   dup3 292 24                 pipe 22 -
    pipe2 293 59                truncate 76 45              ftruncate 77 46
    fallocate 285 47            fsync 74 82                 fdatasync 75 83
    sync_file_range 277 84      fadvise64 221 223           readahead 187 213
    copy_file_range 326 285     sendfile 40 71              splice 275 76
    tee 276 77                  rename 82 -                 renameat 264 38
    renameat2 316 276           mkdir 83 -                  mkdirat 258 34
    rmdir 84 -                  link 86 -                   linkat 265 37
    unlink 87 -                 unlinkat 263 35             symlink 88 -
    symlinkat 266 36            readlink 89 -               readlinkat 267 78
    mknod 133 -                 mknodat 259 33              chmod 90 -
    fchmod 91 52                fchmodat 268 53             chown 92 -
    fchown 93 55                lchown 94 -                 fchownat 260 54
    umask 95 166                utime 132 -                 utimes 235 -
    futimesat 261 -             utimensat 280 88            getxattr 191 8
    lgetxattr 192 9             fgetxattr 193 10            listxattr 194 11
    llistxattr 195 12           flistxattr 196 13

    mprotect 10 226             munmap 11 215               brk 12 214
    mremap 25 216               msync 26 227                mincore 27 232
    madvise 28 233              get_mempolicy 239 236       pkey_mprotect 329 288
    pkey_alloc 330 289          pkey_free 331 290

    fork 57 -                   vfork 58 -                  execve 59 221
    execveat 322 281            exit 60 93                  exit_group 231 94
    wait4 61 260                waitid 247 95               getpid 39 172
    getppid 110 173             gettid 186 178              getpgrp 111 -
    getpgid 121 155             setpgid 109 154             getsid 124 156
    setsid 112 157              getuid 102 174              geteuid 107 175
    getgid 104 176              getegid 108 177             getresuid 118 148
    getresgid 120 150           getgroups 115 158           capget 125 90
    sched_yield 24 124          sched_getaffinity 204 123   sched_getparam 143 121
    sched_getscheduler 145 120  sched_getattr 315 275       sched_get_priority_max 146 125
    sched_get_priority_min 147 126 sched_rr_get_interval 148 127 getpriority 140 141
    ioprio_get 252 31           getrlimit 97 163            setrlimit 160 164
    getrusage 98 165            times 100 153               sysinfo 99 179
    uname 63 160                getcpu 309 168              membarrier 324 283
    rseq 334 293                arch_prctl 158 -            set_tid_address 218 96
    set_robust_list 273 99      get_robust_list 274 100     futex 202 98
    futex_waitv 449 449         restart_syscall 219 128

    rt_sigaction 13 134         rt_sigprocmask 14 135       rt_sigreturn 15 139
    rt_sigpending 127 136       rt_sigtimedwait 128 137     rt_sigsuspend 130 133
    sigaltstack 131 132         pause 34 -                  signalfd 282 -
    signalfd4 289 74            alarm 37 -                  getitimer 36 102
    setitimer 38 103            nanosleep 35 101            gettimeofday 96 169
    time 201 -                  clock_gettime 228 113       clock_getres 229 114
    clock_nanosleep 230 115     timer_create 222 107        timer_settime 223 110
    timer_gettime 224 108       timer_getoverrun 225 109    timer_delete 226 111
    timerfd_create 283 85       timerfd_settime 286 86      timerfd_gettime 287 87
    select 23 -                 pselect6 270 72             poll 7 -
    ppoll 271 73                epoll_create 213 -          epoll_create1 291 20
    epoll_ctl 233 21            epoll_wait 232 -            epoll_pwait 281 22
    epoll_pwait2 441 441        eventfd 284 -               eventfd2 290 19
    connect 42 203              accept 43 202               accept4 288 242
    bind 49 200                 listen 50 201               shutdown 48 210
    getsockname 51 204          getpeername 52 205          getsockopt 55 209
    sendto 44 206               sendmsg 46 211              sendmmsg 307 269
    recvfrom 45 207             recvmsg 47 212              recvmmsg 299 243
    getrandom 318 278
"""
# Decided by their arguments, in `_checks`.
_CHECKED = """
    clone 56 220                clone3 435 435              prctl 157 167
    kill 62 129                 tkill 200 130               tgkill 234 131
    rt_sigqueueinfo 129 138     rt_tgsigqueueinfo 297 240   pidfd_open 434 434
    prlimit64 302 261           setpriority 141 140         sched_setaffinity 203 122
    sched_setparam 142 118      sched_setscheduler 144 119  sched_setattr 314 274
    personality 135 92          fcntl 72 25                 ioctl 16 29
    flock 73 32                 mmap 9 222                  socket 41 198
    socketpair 53 199           setsockopt 54 208
"""

# CLONE_NEW…: NS, CGROUP, UTS, IPC, USER, PID, NET. <linux/sched.h>
_NEW_NAMESPACES = 0x7E020000
_UNIX, _INET, _INET6 = 1, 2, 10
_STREAM, _DATAGRAM, _PACKETS, _KINDS = 1, 2, 5, 0xF
_TCP, _UDP = 6, 17
# F_DUPFD, F_GETFD to F_GETLK, F_GETOWN, F_GETSIG, F_OFD_GETLK, F_GETLEASE, F_DUPFD_CLOEXEC,
# F_GETPIPE_SZ, F_GET_SEALS
_FCNTLS = (0, *range(1, 6), 9, 11, 36, 1025, 1030, 1032, 1034)
_LOCKS = (6, 7, 37, 38)  # F_SETLK, F_SETLKW, F_OFD_SETLK, F_OFD_SETLKW
# TCGETS, TCGETS2, TIOCGPGRP, TIOCGWINSZ, FIONREAD, FIONBIO, FIONCLEX, FIOCLEX, and what tells of
# interfaces: SIOCGIF…NAME, CONF, FLAGS, ADDR, BRDADDR, NETMASK, MTU, HWADDR, INDEX
_IOCTLS = [0x5401, 0x802C542A, 0x540F, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451]
_IOCTLS += [0x8910, 0x8912, 0x8913, 0x8915, 0x8919, 0x891B, 0x8921, 0x8927, 0x8933]
# PR_SET_PDEATHSIG and GET, GET_DUMPABLE, SET_NAME and GET, GET_SECCOMP, CAPBSET_READ,
# SET_TIMERSLACK and GET, SET_NO_NEW_PRIVS and GET, SET_THP_DISABLE and GET, SET_VMA
_PRCTLS = (1, 2, 3, 15, 16, 21, 23, 29, 30, 38, 39, 41, 42, 0x53564D41)
_SET_DUMPABLE = 4
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
    return _numbers(_ALLOWED + _CHECKED, machine)


def _numbers(table: str, machine: str) -> dict[str, int]:
    words = iter(table.split())
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
    code = [
        _do(_LOAD, 4),
        _jump(_EQUAL, _ARCHITECTURES[machine][1], 1, 0),
        _do(_RETURN, _ERROR | ENOSYS),
        _do(_LOAD, 0),
        _jump(_AT_LEAST, LAST + 1, 0, 1),  # so are x32 calls, from 2^30 on
        _do(_RETURN, _ERROR | ENOSYS),
    ]
    for first, last in _ranges(_numbers(_ALLOWED, machine).values()):
        code += [_jump(_AT_LEAST, first, 0, 2), _jump(_MORE, last, 1, 0), *_allow()]
    for name, body in _checks().items():
        code += [_jump(_EQUAL, number[name], 0, len(body)), *body]
    return b"".join([*code, *_deny()])


def _ranges(numbers: Iterable[int]) -> Iterator[tuple[int, int]]:
    """Yield the first and the last of numbers that follow one another."""
    ordered = sorted(numbers)
    breaks = [0, *(at for at in range(1, len(ordered)) if ordered[at] > ordered[at - 1] + 1)]
    for start, stop in zip(breaks, [*breaks[1:], len(ordered)], strict=True):
        yield ordered[start], ordered[stop - 1]


def _checks() -> dict[str, _Code]:
    """Return what decides calls by their arguments, by name. Each ends with a decision."""
    # The process, its group, and every process of the user.
    targets = [number & 0xFFFFFFFF for number in (OWNER, -OWNER, -1)]
    signals = ("kill", "tkill", "tgkill", "rt_sigqueueinfo", "rt_tgsigqueueinfo", "pidfd_open")
    # Of other processes. With small limits, the kernel kills them.
    others = ["prlimit64", "sched_setaffinity", "sched_setparam", "sched_setscheduler"]
    others += ["sched_setattr"]
    return {name: _deny_any(0, targets) + _allow() for name in signals} | {
        "clone3": [_do(_RETURN, _ERROR | ENOSYS)],
        "clone": [_argument(0), _jump(_ANY_BIT, _NEW_NAMESPACES, 0, 1), *_deny(), *_allow()],
        **{name: _deny_other(0, [0]) + _allow() for name in others},
        # PRIO_PROCESS, and this one.
        "setpriority": _deny_other(0, [0]) + _deny_other(1, [0]) + _allow(),
        # A process that hides from its own user could not be looked at.
        "prctl": [
            _argument(0),
            _jump(_EQUAL, _SET_DUMPABLE, 0, 4),
            *_deny_any(1, [0]),
            *_allow(),
            *_deny_other(0, _PRCTLS, error=EINVAL),
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
        "fcntl": [
            *_deny_any(1, _LOCKS, error=0),
            *_deny_other(1, _FCNTLS, error=EINVAL),
            *_allow(),
        ],
        "ioctl": _deny_other(1, _IOCTLS, error=ENOTTY) + _allow(),
        "flock": _deny(error=0),  # no error: 0 is returned, and nothing is done
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


def _deny(error: int = EPERM) -> _Code:
    return [_do(_RETURN, _ERROR | error)]


def _deny_any(index: int, values: Iterable[int], error: int = EPERM) -> _Code:
    """Deny a call whose argument has one of the values."""
    each = [[_jump(_EQUAL, value, 0, 1), *_deny(error)] for value in values]
    return [_argument(index), *(step for steps in each for step in steps)]


def _deny_other(
    index: int, values: Sequence[int], mask: int = 0xFFFFFFFF, error: int = EPERM
) -> _Code:
    """Deny a call whose argument has none of the values, after `mask` is applied."""
    left = range(len(values), 0, -1)
    each = [_jump(_EQUAL, value, skip, 0) for value, skip in zip(values, left, strict=True)]
    return [_argument(index), _do(_AND, mask), *each, *_deny(error)]
