"""The joint use of a program's processes: memory, which is limited, and CPU time.

The kernel's limits are for one process each. A control group would limit the sum, but Slurm hands
none over to a job's user. So the sum is read from /proc, twenty times a second during a run.

What is counted of each process, once for pages that processes share: what is in memory or swapped
out, and the page tables. In addition, what a process may hold without having it in its memory:

- Anonymous shared memory, at the full size of each object that any process maps.
- Buffers of pipes and sockets: `DESCRIPTOR_BYTES` for each open file.
- Buffers of the sockets of its network, which outlive the descriptors while data waits in them for
  somebody to accept: `DESCRIPTOR_BYTES` for each, `TCP_BYTES` for one of TCP.
- What the kernel keeps of each file that epoll watches: `WATCHED_BYTES`.
- What it keeps of each mapping: `MAPPING_BYTES`, and `LINK_BYTES` for each process.
- What it keeps of each file, link and folder in memory (/tmp, /dev/shm): `INODE_BYTES`.

The content of files in memory is limited by the size of these file systems. Other objects of the
kernel are not counted. For these, and for a program that is faster than the watch, a program is the
first process that the kernel ends when memory runs out.
"""

import contextlib
import os
import re
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final

LOOK_SECONDS: Final = 0.05
"""Time between two looks at a program's memory. Looks take at most half of one core's time."""

READINGS: Final = 3
"""Readings in a row that must be over the limit. Of pages that n processes share each has 1/n, so
the sum is too large when some of them end between the readings of two."""

DESCRIPTOR_BYTES: Final = 1 << 18
"""Memory behind one open file: the default buffer of a socket (net.core.wmem_default is 208 KiB),
which is more than that of a pipe (64 KiB, pipe(7))."""

TCP_BYTES: Final = 2 << 20
"""Memory behind one TCP socket. Over loopback, a connection that nobody reads takes 2.6 MiB."""

WATCHED_BYTES: Final = 8 << 10
"""Counted for one file that epoll watches. It has some 200 bytes, but all processes of a user share
a number of them that fits into 4% of the machine's memory (epoll(7))."""

MAPPING_BYTES: Final = 256
"""Memory behind one mapping (`struct vm_area_struct`). A process may have 65,530 mappings."""

LINK_BYTES: Final = 64
"""Memory that links one mapping to an ancestor's (`struct anon_vma_chain`)."""

INODE_BYTES: Final = 2 << 10
"""Memory behind one file in memory: its inode has some 700 bytes, its name up to 512."""

SHARED_BYTES: Final = 16 << 20
"""Least size with which an object of anonymous shared memory is counted. Parts of it that nobody
maps any more stay in memory and are not seen: larger objects are refused where the filter of
system calls works."""

_ADDRESS_SPACE = re.compile(rb"^VmSize:\s+(\d+) kB$", re.MULTILINE)
_PAGES = re.compile(rb"^(?:VmRSS|VmSwap):\s+(\d+) kB$", re.MULTILINE)
_PAGE_TABLES = re.compile(rb"^VmPTE:\s+(\d+) kB$", re.MULTILINE)
_SLOTS = re.compile(rb"^FDSize:\s+(\d+)$", re.MULTILINE)
_SOCKETS = re.compile(rb"^(sockets: used|TCP6?: inuse) (\d+)", re.MULTILINE)
_RESIDENT = re.compile(rb"^(?:Pss|SwapPss):\s+(\d+) kB$", re.MULTILINE)
_RESIDENT_SHARED = re.compile(rb"^Pss_Shmem:\s+(\d+) kB$", re.MULTILINE)
# Anonymous shared memory, System V segments, and files of memfd_create(2).
_SHARED = re.compile(
    rb"^([0-9a-f]+)-([0-9a-f]+) ...s ([0-9a-f]+) (\S+ \d+) +(?:/dev/zero|/SYSV|/memfd:)",
    re.MULTILINE,
)


class OverMemory(Exception):  # not an error: the program has used too much
    """All processes of a program together have used more memory than it may use."""


