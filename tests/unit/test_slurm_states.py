"""States of nodes with several flags, as Slurm 20.11 to 26.05 prints them."""

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st
from tests.slurm_nodes import node

from coordinate_eval.slurm.answers.nodes import Wanted, read_nodes
from coordinate_eval.slurm.answers.states import STATES, Takes, hindrance, read_states

TESTS = Path(__file__).parents[1]
DOCS = TESTS.parent / "docs" / "slurm-words.md"

FREE, SOON, GONE = Takes.FREE, Takes.SOON, Takes.GONE

# What scontrol and sinfo print, when the node takes jobs, and what is said of it until then.
PRINTED = [
    ("IDLE", FREE, ""),
    ("MIXED", FREE, ""),
    ("ALLOCATED", FREE, ""),
    ("idle", FREE, ""),
    ("IDLE+CLOUD", FREE, ""),
    ("MIXED+CLOUD", FREE, ""),
    ("IDLE+DYNAMIC_NORM", FREE, ""),
    ("IDLE+CLOUD+DYNAMIC_NORM", FREE, ""),
    ("IDLE+DYNAMIC_FUTURE", FREE, ""),  # of slurmd -F: it has registered
    ("MIXED+DYNAMIC_FUTURE", FREE, ""),
    ("IDLE+DYNAMIC", FREE, ""),  # 21.08
    ("IDLE+UNDRAIN", FREE, ""),
    ("IDLE+RESUME", FREE, ""),
    ("IDLE+REBOOT_CANCELED", FREE, ""),
    ("IDLE+CLOUD+POWERED_DOWN", SOON, "powered down; --queue has Slurm start it"),
    ("IDLE+CLOUD+POWER", SOON, "powered down; --queue has Slurm start it"),  # 20.11
    ("IDLE~", SOON, "powered down; --queue has Slurm start it"),
    ("idle~", SOON, "powered down; --queue has Slurm start it"),
    ("IDLE~+CLOUD", SOON, "powered down; --queue has Slurm start it"),
    ("IDLE+CLOUD+NOT_RESPONDING+POWERING_UP", SOON,
     "powering up; --queue has Slurm start it"),
    ("MIXED+CLOUD+NOT_RESPONDING+POWERING_UP", SOON,
     "powering up; --queue has Slurm start it"),
    ("IDLE+CLOUD+POWER_UP+POWERED_DOWN", SOON,
     "powered down; --queue has Slurm start it"),
    ("IDLE#", SOON, "powering up; --queue has Slurm start it"),
    ("alloc#", SOON, "powering up; --queue has Slurm start it"),
    # After power_down_force, see aws/aws-parallelcluster-node#402.
    ("IDLE+CLOUD+POWER_DOWN+POWERED_DOWN", SOON,
     "powered down; --queue has Slurm start it"),
    ("IDLE+CLOUD+POWERING_DOWN", SOON, "powering down"),
    ("IDLE+CLOUD+NOT_RESPONDING+POWERING_DOWN", SOON, "powering down"),
    ("idle%", SOON, "powering down"),
    ("MIXED+POWER_DOWN", SOON, "to be powered down"),
    ("MIXED!", SOON, "to be powered down"),
    ("MIXED+DRAIN+POWER_DOWN", SOON, "to be powered down"),  # scontrol ... power_down_asap
    ("MIXED+DRAIN+POWER_DOWN+POWER_DRAIN", SOON, "to be powered down"),
    ("MIXED+DRAIN+POWER_DOWN_ASAP", SOON, "to be powered down"),
    ("IDLE+PLANNED", SOON, "promised to a waiting job"),
    ("MIXED+PLANNED", SOON, "promised to a waiting job"),
    ("MIXED-", SOON, "promised to a waiting job"),
    ("PLND", SOON, "promised to a waiting job"),
    ("IDLE+CLOUD+PLANNED+POWERED_DOWN", SOON, "powered down; --queue has Slurm start it"),
    ("IDLE+COMPLETING", SOON, "a job on it is ending"),
    ("MIXED+COMPLETING", SOON, "a job on it is ending"),
    ("ALLOCATED+", SOON, "a job on it is ending"),
    ("COMP", SOON, "a job on it is ending"),
    ("COMPLETING*", SOON, "not responding"),
    ("IDLE+BLOCKED", SOON, "kept for the job that has its part of the network alone"),
    ("IDLE+PERFCTRS", SOON, "in use for performance counters"),
    ("IDLE+RESERVED", SOON, "reserved"),
    ("resv", SOON, "reserved"),
    ("IDLE+MAINTENANCE", SOON, "in maintenance"),
    ("IDLE+MAINTENANCE+RESERVED", SOON, "in maintenance"),
    ("MAINT", SOON, "in maintenance"),
    ("mix$", SOON, "in maintenance"),
    ("IDLE+NOT_RESPONDING", SOON, "not responding"),
    ("MIXED*", SOON, "not responding"),
    ("MAINT*", SOON, "not responding"),
    ("UNKNOWN", SOON, "unknown"),
    ("UNKNOWN*", SOON, "not responding"),
    ("IDLE+REBOOT_REQUESTED", SOON, "to be rebooted"),
    ("MIXED@", SOON, "to be rebooted"),
    ("REBOOT", SOON, "to be rebooted"),
    ("MIXED+DRAIN+REBOOT_REQUESTED", SOON, "to be rebooted"),  # scontrol reboot ASAP
    ("DOWN+REBOOT_ISSUED", SOON, "rebooting"),
    ("DOWN+DRAIN+NOT_RESPONDING+REBOOT_ISSUED", SOON, "rebooting"),
    ("REBOOT^", SOON, "rebooting"),
    ("IDLE^*", SOON, "rebooting"),
    ("DOWN", GONE, "down"),
    ("DOWN*", GONE, "down"),
    ("down*", GONE, "down"),
    ("DOWN+NOT_RESPONDING", GONE, "down"),
    ("DOWN+DRAIN", GONE, "down"),
    ("DOWN+DRAIN+RESERVED", GONE, "down"),
    ("DOWN+MAINTENANCE", GONE, "down"),
    ("DOWN+CLOUD+NOT_RESPONDING+POWERED_DOWN", GONE, "down"),  # it did not come up in time
    ("DOWN~+CLOUD", GONE, "down"),
    # See aws/aws-parallelcluster#7577: idle to look at, and never chosen.
    ("IDLE+CLOUD+NOT_RESPONDING+POWERED_DOWN", GONE,
     "powered down and not responding, so that Slurm never powers it up"),
    ("DOWN+CLOUD+NOT_RESPONDING+POWER_DOWN+POWERED_DOWN", GONE, "down"),
    ("IDLE+DRAIN", GONE, "drained"),
    ("IDLE*+DRAIN", GONE, "drained"),
    ("MIXED+DRAIN+PLANNED", GONE, "drained"),
    ("ALLOCATED+DRAIN", GONE, "drained"),
    ("DRAINING@", SOON, "to be rebooted"),
    ("DRAINED~", GONE, "drained"),
    ("drng", GONE, "drained"),
    ("IDLE+DRAIN+INVALID_REG", GONE, "lacks what slurm.conf says of it"),
    ("INVAL", GONE, "lacks what slurm.conf says of it"),
    ("IDLE+FAIL", GONE, "failed"),
    ("FAILING*", GONE, "failed"),
    ("ERROR", GONE, "in error"),
    ("FUTURE", GONE, "not there yet"),
    ("FUTURE+DYNAMIC_FUTURE", GONE, "not there yet"),
    ("IDLE+EXTERNAL", GONE, "takes no batch jobs"),
    ("IDLE+SOMETHING_NEW", SOON, "something new"),
]  # fmt: skip


