"""Standard output, whatever it is: a full disk, a closed pipe, a terminal of few characters."""

import contextlib
import io
import os
import sys
from collections.abc import Iterator
from pathlib import Path

from coordinate_eval.errors import CoordinateError


@contextlib.contextmanager
def whole_output() -> Iterator[None]:
    """What a block prints, written to the end; characters that the encoding lacks become "?".

    Raises:
        CoordinateError: it cannot be written.
        SystemExit: with 1, whoever reads it has gone.
    """
    if sys.__stdout__ is None:  # closed by whoever started it
        sys.stdout = Path(os.devnull).open("w")  # noqa: SIM115 - as long as the process
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


def _dropped() -> bool:
    """Whether nothing can be written, and goes nowhere from now on: Python tries again at its end.

    After a failure a stream may have forgotten what it could not write, so it gets something new.
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
