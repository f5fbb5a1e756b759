"""How jobs end: on a signal, before their time limit, and with their parent."""

import ctypes
import os
import signal
import threading
from types import FrameType

from coordinate_eval.coordinator.cluster import ENDS_WITH_PARENT

MARGIN_SECONDS = 90.0
"""What a job keeps of its time limit for ending cleanly."""

_SIGNALS = (signal.SIGTERM, signal.SIGUSR1)


_PR_SET_PDEATHSIG = 1


class StopRequested(BaseException):
    """Raised by a signal: give back what is not finished, and leave."""


def stop_on_signals() -> None:
    """Make TERM and USR1 raise `StopRequested` in the main thread, once."""

    def stop(number: int, frame: FrameType | None) -> None:
        ignore_signals()
        raise StopRequested(f"signal {number}")

    for known in _SIGNALS:
        signal.signal(known, stop)


def ignore_signals() -> None:
    """From here on TERM and USR1 change nothing: the process is leaving already."""
    if threading.current_thread() is threading.main_thread():
        for known in _SIGNALS:
            signal.signal(known, signal.SIG_IGN)


def end_with_parent_if_asked() -> None:
    """Follow `ENDS_WITH_PARENT`; to be called first thing in every job."""
    for variable in ENDS_WITH_PARENT:
        if os.environ.pop(variable, ""):
            _end_with_parent()


def _end_with_parent() -> None:
    """Have the kernel send TERM to this process when its parent ends (Linux, prctl(2))."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() == 1:
        # It ended before the kernel was told. (A parent that is pid 1 starts no such child.)
        os.kill(os.getpid(), signal.SIGTERM)