class Watch:
    """A watch over a process and all its descendants, from the start of their program.

    It also makes them the first that the kernel ends when memory runs out: by their score, which
    they pass on to processes that they start. That needs no privilege. They can lower it again, so
    each look raises it.

    It keeps their file systems in memory and the counts of their sockets open until it is closed:
    once seen, no process can hide them.
    """

    def __init__(self, process: int, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self._process = process
        self._cpu_seconds_before = _cpu_seconds(process)
        self._next_look = time.monotonic() + LOOK_SECONDS
        self._in_memory: list[int] = []
        self._sockets: list[int] = []
        processes = list(members(process))
        _offer_to_kernel(processes)
        self._find_in_memory(processes)

    def close(self) -> None:
        """Let go of the file systems and of the counts of sockets."""
        for opened in (self._in_memory, self._sockets):
            while opened:
                os.close(opened.pop())

    def seconds_left(self) -> float:
        """Return the time until the next look; 0 if it is due."""
        return max(0.0, self._next_look - time.monotonic())

    def look(self) -> None:
        """Read the memory in use, if a look is due.

        Raises:
            OverMemory: the processes use more than the limit.
        """
        began = time.monotonic()
        if began < self._next_look:
            return
        if all(self._is_over() for _ in range(READINGS)):
            raise OverMemory
        now = time.monotonic()
        self._next_look = now + max(LOOK_SECONDS, now - began)

    def _is_over(self) -> bool:
        processes = list(members(self._process))
        _offer_to_kernel(processes)
        self._find_in_memory(processes)
        shared = INODE_BYTES * sum(map(_inodes, self._in_memory))
        shared += sum(map(_socket_bytes, self._sockets))
        return shared + used_bytes(processes, self.limit_bytes - shared) > self.limit_bytes

    def _find_in_memory(self, processes: Iterable[int]) -> None:
        """Open the /tmp and /dev/shm of the processes, and their sockets' counts.

        Only when they have their own: file systems and networks are made together.
        """
        if self._in_memory:
            return
        for process in processes:
            if opened := _opened_in_memory(process):
                self._in_memory, self._sockets = opened, _opened_counts(process)
                return

    def cpu_seconds(self) -> float:
        """Return the CPU time that the program has had so far."""
        return _cpu_seconds(self._process) - self._cpu_seconds_before


def _opened_in_memory(process: int) -> list[int]:
    """Return descriptors of a process's own file systems in memory; none if they are not there."""
    opened = []
    with contextlib.suppress(OSError):  # it has ended, is hidden, or has not made them yet
        for path in ("/tmp", "/dev/shm"):  # noqa: S108
            folder = os.open(f"/proc/{process}/root{path}", os.O_PATH | os.O_CLOEXEC)
            opened.append(folder)
            if os.fstat(folder).st_dev == os.stat(path).st_dev:  # noqa: PTH116
                break  # this machine's
        else:
            return opened
    for folder in opened:
        os.close(folder)
    return []


def _opened_counts(process: int) -> list[int]:
    """Return descriptors of the files that count the sockets of a process's network."""
    opened = []
    for name in ("sockstat", "sockstat6"):
        with contextlib.suppress(OSError):  # it has ended, or knows no IPv6
            opened.append(os.open(f"/proc/{process}/net/{name}", os.O_RDONLY | os.O_CLOEXEC))
    return opened


def _socket_bytes(counts: int) -> int:
    """Return what the sockets of a network may hold, by a file that counts them.

    A connection counts although no process has it open: its data waits to be accepted.
    """
    try:
        found = _SOCKETS.findall(os.pread(counts, 1 << 12, 0))
    except OSError:
        return 0
    each = {b"sockets: used": DESCRIPTOR_BYTES}
    return sum(each.get(kind, TCP_BYTES) * int(count) for kind, count in found)


def _inodes(file_system: int) -> int:
    """Return the number of files, links and folders in a file system."""
    status = os.fstatvfs(file_system)
    return status.f_files - status.f_ffree


def members(process: int) -> Iterator[int]:
    """Yield a process and its descendants, each after its parent."""
    left = [process]
    while left:
        member = left.pop()
        try:
            for thread in os.listdir(f"/proc/{member}/task"):  # noqa: PTH208  # a tenth of the time
                left += map(int, _read(member, f"task/{thread}/children").split())
        except OSError:
            left += _children_of_hidden(member)
        yield member


def _children_of_hidden(process: int) -> Iterator[int]:
    """Yield the children of a hidden process; none if the process has ended.

    Where /proc is mounted with `hidepid`, the process that judges a program is hidden from its own
    user, but the program is not. Few processes are to be seen there, so all are looked at.
    """
    try:
        os.kill(process, 0)
    except OSError:
        return
    for name in os.listdir("/proc"):  # noqa: PTH208  # as above
        if name.isdecimal() and _parent(int(name)) == process:
            yield int(name)


def _parent(process: int) -> int | None:
    """Return the parent of a process, None if that has ended."""
    fields = _read(process, "stat").rpartition(b") ")[2].split()  # from the third on, see proc(5)
    return int(fields[1]) if fields else None


def used_bytes(processes: Sequence[int], enough: int = 0) -> int:
    """Return the memory of these processes together, in bytes.

    Up to `enough` the answer may be too large: their address space, which is cheap to read. More
    than `enough` is exact, except the parts that are estimated (see the module's text).
    """
    states = [_read(process, "status") for process in processes]
    held = sum(_sum(_PAGE_TABLES, state) for state in states) + _mapped_bytes(processes)
    held += sum(map(_bytes_behind_files, processes, states))
    bound = held + sum(_sum(_ADDRESS_SPACE, state) for state in states)
    return bound if bound <= enough else held + sum(map(_resident_bytes, processes))


def _offer_to_kernel(processes: Iterable[int]) -> None:
    """Make processes the first that the kernel ends when memory runs out."""
    for process in processes:
        with contextlib.suppress(OSError):  # it has ended
            Path(f"/proc/{process}/oom_score_adj").write_text("1000")


def _cpu_seconds(process: int) -> float:
    """Return the CPU time of a process and its descendants, with those that were waited for."""
    ticks = 0
    for member in members(process):
        # utime, stime, cutime and cstime of proc_pid_stat(5), counted after the command's name.
        ticks += sum(map(int, _read(member, "stat").rpartition(b") ")[2].split()[11:15]))
    return ticks / os.sysconf("SC_CLK_TCK")


def _bytes_behind_files(process: int, state: bytes) -> int:
    """Return what the open files of a process may hold; 0 if it has ended, or is ending.

    A process that hides from its own user counts with all files that it has had room for. The
    kernel also hides the files of an ending process, after taking away its address space.
    """
    folder = f"/proc/{process}/fd"
    watched = 0
    try:
        names = os.listdir(folder)  # noqa: PTH208  # as above
    except PermissionError:
        ending = _ADDRESS_SPACE.search(_read(process, "status")) is None
        return 0 if ending else DESCRIPTOR_BYTES * sum(map(int, _SLOTS.findall(state)))
    except OSError:
        return 0
    for name in names:
        with contextlib.suppress(OSError):  # it is closed by now
            if os.readlink(f"{folder}/{name}") == "anon_inode:[eventpoll]":  # noqa: PTH115
                watched += _read(process, f"fdinfo/{name}").count(b"tfd:")
    return DESCRIPTOR_BYTES * len(names) + WATCHED_BYTES * watched


def _resident_bytes(process: int) -> int:
    """Return a process's part of the pages that it has in memory or in swap.

    Shared memory is left out where the kernel tells (Linux 5.4 or later): it is counted by object.
    A process that hides from its own user counts with all pages that it has, shared or not.
    """
    rollup = _read(process, "smaps_rollup")
    if not rollup:
        return _sum(_PAGES, _read(process, "status"))  # nothing by now, if it has ended
    return _sum(_RESIDENT, rollup) - _sum(_RESIDENT_SHARED, rollup)


def _mapped_bytes(processes: Sequence[int]) -> int:
    """Return the size of all objects of anonymous shared memory that any of the processes maps.

    What the kernel keeps of all mappings is added: a process has a link for each of its own and
    each ancestor's.
    """
    sizes: dict[bytes, int] = {}
    mappings = 0
    for process in processes:
        maps = _read(process, "maps")
        mappings += maps.count(b"\n")
        if b"(deleted)" in maps:  # as such objects are; the search takes longer
            for start, stop, offset, key in _SHARED.findall(maps):
                end = int(offset, 16) + int(stop, 16) - int(start, 16)
                sizes[key] = max(sizes.get(key, SHARED_BYTES), end)
    return sum(sizes.values()) + (MAPPING_BYTES + LINK_BYTES * len(processes)) * mappings


def _sum(field: re.Pattern[bytes], text: bytes) -> int:
    """Return the sum of what a pattern finds in a file of /proc, in bytes; there it is in KiB."""
    return sum(map(int, field.findall(text))) << 10


def _read(process: int, name: str) -> bytes:
    """Return the content of a file of /proc; nothing if the process has ended or hides it."""
    pieces = []
    try:
        # Faster than a file object: this is called for every process at every look.
        file = os.open(f"/proc/{process}/{name}", os.O_RDONLY | os.O_CLOEXEC)
        try:
            while piece := os.read(file, 1 << 16):
                pieces.append(piece)
        finally:
            os.close(file)
    except OSError:
        return b""
    return b"".join(pieces)
