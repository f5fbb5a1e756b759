"""A command that answers on its stdout, while the guard does other things."""

import os
import subprocess
import tempfile
import time
from collections.abc import Sequence
from typing import IO, NamedTuple

from coordinate_eval._files import MOST_BYTES
from coordinate_eval.clusters.protocol import ENDS_WITH_PARENT


class Answer(NamedTuple):
    """The words of a process that has ended."""

    said: str
    errors: str
    status: int


class Child:
    """A process that answers on its stdout, and ends with this one.

    Its output goes to files, because nobody reads while it writes, and a pipe is soon full.

    Args:
        argv: the command.
        seconds: time after which it is told to end.
    """

    def __init__(self, argv: Sequence[str], seconds: float) -> None:
        self._said, self._errors = tempfile.TemporaryFile(), tempfile.TemporaryFile()  # noqa: SIM115
        self._process = subprocess.Popen(
            argv,
            env=os.environ | ENDS_WITH_PARENT,
            stdin=subprocess.DEVNULL,
            stdout=self._said,
            stderr=self._errors,
        )
        self._end = time.monotonic() + seconds

    def answer(self) -> Answer | None:
        """Return what it has said; None while it goes on."""
        if self._process.poll() is None and time.monotonic() < self._end:
            return None
        return self.close()

    def close(self) -> Answer:
        """Have it end, and return what it has said."""
        self._process.terminate()
        status = self._process.wait()
        with self._said, self._errors:
            return Answer(_text(self._said), _text(self._errors), status)


def _text(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read(MOST_BYTES).decode(errors="replace")
