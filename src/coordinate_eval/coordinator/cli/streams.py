"""The streams of a process: written whole, and never steered by what others wrote.

Jobs begin with this, so it imports nothing that only people need.
"""

import contextlib
import io
import os
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, TextIO

from coordinate_eval import _owner
from coordinate_eval._format import visible
from coordinate_eval.errors import CoordinateError, UserError

MOST_COMPLAINT = 4000
"""Characters of an error's message on a terminal."""


@contextlib.contextmanager
def whole_output() -> Iterator[None]:
    """Write what a block prints to the end; characters that the encoding lacks become "?".

    Raises:
        SystemExit: with 1, the reader has closed the pipe.
    """
    if sys.__stdout__ is None:  # closed by whoever started it
        sys.stdout = Path(os.devnull).open("w")  # noqa: SIM115 - as long as the process
    if sys.__stderr__ is None:
        sys.stderr = Path(os.devnull).open("w")  # noqa: SIM115 - as long as the process
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")
    try:
        try:
            yield
        finally:
            sys.stdout.flush()
    except OSError as error:
        if not _dropped():
            raise
        if isinstance(error, BrokenPipeError):
            sys.exit(1)
        raise CoordinateError(f"cannot write the output: {error.strerror}") from error


def complaint(error: BaseException) -> str:
    """Return the message of an error for a terminal. Of a very long one the middle is left out."""
    text = visible(str(error))
    half = MOST_COMPLAINT // 2
    return text if len(text) <= MOST_COMPLAINT else f"{text[:half]} … {text[-half:]}"


class _Printable:
    """A stream for the output of others, in which no text steers the terminal."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - all else is the stream's
        return getattr(self._stream, name)

    def isatty(self) -> bool:
        return False  # so that nobody colors what is replaced here

    def write(self, text: str) -> int:
        self._stream.write(visible(text.replace("\r", "\n")))
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)


class _Log(_Printable):
    """A stream to a log, in which each line tells when it was written and what it is about."""

    def __init__(self, stream: TextIO, about: str) -> None:
        super().__init__(stream)
        self._about = about
        self._begun = False
        """The last line has no end yet."""

    def write(self, text: str) -> int:
        for line in visible(text.replace("\r", "\n")).splitlines(keepends=True):
            if not self._begun:
                now = time.strftime("%Y-%m-%d %H:%M:%S")
                self._stream.write(f"{now} {self._about}: ")
            self._stream.write(line)
            self._begun = not line.endswith("\n")
        self._stream.flush()
        return len(text)


def log_to(path: Path, about: str) -> None:
    """Append all that this process and its children print from now on to a log of the user's.

    Each line of this process begins with the time and with what it is `about`.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = _owner.open_log(path)
    except OSError as error:
        raise UserError(f"log {path} cannot be opened: {error.strerror}") from error
    for number in (1, 2):
        os.dup2(descriptor, number)
    file = os.fdopen(descriptor, "w", encoding="utf-8", errors="replace")
    sys.stdout = sys.stderr = _Log(file, about)


@contextlib.contextmanager
def printable_output() -> Iterator[None]:
    """Replace unprintable characters that libraries write in the block, to output and errors."""
    out, errors = _Printable(sys.stdout), _Printable(sys.stderr)
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(errors):
        yield


def _dropped() -> bool:
    """Return whether standard output cannot be written; if so, discard it from now on.

    Python writes it once more when it ends, which would fail again. After a failure a stream may
    have dropped the text that it could not write, so the test writes something new.
    """
    try:
        sys.stdout.write("\n")
        sys.stdout.flush()
    except OSError:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
        return True
    return False
