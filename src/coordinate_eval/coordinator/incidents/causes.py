"""Find by the rules why jobs failed. Each log is read once, and the cause is kept.

An engine on several GPUs runs in processes of its own. If one of them fails, the engine's error
says only that, and the reason is in the trial's log. So a trial asks the rules too, before it gives
its shards back.
"""

import contextlib
import errno
import functools
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import BinaryIO, NamedTuple

import platformdirs

from coordinate_eval import _files, _format, _owner
from coordinate_eval.clusters.protocol import End
from coordinate_eval.coordinator.incidents.incident import Incident, write_incident
from coordinate_eval.coordinator.inputs.settings import Settings
from coordinate_eval.coordinator.run.claiming.pullers import Pullers
from coordinate_eval.coordinator.run.logs import MOST_LOG_BYTES
from coordinate_eval.coordinator.run.paths import RunDir
from coordinate_eval.coordinator.run.records import TrialError
from coordinate_eval.diagnosis.cause import Cause, Ending, Log, find_cause, read_log, unknown
from coordinate_eval.diagnosis.compress import compress_text
from coordinate_eval.diagnosis.rules import Rules, read_site, shipped, with_site
from coordinate_eval.errors import EngineError, ForeignError, UserError, with_causes


def read_rules() -> Rules:
    """Return all rules, in their order.

    Raises:
        UserError: the user's file of rules cannot be used.
    """
    file = Path(platformdirs.user_config_dir("coordinate-eval"), "diagnosis.yaml")
    return with_site(read_site(file))


MOST_LINE = 300
"""Characters of a root line that are kept."""


class Causes:
    """Finds the causes of a run's incidents, by the rules of its site as they are at the first one.

    Args:
        settings: its settings, which name the rules.
    """

    def __init__(self, run_dir: RunDir, settings: Settings, tell: Callable[[str], None]) -> None:
        self._dir, self._settings, self._tell = run_dir, settings, tell

    def record(self, incidents: Iterable[Incident]) -> None:
        """Find the cause of each incident, write the incident, and tell the user."""
        for incident in incidents:
            cause = cause_of(incident, self._rules, MOST_LOG_BYTES) or unknown()
            cure = self._more_memory(incident) or cause.cure
            line = _format.brief(cause.line.strip(), MOST_LINE)
            cause = cause.model_copy(update={"line": line, "cure": cure})
            judged = incident.model_copy(update={"cause": cause})
            write_incident(self._dir, judged)
            if judged.how != "error":
                self._tell(f"{judged.who}: {judged.message}")
            if judged.known:
                self._tell(f"{judged.who} died of {judged.words}")

    def _more_memory(self, incident: Incident) -> str:
        """Return the setting with the memory of a job that used up what it had, if there is one."""
        if incident.how is not End.OUT_OF_MEMORY:
            return ""
        if incident.kind not in (Pullers.BUILD, Pullers.SCORE):
            return ""
        gib = self._settings.harness.memory_gib
        return f"give each of these jobs more memory: `[harness] memory_gib` is {gib:g}"

    @functools.cached_property
    def _rules(self) -> Rules:
        try:
            _owner.trust(self._settings.trusted_users)
            return read_rules()
        except UserError as error:
            self._tell(f"causes are found by the shipped rules alone: {error}")
            return shipped()


def cause_of(incident: Incident, rules: Rules, most_bytes: int) -> Cause | None:
    """Return why a job failed, by its message and the last bytes of its log; None if neither says.

    Whoever wrote the record may have named anything as the log. Without a log, the message tells.
    """
    by_itself = incident.how in ("error", "hung", End.COMPLETING, End.UNKNOWN)
    state = "failed" if by_itself else incident.how
    return find(incident.log, incident.message, state, rules, most_bytes)


def find(
    log: str, message: str, state: str, rules: Rules, most_bytes: int, begin: int = 0
) -> Cause | None:
    """Return the cause of a failure by a log and a message; `state` is how the job ended.

    Either text may be missing. Without a message, the log alone decides whether a job failed. What
    stands before byte `begin` of the log is of another job.
    """
    logs = []
    if log:
        with contextlib.suppress(OSError, ValueError, ForeignError), open_log(log) as file:
            logs.append(read_log(file, log, rules, most_bytes, begin))
    if not message:
        return find_cause(logs, rules)
    said = Log(log, compress_text(message, rules))
    return find_cause(logs, rules, Ending(state.upper().replace(" ", "_")), said)


def open_log(name: str) -> BinaryIO:
    """Open a regular file; a pipe would block, and a device may have no end.

    Raises:
        ForeignError: it is not a regular file.
    """
    path = Path(os.path.realpath(name))
    return os.fdopen(_owner.open_file(path, anybodys=True), "rb")


_NO_MEMORY = "out of memory"
"""Words of an engine whose error was raised in a process of its own."""

_KILLED = "Out of Memory"
"""The reason of whatever was killed: by the system for its memory, or by somebody else."""

_MEMORY = frozenset({"Out of Memory Error", _KILLED})
"""Reasons that an engine that computes less at once may survive."""

_OF_ITEMS = frozenset({"CUDA Error"})
"""Reasons that otherwise count as the node's fault, but that an item may also bring about."""


class Failure(NamedTuple):
    """The failure of a trial, with its cause."""

    cause: TrialError
    in_doubt: bool = False
    """Only what libraries say blames the node. An item may have led them to say it."""
    killed: bool = False
    """A process of the engine was killed, from outside or for its memory."""


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
            return Failure("out of memory", killed=found.reason == _KILLED)
        of_node = found is not None and found.category == "infrastructure" and found.then == "node"
        if engine_started and of_node and found is not None and found.reason not in _OF_ITEMS:
            return Failure("node", in_doubt=True)
        return Failure(cause)

    def _diagnose(self, error: BaseException) -> Cause | None:
        try:
            rules = read_rules()
        except UserError:
            rules = shipped()
        said = "\n".join(f"{type(each).__name__}: {each}" for each in with_causes(error))
        return find(self._log, said, End.FAILED, rules, MOST_LOG_BYTES, self._begin)


def cause_of_error(error: BaseException, *, engine_started: bool) -> TrialError:
    """Return the cause of a trial's failure: what the errors say that led to it, else its kind."""
    chain = list(with_causes(error))
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


def _is_out_of_memory(error: BaseException) -> bool:
    if isinstance(error, MemoryError) or "OutOfMemory" in type(error).__name__:
        return True
    if isinstance(error, OSError):
        return error.errno == errno.ENOMEM
    return isinstance(error, EngineError) and _NO_MEMORY in str(error)