def test_when_a_node_takes_jobs() -> None:
    wanted = Wanted(partitions=frozenset({"low"}))
    for text, takes, words in PRINTED:
        free, busy = read_nodes([node(State=text)], wanted)
        assert bool(free) is (takes is FREE), text
        assert [each.away for each in busy] == ([] if free else [takes is GONE]), text
        if busy:
            assert busy[0].why == words


@given(st.permutations(["IDLE", "DRAIN", "PLANNED", "CLOUD", "NOT_RESPONDING", "SOMETHING"]))
def test_their_order_says_nothing(words: list[str]) -> None:
    assert read_states(words) == read_states(sorted(words)) == read_states(["+".join(words)])


def test_in_its_own_reservation_only_that_is_ignored() -> None:
    for words, kept in (
        ("IDLE+RESERVED", None),
        ("IDLE+MAINTENANCE", None),
        ("IDLE$+DRAIN", "DRAIN"),
    ):
        found = hindrance(read_states([words]), reserved=True)
        assert (found and found.name) == kept


def test_the_documentation_has_this_table() -> None:
    lines = [
        f"| {', '.join(f'`{name}`' for name in (state.name, *state.others))} "
        f"| {state.takes} | {state.words} |"
        for state in STATES
    ]
    assert "\n".join(lines) in DOCS.read_text()
