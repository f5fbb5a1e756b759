"""Processes of a cluster on this machine: which run, how they end. Standard library only."""

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

PATIENCE_SECONDS = 180.0
"""For a daemon or a command to answer: a busy machine takes its time."""

KILL_SECONDS = 60.0
"""For a process or a job to end by itself: longer than `KillWait` of slurm.conf."""


class DevClusterError(Exception):
    """Something about this machine is in the way; the text says what to do."""


def read_pid(path: Path) -> int | None:
    """Return the number in a pid file, or None if there is none."""
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None


def command_line(pid: int) -> str:
    """Return the words of a process, which NUL separates; empty if it is gone."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")
    return ""


def environment_of(pid: int) -> list[str]:
    """Return the variables that a process was started with, as NAME=VALUE."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/environ").read_bytes().decode(errors="replace").split("\0")
    return []


def processes() -> Iterator[int]:
    """Yield the ids of all processes."""
    yield from (int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit())


def stop(pid: int | None, how: signal.Signals) -> None:
    """Signal a process and wait until it is gone; one that ignores it for long is killed."""
    if pid is None:
        return
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, how)
        try:
            wait_until(lambda: not command_line(pid), "", KILL_SECONDS)
        except DevClusterError:
            os.kill(pid, signal.SIGKILL)


def wait_until(ready: Callable[[], bool], problem: str, seconds: float = PATIENCE_SECONDS) -> None:
    """Ask until it holds; a command that fails has not answered yet.

    Raises:
        DevClusterError: it does not hold within the time; the text is `problem`.
    """
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        with contextlib.suppress(DevClusterError):
            if ready():
                return
        time.sleep(0.05)
    raise DevClusterError(problem)
