"""What follows from a cause: another node, less load, a wait, or the end."""

from enum import StrEnum
from typing import NamedTuple

from coordinate_eval.diagnosis.cause import Cause


class Action(StrEnum):
    """What a scheduler may do after a failure."""

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

_MET_BY_ALL = frozenset(
    {
        "Import Error",
        "Syntax Error",
        "Argument Error",
        "Name Error",
        "Permission Error",
        "File Not Found Error",
        "Model Loading Error",
    }
)
"""Script errors, and models that cannot be loaded, which come again on each node."""


def reaction(cause: Cause | None) -> Reaction:
    """Return what follows from a cause.

    Only what every job would meet ends a run. What comes from the infrastructure, and what nobody
    knows, is tried again on another node.
    """
    if cause is None or cause.category == "unknown":
        return Reaction(Action.ANOTHER_NODE, "the cause is not known")
    words = f"{cause.reason} ({cause.category}): {cause.cure}"
    action = _ACTIONS[cause.then]
    if action is Action.STOP and cause.reason not in _MET_BY_ALL | {"Refused", "Cancelled"}:
        action = Action.ANOTHER_NODE if cause.category != "slurm" else Action.WAIT
    if action is Action.STOP and cause.category == "infrastructure":
        action = Action.WAIT
    return Reaction(action, words)
