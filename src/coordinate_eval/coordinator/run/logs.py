"""Logs of jobs: where this process's own is, and how much of one is read."""

import contextlib
import os
from pathlib import Path

from coordinate_eval import _files, _job_log
from coordinate_eval.clusters.protocol import LOG_VARIABLE

LAST_LOG_LINES = 15
"""Lines of a failed job's log that a report quotes."""

MOST_LOG_BYTES = 1 << 18
"""From the end of a log, within which jobs look for the cause of an error. Many may die at once."""


def own_log() -> str:
    """Return the path of the file that this process's errors go to; empty where it is no file."""
    with contextlib.suppress(OSError):
        path = Path("/proc/self/fd/2").readlink()
        if path.is_file():
            return str(path)
    return os.environ.get(LOG_VARIABLE, "")


def tail(log: str) -> list[str]:
    """Return the last lines of a log; none if it has no path."""
    text = _files.read_end(Path(log), MOST_LOG_BYTES).decode(errors="replace") if log else ""
    return _job_log.below(text).splitlines()[-LAST_LOG_LINES:]
