"""Calls of native code that may never end: noted by the process that makes them, ended by another.

A chat template is a program, and so is a regular expression of a tokenizer: either may run for
ever, or make a text that fits no memory. Native code cannot be interrupted from within its process.
So a process notes in shared memory when such a call begins and ends, which takes a microsecond, and
the process that started it reads the note a few times a second.
"""

import contextlib
import mmap
import os
import signal
import struct
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, NoReturn, ParamSpec, TypeVar

from coordinate_eval.errors import CoordinateError

CPU_SECONDS: Final = 60.0
"""Longest time of one call: to cut a text of a million tokens takes a few."""

MEMORY_BYTES: Final = 4 << 30
"""Most memory that one call may add: thirty times the largest tokenizer.json."""

NOTE_BYTES: Final = 160

# The number of the call, the CPU seconds of its process when it began, and what it does in a few
# words: none between calls.
_NOTE = struct.Struct("=Qd144s")
_WORDS_OFFSET = 16
_LAST = (1 << 64) - 1  # the number of a call after which there is none
_TICKS = os.sysconf("SC_CLK_TCK")

_Given = ParamSpec("_Given")
_Result = TypeVar("_Result")


class EndlessCall(CoordinateError):
    """A call takes more time or memory than any should."""


def is_panic(error: BaseException) -> bool:
    """Return whether an error is a panic of a library in Rust. These are no `Exception`."""
    return type(error).__name__ == "PanicException"


class Pulse:
    """The note of this process, in a file of `NOTE_BYTES` that is shared with its watch."""

    def __init__(self, descriptor: int) -> None:
        self._note = mmap.mmap(descriptor, NOTE_BYTES)
        self._calls = 0

    def call(
        self,
        what: bytes,
        function: Callable[_Given, _Result],
        *args: _Given.args,
        **options: _Given.kwargs,
    ) -> _Result:
        """Call the function, and return what it returns. `what` says it in a few words.

        Raises:
            RuntimeError: it panics.
        """
        self._calls += 1
        _NOTE.pack_into(self._note, 0, self._calls, time.process_time(), what)
        try:
            return function(*args, **options)
        except BaseException as error:
            if is_panic(error):
                raise RuntimeError(str(error)) from error
            raise
        finally:
            self._note[_WORDS_OFFSET] = 0

    def end(self, why: str) -> NoReturn:
        """Have this process ended by its watch, which says why.

        Whoever called may not know what to do with an exception, and try for ever.
        """
        _NOTE.pack_into(self._note, 0, _LAST, 0.0, why.encode())
        while True:
            signal.pause()


class PulseWatch:
    """A watch over the calls of another process."""

    def __init__(self, descriptor: int) -> None:
        self._note = mmap.mmap(descriptor, NOTE_BYTES, prot=mmap.PROT_READ)
        self._call, self._bytes_before = -1, 0

    def look(self, process: int) -> None:
        """Compare the call that is going on with the last look.

        Raises:
            EndlessCall: it takes too long, or too much memory, or it was the last one. The message
                says what it does.
        """
        call, since, words = _NOTE.unpack_from(self._note)
        what = words.partition(b"\0")[0].decode()
        if call == _LAST:
            raise EndlessCall(what)
        cpu_seconds, resident = _use(process)
        if not what or call != self._call:
            self._call, self._bytes_before = call, resident
        elif cpu_seconds - since > CPU_SECONDS:
            raise EndlessCall(f"{what} takes more than {CPU_SECONDS:g} seconds")
        elif resident - self._bytes_before > MEMORY_BYTES:
            raise EndlessCall(f"{what} takes more than {MEMORY_BYTES / 2**30:g} GiB of memory")


def _use(process: int) -> tuple[float, int]:
    """Return CPU seconds and resident bytes of a process; nothing if it has ended."""
    with contextlib.suppress(OSError, IndexError):
        text = Path(f"/proc/{process}/stat").read_bytes()
        fields = text.rpartition(b") ")[2].split()  # from the third on, see proc(5)
        return (int(fields[11]) + int(fields[12])) / _TICKS, int(fields[21]) * mmap.PAGESIZE
    return 0.0, 0
