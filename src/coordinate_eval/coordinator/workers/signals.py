"""The end of a job, on a signal or with its parent, and signs that a job and its supervisor live.

A job that may work long at one thing has a thread that touches a file. A stopped process, and a
process whose storage does not answer, give no sign, and the scheduler does not know of either.

A supervisor may be lost for good: cancelled by an administrator, or out of memory. Jobs that wait
for others would then hold memory until their time limits.
"""

import contextlib
import ctypes
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType

from coordinate_eval import _files
from coordinate_eval.clusters.protocol import ENDS_WITH_PARENT
from coordinate_eval.coordinator.incidents.hangs import SIGN_SECONDS
from coordinate_eval.coordinator.run.claiming.claims import own_task
from coordinate_eval.coordinator.run.paths import RunDir

MARGIN_SECONDS = 90.0
"""Time before its time limit at which a job begins to end."""

_SIGNALS = (signal.SIGTERM, signal.SIGUSR1)

_PR_SET_PDEATHSIG = 1


class StopRequested(BaseException):
    """A signal asks the process to give back what it has not finished, and to end."""


@contextlib.contextmanager
def until_stopped() -> Iterator[None]:
    """End the block early at the first TERM or USR1, and go on after it."""
    stop_on_signals()
    with contextlib.suppress(StopRequested):
        yield


def stop_on_signals() -> None:
    """Make the first TERM or USR1 raise `StopRequested`, if this is the main thread."""

    def stop(number: int, frame: FrameType | None) -> None:
        ignore_signals()
        raise StopRequested(f"signal {number}")

    _handle(stop)


def ignore_signals() -> None:
    """Ignore TERM and USR1 from now on: the process is ending already."""
    _handle(signal.SIG_IGN)


def is_ending() -> bool:
    """Return whether TERM and USR1 are ignored, since the process is ending already."""
    return signal.getsignal(_SIGNALS[0]) is signal.SIG_IGN


def _handle(handler: Callable[[int, FrameType | None], None] | signal.Handlers) -> None:
    if threading.current_thread() is threading.main_thread():
        for known in _SIGNALS:
            signal.signal(known, handler)


def end_with_parent_if_asked() -> None:
    """End with the parent process if the environment asks for it. Every job calls this first."""
    for variable in ENDS_WITH_PARENT:
        if os.environ.pop(variable, ""):
            _end_with_parent()


def _end_with_parent() -> None:
    """Have the kernel send TERM to this process when its parent ends (Linux, prctl(2))."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() == 1 and b"coordinate_eval" not in Path("/proc/1/cmdline").read_bytes():
        # The parent ended before the call. In a container, process 1 may be the parent.
        os.kill(os.getpid(), signal.SIGTERM)


@contextlib.contextmanager
def signs_of_life(run_dir: RunDir, seconds: float = SIGN_SECONDS) -> Iterator[None]:
    """Give a sign of life every so many seconds during the block, the first one at once."""
    path = run_dir.alive(own_task().rsplit(".", 1)[0])
    over = threading.Event()

    def give() -> None:
        while not over.is_set():
            with contextlib.suppress(OSError):  # storage fails for a moment, or the run was removed
                _files.make_folder(path.parent)
                path.touch()
            over.wait(seconds)

    # Where storage does not answer, nobody waits for the thread.
    threading.Thread(target=give, name="signs of life", daemon=True).start()
    try:
        yield
    finally:
        over.set()


class Supervision:
    """Tells how long no supervisor has looked at its run.

    A supervisor changes its folder at every poll (`run/supervision.py`). Only changes count, timed
    by this process's own clock, because the clocks of nodes and storage differ.
    """

    def __init__(self, run_dir: RunDir, patience_seconds: float) -> None:
        self._folder = run_dir.supervisors_folder
        self._patience_seconds = patience_seconds
        self._changed = 0.0
        self._seen = time.monotonic()

    def is_lost(self) -> bool:
        """Return whether there was no supervisor for `patience_seconds`. Call this often."""
        changed = _files.modified(self._folder)
        if changed != self._changed:
            self._changed, self._seen = changed, time.monotonic()
        return time.monotonic() - self._seen > self._patience_seconds
