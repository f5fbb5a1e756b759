"""The meaning of a trial's error: whether the input, the node or the work is wrong.

An engine on several GPUs runs in processes of its own. If one of them fails, the engine's error
says only that, and the reason is in the trial's log. So the rules of a diagnosis read that, too.
"""

import errno
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from coordinate_eval import _files
from coordinate_eval.clusters.protocol import End
from coordinate_eval.coordinator.incidents.judge import find, read_rules
from coordinate_eval.coordinator.inputs.settings import Settings
from coordinate_eval.coordinator.run.logs import MOST_LOG_BYTES
from coordinate_eval.coordinator.run.records import TrialCause
from coordinate_eval.diagnosis.cause import Cause
from coordinate_eval.diagnosis.rules import shipped
from coordinate_eval.errors import EngineError, UserError

_NO_MEMORY = "out of memory"
"""Words of an engine whose error was raised in a process of its own."""

_MEMORY = frozenset({"Out of Memory Error", "Out of Memory"})
"""Reasons that an engine that computes less at once may survive."""

_OF_ITEMS = frozenset({"CUDA Error"})
"""Reasons that otherwise count as the node's fault, but that an item may also bring about."""


class Failure(NamedTuple):
    """Why a trial failed."""

    cause: TrialCause
    in_doubt: bool = False
    """Only what libraries say blames the node. An item may have led them to say it."""


class TrialErrors:
    """Finds out why a trial fails.

    Args:
        log: path of the trial's log; empty where it has none. What is there already is of others.
        settings: of the run, which name a site's rules.
    """

    def __init__(self, log: str, settings: Settings) -> None:
        self._log, self._settings = log, settings
        self._begin = max(0, _files.size(Path(log))) if log else 0

    def why(self, error: BaseException, *, engine_started: bool) -> Failure:
        """Return why a trial failed with this error.

        Libraries tell why an engine failed. One that never started has run short of memory or is
        itself at fault, whatever else they say.
        """
        cause = cause_of_error(error, engine_started=engine_started)
        if cause not in ("engine start", "other") or not isinstance(error, EngineError):
            return Failure(cause)
        found = self._diagnose(error)
        if found is not None and found.reason in _MEMORY and found.then == "load":
            return Failure("out of memory")
        of_node = found is not None and found.category == "infrastructure" and found.then == "node"
        if engine_started and of_node and found is not None and found.reason not in _OF_ITEMS:
            return Failure("node", in_doubt=True)
        return Failure(cause)

    def _diagnose(self, error: BaseException) -> Cause | None:
        try:
            rules = read_rules(self._settings)
        except UserError:
            rules = shipped()
        said = "\n".join(f"{type(each).__name__}: {each}" for each in _chain(error))
        return find(self._log, said, End.FAILED, rules, MOST_LOG_BYTES, self._begin)


def cause_of_error(error: BaseException, *, engine_started: bool) -> TrialCause:
    """Return the cause of a trial's failure: what the errors say that led to it, else its kind."""
    chain = list(_chain(error))
    if any(_is_out_of_memory(each) for each in chain):
        return "out of memory"
    # Libraries raise OSError without a number for wrong files of a checkpoint.
    if any(isinstance(e, OSError) and e.errno not in (None, errno.ENOENT) for e in chain):
        return "node"
    # What is missing may be missing on this node alone.
    missing = any(isinstance(e, ImportError | FileNotFoundError) for e in chain)
    if isinstance(error, UserError) and not missing:
        return "input"
    if isinstance(error, EngineError | UserError) and not engine_started:
        return "engine start"
    return "other"


def _chain(error: BaseException) -> Iterator[BaseException]:
    """Yield an error and those that led to it."""
    each: BaseException | None = error
    while each is not None:
        yield each
        each = each.__cause__ or each.__context__


def _is_out_of_memory(error: BaseException) -> bool:
    if isinstance(error, MemoryError) or "OutOfMemory" in type(error).__name__:
        return True
    if isinstance(error, OSError):
        return error.errno == errno.ENOMEM
    return isinstance(error, EngineError) and _NO_MEMORY in str(error)
