"""Child processes that do not outlive their parent."""

import ctypes
import os
import signal
from collections.abc import Mapping

ENDS_WITH_PARENT: Mapping[str, str] = {"COORDINATE_EVAL_ENDS_WITH_PARENT": "1"}
"""Environment of a child that is to end when its parent does, however that ends."""

_PR_SET_PDEATHSIG = 1


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
