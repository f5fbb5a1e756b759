"""The meaning of a node's states: one base state with any number of flags, of any version.

Slurm prints them as a list, joined by `+`, or as a state with a sign behind it, such as `IDLE~`.
The table in docs/slurm-words.md is checked by a test. The states: `enum node_states` and the
NODE_STATE flags in Slurm's slurm.h; what they do to jobs: `make_node_avail` and `_pick_best_nodes`.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum


class Takes(StrEnum):
    """The readiness of a node to take jobs."""

    FREE = "now"
    SOON = "later, by itself"
    GONE = "when somebody has mended it"


@dataclass(frozen=True)
class NodeState:
    """A state: its name, what it means for jobs, and why in words for a person.

    A name with `+` is that of states together, and `others` are shorter and older names. Slurm sets
    the states in `brings` along with it, and takes them back with it: they mean nothing of their
    own then. Where the administrator's `reason` belongs to the state, it is shown.
    """

    name: str
    takes: Takes
    words: str = ""
    others: tuple[str, ...] = ()
    brings: tuple[str, ...] = ()
    reason: bool = True


# The worst first: it is what is said of a node.
STATES = (
    NodeState("DOWN", Takes.GONE, "down"),
    NodeState("FAIL", Takes.GONE, "failed", ("FAILING", "FAILG")),
    NodeState("INVALID_REG", Takes.GONE, "lacks what slurm.conf says of it", ("INVAL",)),
    NodeState("DRAIN", Takes.GONE, "drained", ("DRAINED", "DRAINING", "DRNG")),
    NodeState("ERROR", Takes.GONE, "in error"),
    NodeState("FUTURE", Takes.GONE, "not there yet", ("FUTR",)),
    NodeState("EXTERNAL", Takes.GONE, "takes no batch jobs", ("EXT",)),
    NodeState("NOT_RESPONDING+POWERED_DOWN", Takes.GONE,
              "powered down and not responding, so that Slurm never powers it up"),
    NodeState("NOT_RESPONDING", Takes.SOON, "not responding", ("NO_RESPOND",)),
    NodeState("MAINTENANCE", Takes.SOON, "in maintenance", ("MAINT",)),
    NodeState("REBOOT_ISSUED", Takes.SOON, "rebooting", (), ("DOWN", "DRAIN", "NOT_RESPONDING")),
    NodeState("REBOOT_REQUESTED", Takes.SOON, "to be rebooted", ("REBOOT", "BOOT"), ("DRAIN",)),
    NodeState("RESERVED", Takes.SOON, "reserved", ("RESV",), reason=False),
    NodeState("POWER_DOWN", Takes.SOON, "to be powered down",
              ("POW_DN", "POWER_DRAIN", "POWER_DOWN_ASAP", "POWER_DOWN_FORCE"), ("DRAIN",)),
    NodeState("POWERING_DOWN", Takes.SOON, "powering down", ("POWRING_DN",), ("NOT_RESPONDING",)),
    NodeState("POWERED_DOWN", Takes.SOON, "powered down; --queue has Slurm start it",
              ("POWER", "POWERED_DN"), ("POWER_DOWN",)),
    NodeState("POWERING_UP", Takes.SOON, "powering up; --queue has Slurm start it",
              ("POWER_UP", "POW_UP"), ("NOT_RESPONDING",)),
    NodeState("BLOCKED", Takes.SOON, "kept for the job that has its part of the network alone",
              ("BLOCK",), reason=False),
    NodeState("PERFCTRS", Takes.SOON, "in use for performance counters", reason=False),
    NodeState("COMPLETING", Takes.SOON, "a job on it is ending", ("COMP",), reason=False),
    NodeState("PLANNED", Takes.SOON, "promised to a waiting job", ("PLND",), reason=False),
    NodeState("IDLE", Takes.FREE),
    NodeState("MIXED", Takes.FREE, others=("MIX",)),
    NodeState("ALLOCATED", Takes.FREE, others=("ALLOC",)),
    NodeState("CLOUD", Takes.FREE),
    NodeState("DYNAMIC_NORM", Takes.FREE, others=("DYNAMIC",)),
    NodeState("DYNAMIC_FUTURE", Takes.FREE),
    NodeState("UNDRAIN", Takes.FREE),
    NodeState("RESUME", Takes.FREE, others=("RESM",)),
    NodeState("REBOOT_CANCELED", Takes.FREE, others=("CANCEL_REBOOT", "CANC_R")),
)  # fmt: skip

SIGNS = {
    "*": "NOT_RESPONDING",
    "~": "POWERED_DOWN",
    "#": "POWERING_UP",
    "!": "POWER_DOWN",
    "%": "POWERING_DOWN",
    "$": "MAINTENANCE",
    "@": "REBOOT_REQUESTED",
    "^": "REBOOT_ISSUED",
    "-": "PLANNED",
    "+": "COMPLETING",
}
"""The meaning of a sign after a state."""

_OF_RESERVATION = {"RESERVED", "MAINTENANCE"}
_BY_NAME = {name: state for state in STATES for name in (state.name, *state.others)}
_TOGETHER = [state for state in STATES if "+" in state.name]
_ORDER = {state: place for place, state in enumerate(STATES)}


def read_states(words: Iterable[str]) -> list[NodeState]:
    """Return the states in these words, the worst first, without those that another one brings.

    A state that is not known here keeps jobs away.
    """
    found = {state for word in words for state in _states_in(word.strip().upper())}
    names = {state.name for state in found}
    found |= {state for state in _TOGETHER if names.issuperset(state.name.split("+"))}
    brought = {name for state in found for name in state.brings}
    left = [state for state in found if state.name not in brought]
    return sorted(left, key=lambda state: (_ORDER.get(state, len(STATES)), state.name))


def hindrance(states: Iterable[NodeState], *, reserved: bool) -> NodeState | None:
    """Return the worst state that keeps jobs away; None if there is none.

    With `reserved`, jobs are of the reservation that the node is in.
    """
    for state in states:
        if state.takes is not Takes.FREE and not (reserved and state.name in _OF_RESERVATION):
            return state
    return None


def _states_in(text: str) -> Iterable[NodeState]:
    """Yield the states in `IDLE+DRAIN+NOT_RESPONDING`, or in `IDLE*+DRAIN` or `ALLOCATED+`."""
    for part in text.removesuffix("+").split("+"):
        word = part.rstrip("".join(SIGNS))
        if word:
            unknown = NodeState(word, Takes.SOON, word.lower().replace("_", " "))
            yield _BY_NAME.get(word, unknown)
        for sign in part[len(word) :]:
            yield _BY_NAME[SIGNS[sign]]
    if text.endswith("+"):
        yield _BY_NAME["COMPLETING"]
