"""The cause of an attempt's end: Slurm's word, and the root of what all ranks' logs say."""

import contextlib
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from coordinate_eval import _files, _owner
from coordinate_eval._format import brief
from coordinate_eval.clusters.protocol import End
from coordinate_eval.coordinator.incidents.causes import MOST_LINE, open_log, read_rules
from coordinate_eval.coordinator.inputs.settings import Settings
from coordinate_eval.coordinator.training.guarding.attempts import Cancelled, What
from coordinate_eval.coordinator.training.guarding.hands import Hands
from coordinate_eval.diagnosis.cause import UNKNOWN, Cause, Ending, find_cause, read_log
from coordinate_eval.diagnosis.rules import shipped
from coordinate_eval.errors import ForeignError, UserError
from coordinate_eval.slurm.batch import Described

MOST_LOG_BYTES = 16 << 20
"""Read of one log, from its end."""

MOST_BYTES = 128 << 20
"""Read of all logs together. A training may write a gigabyte a minute."""

LEAST_LOG_BYTES = 64 << 10
"""Read of one of very many logs."""

_KILLED = frozenset({"killed", "killed-state", "step-killed", "worker-killed"})
"""Rules that find a SIGKILL where neither Slurm nor the kernel says that memory was used up."""

_KILLED_CURE = (
    "somebody, or the node, sent SIGKILL, and no log says why: if memory was used up, the node's "
    "kernel log says so (dmesg), and the job needs more (--mem)"
)

_ENDS = {
    End.NODE_FAILED: What.NODE_FAILED,
    End.OUT_OF_MEMORY: What.OUT_OF_MEMORY,
    End.PREEMPTED: What.PREEMPTED,
    End.TIME_LIMIT: What.TIME_LIMIT,
    End.CANCELLED: What.CANCELLED,
    End.FAILED: What.FAILED,
}


def what_of(
    end: End, cancelled: Cancelled | None, *, finished: bool, told: End | None = None
) -> What:
    """Return what became of an attempt.

    Args:
        end: how Slurm says that its job ended.
        cancelled: how the guard was ending it.
        finished: it has reached its last step, as far as that is known.
        told: why Slurm wanted it to end, if it did.
    """
    if end is End.COMPLETED and finished:
        return What.FINISHED  # also where the guard was about to end it
    if cancelled is not None:
        return cancelled.what
    if end is End.COMPLETED:
        return _ENDS[told] if told is not None else What.ENDED_EARLY
    return _ENDS.get(end, What.LOST)


def at_slurms_word(cause: Cause | None, told: End | None) -> What | None:
    """Return what Slurm did to a job that failed, where Slurm and the log say so, each by itself.

    A step that is ended may end its script before Slurm ends the job. A log alone says anything.
    """
    by_log = {End.PREEMPTED: "Preempted", End.TIME_LIMIT: "Time Limit"}
    if cause is None or told is None or cause.reason != by_log.get(told):
        return None
    return _ENDS[told]


def cause_of(
    logs: Iterable[Path], begins: Mapping[str, int], settings: Settings, said: Described | None
) -> Cause | None:
    """Return the cause that the logs of all ranks have in common; None if none says anything.

    Args:
        logs: of all ranks.
        begins: bytes that were in a log before this attempt.
        settings: that name the rules of the site.
        said: what Slurm says; None for a job that still runs.
    """
    try:
        _owner.trust(settings.trusted_users)
        rules = read_rules()
    except UserError:
        rules = shipped()
    files = [log for log in logs if log.is_file()]
    most = max(LEAST_LOG_BYTES, min(MOST_LOG_BYTES, MOST_BYTES // max(1, len(files))))
    read, starts = [], {}
    for log in files[: MOST_BYTES // LEAST_LOG_BYTES]:
        begin = begins.get(str(log), 0)
        with contextlib.suppress(OSError, ForeignError), open_log(str(log)) as file:
            if log.stat().st_size < begin:
                begin = 0  # it was begun afresh
            starts[str(log)] = max(begin, log.stat().st_size - most)
            read.append(read_log(file, str(log), rules, most, begin))
    end = Ending(said.state, said.reason, said.exit_code) if said is not None else Ending()
    found = find_cause(read, rules, end, by_words=said is None)
    if found is None:
        return None
    update: dict[str, object] = {"line": brief(found.line.strip(), MOST_LINE)}
    if found.number:
        update["number"] = _numbered(found.number, found.log, starts.get(found.log, 0))
    elif found.reason == UNKNOWN and files:
        log = Path(found.log) if found.log else files[0]
        empty = _files.size(log) <= begins.get(str(log), 0)
        says = f"{log} is empty: `set -x` in the script shows what it does"
        update |= {"log": str(log), "cure": says if empty else f"read the end of {log}"}
    # Slurm calls a script so, too, that was killed long after it was launched.
    launched = found.rule == "launch-failed-state" and any(log.left.lines for log in read)
    if found.rule in _KILLED or (launched and said is not None and said.exit_code == "0:9"):
        update |= {"reason": "Killed", "category": "unknown", "then": "node", "cure": _KILLED_CURE}
    return found.model_copy(update=update)


def _numbered(number: int, log: str, start: int) -> int:
    """Return the number in its log of a line that is counted from a place in it; 0 if it is far."""
    if start <= 0:
        return number
    with contextlib.suppress(OSError, ForeignError), open_log(log) as file:
        if start <= MOST_LOG_BYTES:
            return number + file.read(start).count(b"\n")
    return 0


def cause_of_attempt(hands: Hands, number: int, said: Described | None) -> Cause | None:
    """Return the cause of the end of an attempt; of its silence, where Slurm has said nothing."""
    logs = hands.dir.logs_of(number)
    return cause_of(hands.watch.files(logs), logs.sizes, hands.guarded.settings, said)


def named_nodes(cause: Cause | None, nodes: Iterable[str]) -> list[str]:
    """Return those of some nodes that the line of a hardware cause, or its log's name, names."""
    if cause is None or cause.category != "infrastructure":
        return []
    text = f"{cause.line} {Path(cause.log).name}"
    return [node for node in nodes if re.search(rf"(?<![\w-]){re.escape(node)}(?![\w-])", text)]
