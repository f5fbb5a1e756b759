"""What all processes of a program use together: memory, which is limited, and CPU time.

The kernel's limits are for one process each. A control group would limit the sum, but Slurm hands
none over to a job's user. So the sum is read from /proc, some times a second while a program runs.

What is counted of each process, once for pages that processes share: what is in memory or swapped
out, and the page tables. In addition, what a process may hold without having it in its memory:

- Anonymous shared memory, at the full size of each object that any process maps.
- Buffers of pipes and sockets: `DESCRIPTOR_BYTES` for each open file.

Files in memory (/tmp, /dev/shm) are limited by the size of these file systems. Other objects of the
kernel are not counted. For these, and for a program that is faster than the watch, a program is the
first process that the kernel ends when memory runs out.
"""

import contextlib
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

LOOK_SECONDS: Final = 0.05
"""Time between two looks at a program's memory. Looks take at most half of one core's time."""

DESCRIPTOR_BYTES: Final = 1 << 18
"""Memory behind one open file: the default buffer of a socket (net.core.wmem_default is 208 KiB),
which is more than that of a pipe (64 KiB, pipe(7))."""

SHARED_BYTES: Final = 16 << 20
"""Least size with which an object of anonymous shared memory is counted. Parts of it that nobody
maps any more stay in memory and are not seen: larger objects are refused where the filter of
system calls works."""

_FIELD = re.compile(rb"^(\w+):\s+(\d+) kB$", re.MULTILINE)
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
    they pass on to processes that they start. That needs no privilege.
    """

    def __init__(self, process: int, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self._process = process
        self._cpu_seconds_before = _cpu_seconds(process)
        self._next_look = time.monotonic() + LOOK_SECONDS
        for member in _members(process):
            with contextlib.suppress(OSError):  # it has ended
                Path(f"/proc/{member}/oom_score_adj").write_text("1000")

    def seconds_left(self) -> float:
        """Return the time until the next look; 0 if it is due."""
        return max(0.0, self._next_look - time.monotonic())

    def look(self) -> None:
        """Read the memory in use, if a look is due.

        Raises:
            OverMemory: it is more than the limit.
        """
        began = time.monotonic()
        if began < self._next_look:
            return
        if used_bytes(self._process, self.limit_bytes) > self.limit_bytes:
            raise OverMemory
        now = time.monotonic()
        self._next_look = now + max(LOOK_SECONDS, now - began)

    def cpu_seconds(self) -> float:
        """Return the CPU time that the program has had so far."""
        return _cpu_seconds(self._process) - self._cpu_seconds_before


def used_bytes(process: int, enough: int = 0) -> int:
    """Return the memory of a process and its descendants, in bytes.

    Up to `enough` the answer may be too large: their address space, which is cheap to read. More
    than `enough` is exact but for the parts that are estimated (see the module's text).
    """
    members = list(_members(process))
    held = sum(map(_held_bytes, members)) + _shared_bytes(members)
    bound = held + sum(_fields(member, "status").get("VmSize", 0) for member in members)
    return bound if bound <= enough else held + sum(map(_resident_bytes, members))


def _cpu_seconds(process: int) -> float:
    """Return the CPU time of a process and its descendants, with those that were waited for."""
    ticks = 0
    for member in _members(process):
        # utime, stime, cutime and cstime of proc_pid_stat(5), counted after the command's name.
        ticks += sum(map(int, _read(member, "stat").rpartition(b") ")[2].split()[11:15]))
    return ticks / os.sysconf("SC_CLK_TCK")


def _members(process: int) -> Iterator[int]:
    """Yield a process and its descendants."""
    yield process
    with contextlib.suppress(OSError):  # it has ended
        for thread in os.listdir(f"/proc/{process}/task"):  # noqa: PTH208  # a tenth of the time
            for child in _read(process, f"task/{thread}/children").split():
                yield from _members(int(child))


def _held_bytes(process: int) -> int:
    """Return the memory of the kernel that a process holds: page tables and buffers."""
    descriptors = 0
    with contextlib.suppress(OSError):  # it has ended, or hides from its own user
        descriptors = len(os.listdir(f"/proc/{process}/fd"))  # noqa: PTH208  # as above
    return _fields(process, "status").get("VmPTE", 0) + DESCRIPTOR_BYTES * descriptors


def _resident_bytes(process: int) -> int:
    """Return a process's part of the pages that it has in memory or in swap.

    Shared memory is left out where the kernel tells (Linux 5.4 or later): it is counted by object.
    A process that hides from its own user counts with its whole address space.
    """
    rollup = _fields(process, "smaps_rollup")
    if rollup:
        return rollup["Pss"] + rollup.get("SwapPss", 0) - rollup.get("Pss_Shmem", 0)
    return _fields(process, "status").get("VmSize", 0)


def _shared_bytes(processes: list[int]) -> int:
    """Return the size of all objects of anonymous shared memory that any of the processes maps."""
    sizes: dict[bytes, int] = {}
    for process in processes:
        for start, stop, offset, key in _SHARED.findall(_read(process, "maps")):
            end = int(offset, 16) + int(stop, 16) - int(start, 16)
            sizes[key] = max(sizes.get(key, SHARED_BYTES), end)
    return sum(sizes.values())


def _fields(process: int, name: str) -> dict[str, int]:
    """Return the fields of a file of /proc that are given in kB, in bytes; none if it has ended."""
    return {key.decode(): int(kib) << 10 for key, kib in _FIELD.findall(_read(process, name))}


def _read(process: int, name: str) -> bytes:
    """Return the content of a file of /proc; nothing if the process has ended or hides it."""
    try:
        return Path(f"/proc/{process}/{name}").read_bytes()
    except OSError:
        return b""
