"""Weight files of a store, fetched into a node's memory.

Several threads fetch ranges, each written to its place in `<name>.part`. What was written is noted
in `<name>.ranges`, so whoever goes on after a kill fetches only the rest. A whole file gets its
name. That all ranges are of one version of the object is for the caller to check, afterwards.
"""

import contextlib
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import NamedTuple

from coordinate_eval.coordinator.inputs.checkpoints import remote
from coordinate_eval.coordinator.workers.on_node import copying

RANGE_BYTES = 16 << 20
"""Bytes of one request. With `THREADS`, they limit the memory."""

THREADS = 16
"""Ranges that are fetched at once: a store gives each connection a part of its rate."""


class _Part(NamedTuple):
    """A file that is being fetched, and the descriptors of it and of its notes."""

    path: remote.RemotePath
    size: int
    target: int
    ranges: int
    done: frozenset[int]
    """The bytes at which ranges begin that are there."""


def fetch_files(paths: Sequence[Path], folder: Path, report: Callable[[int], None]) -> None:
    """Fetch weight files into a folder. Those that are there whole, and ranges that are, stay.

    `report` is called with the bytes that are there so far.

    Raises:
        UserError: A file cannot be read.
    """
    done = 0
    for path in paths:
        assert isinstance(path, remote.RemotePath), path
        whole = folder / path.name
        if not whole.exists():
            done = _fetch(path, whole, done, report)
        else:
            done += whole.stat().st_size
            report(done)


def _fetch(path: remote.RemotePath, whole: Path, done: int, report: Callable[[int], None]) -> int:
    """Fetch a file. `done` are the bytes of those before; return it with this one's."""
    with contextlib.ExitStack() as stack:
        part = _open(stack, path, whole)
        pool = ThreadPoolExecutor(THREADS)
        # All threads have ended before the files are closed.
        stack.callback(pool.shutdown, cancel_futures=True)
        starts = range(0, part.size, RANGE_BYTES)
        done += sum(_length(part, start) for start in starts if start in part.done)
        report(done)
        left = [start for start in starts if start not in part.done]
        for fetched in as_completed([pool.submit(_fetch_range, part, start) for start in left]):
            done += fetched.result()
            report(done)
    _beside(whole, "part").replace(whole)
    _beside(whole, "ranges").unlink()
    return done


def _open(stack: contextlib.ExitStack, path: remote.RemotePath, whole: Path) -> _Part:
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    target = os.open(_beside(whole, "part"), flags, 0o600)
    stack.callback(os.close, target)
    ranges = os.open(_beside(whole, "ranges"), flags | os.O_APPEND, 0o600)
    stack.callback(os.close, ranges)
    size = path.stat().st_size
    os.ftruncate(target, size)
    noted = _beside(whole, "ranges").read_bytes().split(b"\n")[:-1]
    return _Part(path, size, target, ranges, frozenset(map(int, noted)))


def _fetch_range(part: _Part, start: int) -> int:
    """Fetch the range of a file that begins at byte `start`. Return its bytes."""
    length = _length(part, start)
    content = remote.fetch(part.path, start, start + length)
    copying.write(part.target, memoryview(content), start)
    os.write(part.ranges, b"%d\n" % start)
    return length


def _length(part: _Part, start: int) -> int:
    return min(RANGE_BYTES, part.size - start)


def _beside(whole: Path, suffix: str) -> Path:
    return whole.with_name(f"{whole.name}.{suffix}")
