"""Standard output that may be a terminal, a pipe that closes, or a file on a full disk."""

import contextlib
import io
import os
import sys
from collections.abc import Iterator
from pathlib import Path

from rich.console import Console

from coordinate_eval.errors import CoordinateError

PIPE_WIDTH = 160
"""Characters of a line in a pipe or a file, where no window cuts it."""


@contextlib.contextmanager
def whole_output() -> Iterator[None]:
    """Write what a block prints to the end; characters that the encoding lacks become "?".

    Raises:
        CoordinateError: it cannot be written.
        SystemExit: with 1, whoever reads it has gone.
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


def table_console() -> Console:
    """Return a console for tables: as wide as the terminal, and wide in a pipe or a file."""
    console = Console()
    if console.is_terminal or "COLUMNS" in os.environ:
        return console
    return Console(width=PIPE_WIDTH)


def _dropped() -> bool:
    """Return whether standard output cannot be written; if so, send it nowhere from now on.

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
