"""Copies of large files, by several threads that each copy a range at a time.

Storage on a network gives one reader a part of its bandwidth, so several reads are under way. The
kernel lets one thread at a time write to a file, so ranges of several files are copied at once.
A buffer fits into a core's cache. What was read is dropped from the page cache, which would count
as memory of the job and push out what others use.

Measured on Linux 6.18 and left out: `sendfile` and a mapped target are no faster, `posix_fallocate`
takes a tenth of the time and cannot be spread over threads, and O_DIRECT reads again what is in the
page cache already (`benchmarks/staging.py` compares the whole with other programs).
"""

import contextlib
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import NamedTuple

from coordinate_eval.coordinator.inputs.checkpoints import checkpoint_files
from coordinate_eval.errors import UserError

RANGE_BYTES = 64 << 20
"""Bytes that a thread copies at a time: many times what the kernel reads ahead. What it reads
beyond a range, another thread may have copied and dropped already."""

THREADS = 8
"""Threads that copy, and files that are open at once."""

_BUFFER_BYTES = 1 << 20
"""Bytes of one read: the largest request of common network file systems."""


class _File(NamedTuple):
    """One file to copy, and the descriptors of its source and its target."""

    path: Path
    size: int
    source: int
    target: int


def copy_files(paths: Sequence[Path], folder: Path, report: Callable[[int], None]) -> None:
    """Copy weight files into a folder that has none of their names.

    `report` is called with the bytes copied so far. If this raises, what is in the folder is not
    whole.

    Raises:
        UserError: A file may not be read (see `checkpoint_files`), or was cut short meanwhile.
    """
    done = 0
    for first in range(0, len(paths), THREADS):
        with contextlib.ExitStack() as stack:
            files = [_open(stack, path, folder) for path in paths[first : first + THREADS]]
            pool = ThreadPoolExecutor(THREADS)
            # All threads have ended before the files are closed.
            stack.callback(pool.shutdown, cancel_futures=True)
            copies = [
                pool.submit(_copy_range, file, start)
                for start in range(0, max(file.size for file in files), RANGE_BYTES)
                for file in files
                if start < file.size
            ]
            for copy in as_completed(copies):
                done += copy.result()
                report(done)


def _open(stack: contextlib.ExitStack, path: Path, folder: Path) -> _File:
    """Open a file and its new copy, until the stack is closed."""
    reader = stack.enter_context(checkpoint_files.opened(path, weights=True))
    size = os.fstat(reader.fileno()).st_size
    stack.callback(_drop, reader.fileno(), 0, size)  # what was read ahead
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    target = os.open(folder / path.name, flags, 0o600)
    stack.callback(os.close, target)
    return _File(path, size, reader.fileno(), target)


def _copy_range(file: _File, start: int) -> int:
    """Copy the range of a file that begins at byte `start`. Return its bytes."""
    length = min(RANGE_BYTES, file.size - start)
    copy_range(file.path, file.source, start, file.target, start, length)
    return length


def copy_range(path: Path, source: int, start: int, target: int, to: int, length: int) -> None:
    """Copy bytes of an open file from `start` on into another one from `to` on.

    Raises:
        UserError: The file, whose `path` is named, was cut short.
    """
    buffer = memoryview(bytearray(min(_BUFFER_BYTES, length)))
    done = 0
    while done < length:
        count = os.preadv(source, [buffer[: length - done]], start + done)
        if not count:
            raise UserError(
                f"{path} was cut short while it was copied; "
                "submit its checkpoint again when it is completely saved"
            )
        write(target, buffer[:count], to + done)
        done += count
    _drop(source, start, length)


def write(target: int, part: memoryview, at: int) -> None:
    """Write bytes into an open file, from byte `at` on."""
    while part:  # a write is short where memory is nearly full, or above 2 GiB
        written = os.pwrite(target, part, at)
        part, at = part[written:], at + written


def _drop(descriptor: int, start: int, length: int) -> None:
    """Drop a part of a file from the page cache, if the file system can."""
    with contextlib.suppress(OSError):
        os.posix_fadvise(descriptor, start, length, os.POSIX_FADV_DONTNEED)
