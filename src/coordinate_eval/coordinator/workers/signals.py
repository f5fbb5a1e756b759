"""The end of a job: on a signal, before its time limit, or with its parent."""

import contextlib
import ctypes
import os
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType

from coordinate_eval.clusters.protocol import ENDS_WITH_PARENT

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
    if os.getppid() == 1:
        # The parent ended before the call. (A parent that is process 1 starts no such child.)
        os.kill(os.getpid(), signal.SIGTERM)
