"""What an error of a trial says: whether the input, the node or the work is wrong."""

import errno

from coordinate_eval.coordinator.run.records import TrialCause
from coordinate_eval.errors import EngineError, UserError

_NO_MEMORY = "out of memory"
"""What engines say whose own processes met the error."""


def cause_of_error(error: BaseException, *, engine_started: bool) -> TrialCause:
    """Return the cause of a trial's failure: what the errors say that led to it, else its kind."""
    chain: list[BaseException] = []
    each: BaseException | None = error
    while each is not None:
        chain.append(each)
        each = each.__cause__ or each.__context__
    if any(_is_out_of_memory(each) for each in chain):
        return "out of memory"
    # Libraries raise OSError without a number for wrong files of a checkpoint.
    if any(isinstance(e, OSError) and e.errno not in (None, errno.ENOENT) for e in chain):
        return "node"
    if isinstance(error, UserError):
        return "input"
    if isinstance(error, EngineError) and not engine_started:
        return "engine start"
    return "other"


def _is_out_of_memory(error: BaseException) -> bool:
    if isinstance(error, MemoryError) or "OutOfMemory" in type(error).__name__:
        return True
    if isinstance(error, OSError):
        return error.errno == errno.ENOMEM
    return isinstance(error, EngineError) and _NO_MEMORY in str(error)
