"""The reaction to a cause: another node, less load, a wait, or the end."""

from enum import StrEnum
from typing import NamedTuple

from coordinate_eval.diagnosis.cause import Cause


class Action(StrEnum):
    """A scheduler's option after a failure."""

    ANOTHER_NODE = "another node"
    LESS_LOAD = "less load"
    WAIT = "wait"
    STOP = "stop"


class Reaction(NamedTuple):
    """An action, and the words that say why and what a person can do."""

    action: Action
    words: str


_ACTIONS = {
    "node": Action.ANOTHER_NODE,
    "load": Action.LESS_LOAD,
    "wait": Action.WAIT,
    "stop": Action.STOP,
}


def reaction(cause: Cause | None) -> Reaction:
    """Return what follows from a cause.

    After an unknown cause, another node is tried. Of the shipped reasons only those end a run
    that every job would meet; a site's own say themselves what follows.
    """
    if cause is None or cause.category == "unknown":
        return Reaction(Action.ANOTHER_NODE, "the cause is not known")
    return Reaction(_ACTIONS[cause.then], f"{cause.reason} ({cause.category}): {cause.cure}")
