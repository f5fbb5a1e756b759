"""Decide what follows when an attempt has ended: one table. Values in, values out."""

import itertools
from collections.abc import Sequence
from enum import StrEnum
from typing import NamedTuple

from coordinate_eval._clock import growing
from coordinate_eval._format import plural
from coordinate_eval.coordinator.training.guarding.attempts import Ended, What
from coordinate_eval.coordinator.training.guarding.policy import Policy
from coordinate_eval.diagnosis.cause import UNKNOWN, Cause

LONGEST_PAUSE_SECONDS = 3600.0
"""Longest pause before a restart."""

LONGEST_PREEMPTED_SECONDS = 600.0
"""Longest pause after preemptions: the scheduler decides when there is room."""

DAY_SECONDS = 86_400.0


class Follows(StrEnum):
    """The usual consequence of a cause."""

    DONE = "done"
    STOP = "stop"
    RESUBMIT = "resubmit"
    """The scheduler wanted it, and no job is to blame."""
    AGAIN = "again"
    LATER = "later"
    """It met something that passes, but not at once."""
    OTHER_NODES = "other nodes"


FOLLOWS = {
    What.FINISHED: Follows.DONE,
    What.ENDED_EARLY: Follows.AGAIN,
    What.NODE_FAILED: Follows.OTHER_NODES,
    What.OUT_OF_MEMORY: Follows.AGAIN,
    What.PREEMPTED: Follows.RESUBMIT,
    What.TIME_LIMIT: Follows.RESUBMIT,
    What.CANCELLED: Follows.STOP,
    What.LOST: Follows.AGAIN,
    What.NOT_FINITE: Follows.AGAIN,
    What.SLOW: Follows.OTHER_NODES,
    What.ROLLED_BACK: Follows.RESUBMIT,
    What.NEVER_STARTED: Follows.RESUBMIT,
    What.REFUSED: Follows.STOP,
    What.STOPPED: Follows.STOP,
}
"""The consequences of what needs no cause. FAILED and HUNG are not here: their cause decides."""


class Decision(NamedTuple):
    """The next step of a guard."""

    follows: Follows
    why: str
    pause: float = 0.0
    """Seconds after the end of the attempt before the next one is submitted."""


def decide(history: Sequence[Ended], policy: Policy) -> Decision:
    """Return what follows the last of these attempts."""
    last = history[-1]
    follows = _follows(history)
    said = _words(last)
    if follows in (Follows.DONE, Follows.STOP):
        return Decision(follows, said)
    if follows is not Follows.RESUBMIT:
        recent = [each for each in history if last.time - each.time < DAY_SECONDS]
        each_followed = (_follows(recent[: at + 1]) for at in range(len(recent)))
        nobodys = (Follows.RESUBMIT, Follows.DONE, Follows.STOP)
        restarts = sum(each not in nobodys for each in each_followed)
        if restarts > policy.restarts_per_day:
            return Decision(
                Follows.STOP,
                f"{said}; {plural(policy.restarts_per_day, 'restart')} a day are allowed "
                "(`restarts_per_day`), and they are used up",
            )
    vain, preempted = _in_vain(history)
    if vain > policy.retries:
        tried = plural(vain, "attempt") + (" in a row" if vain > 1 else "")
        furthest = max(each.last_step or 0 for each in history)
        return Decision(
            Follows.STOP,
            f"{said}; {tried} came no further than step {furthest} (`retries`)",
        )
    pause = 0.0
    if vain:
        pause = growing(policy.pause_seconds, vain - 1, LONGEST_PAUSE_SECONDS)
    elif follows is Follows.LATER:
        pause = policy.pause_seconds
    if last.what is What.PREEMPTED and preempted > 1:
        longest = max(pause, LONGEST_PREEMPTED_SECONDS)
        pause = max(pause, growing(policy.pause_seconds, preempted - 2, longest))
    return Decision(follows, said, pause)


def of_cause(cause: Cause | None) -> Follows:
    """Return what follows a cause; None is one that is not known."""
    if cause is None or cause.category == "unknown":
        return Follows.AGAIN
    if cause.category == "slurm":
        # Only Slurm's own word of an end counts, not what a log says of it.
        return Follows.STOP if cause.reason == "Refused" else Follows.AGAIN
    if cause.then == "stop":
        return Follows.STOP
    if cause.then == "wait":
        return Follows.LATER
    if cause.category == "script":
        # A process that failed without saying why: the script's words, and not its fault.
        return Follows.AGAIN if cause.reason == "Called Process Error" else Follows.STOP
    return Follows.OTHER_NODES if cause.category == "infrastructure" else Follows.AGAIN


def _follows(history: Sequence[Ended]) -> Follows:
    last = history[-1]
    if last.what in FOLLOWS:
        return FOLLOWS[last.what]
    found = of_cause(last.cause)
    if found is Follows.STOP and is_of_checkpoint(last.cause):
        # Another checkpoint may do. Without one, the script itself names what cannot be loaded.
        came = last.checkpoint or last.first_step is not None
        return Follows.AGAIN if came else found
    if found is Follows.AGAIN and last.what is What.HUNG:
        return Follows.OTHER_NODES  # hardware is the likeliest cause that leaves no word
    of_nodes = last.cause is None or last.cause.category in ("unknown", "infrastructure")
    if found in (Follows.AGAIN, Follows.LATER) and of_nodes and _repeats(history):
        return Follows.OTHER_NODES
    return found


def is_of_checkpoint(cause: Cause | None) -> bool:
    """Return whether a checkpoint could not be read or written."""
    return cause is not None and cause.reason == "Model Loading Error"


def _repeats(history: Sequence[Ended]) -> bool:
    """Return whether the attempt before the last one ended alike, and the last gained nothing."""
    return len(history) > 1 and not history[-1].gained and history[-2].what is history[-1].what


def _in_vain(history: Sequence[Ended]) -> tuple[int, int]:
    """Return how many attempts in a row, the last ones, gained nothing; then how many preempted.

    The first number leaves out those that were preempted, never started, or were to go back. None
    of these ends a row.
    """
    row = list(itertools.takewhile(lambda each: not each.gained, reversed(history)))
    nobodys = (What.PREEMPTED, What.NEVER_STARTED, What.ROLLED_BACK)
    preempted = sum(each.what is What.PREEMPTED for each in row)
    return sum(each.what not in nobodys for each in row), preempted


def _words(ended: Ended) -> str:
    """Return what became of an attempt, why, and what to do, in words for a person."""
    parts = [ended.what.value]
    if ended.why:
        parts.append(ended.why)
    if ended.cause is not None and ended.what in (What.FAILED, What.HUNG, What.OUT_OF_MEMORY):
        where = ""
        if ended.cause.line:
            place = f"{ended.cause.log}:{ended.cause.number}: " if ended.cause.number else ""
            where = f" ({place}{ended.cause.line.strip()})"
        unknown = ended.cause.reason == UNKNOWN
        said = f"the cause is unknown: {ended.cause.cure}" if unknown else ended.cause.words
        parts.append(f"{said}{where}")
    elif not ended.why and ended.cause is None and ended.what in (What.FAILED, What.HUNG):
        parts.append("the cause is unknown")
    return ": ".join(parts)
