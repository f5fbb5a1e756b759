"""Trials that replace lost ones while others run: within limits, and where it pays."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.decisions import (
    DIR,
    claimed,
    facts,
    make_run,
    submitted,
    tasks,
    waiting_for,
)
from tests.random_examples import examples

from coordinate_eval.clusters.protocol import State
from coordinate_eval.coordinator.run import jobs
from coordinate_eval.coordinator.run.records import Round, RoundNode, Submitted
from coordinate_eval.coordinator.supervisor import values as d
from coordinate_eval.coordinator.supervisor.decide import decide
from coordinate_eval.coordinator.supervisor.decide_rounds import (
    count_trials,
    held_nodes,
    missing_trials,
)
from coordinate_eval.records import Shard

SHARDS = [
    Shard(dataset="a", start=n, stop=n + 1, gpu_seconds=10, metric_cpu_seconds=0)
    for n in range(400)
]
RUN = make_run(shards=SHARDS)
READY = 50.0
FOUR = [RoundNode(name=f"n{n}", gpu_type="h200", trials=8) for n in range(4)]
FIRST = Round(number=0, created=0, nodes=FOUR, minutes=30)


def lost(left: int, *, running: int = 1, pending: int = 0, **changes: object) -> d.Facts:
    """32 trials were asked for; so many run or are pending; so many shards can be claimed."""
    names = [jobs.trials_name(RUN, 0, node.name) for node in FOUR]
    keepers = [jobs.keeper_name(RUN, 0, node.name) for node in FOUR]
    states = [State.RUNNING] * running + [State.PENDING] * pending
    states += [State.ENDED] * (32 - len(states))
    spans = [shard.span for shard in SHARDS[:left]]
    known = facts(
        now=1000,
        rounds=[FIRST],
        asked=0.0,
        submitted=submitted(*names, *keepers, when=990, count=8),
        tasks=[t for n, name in enumerate(names) for t in tasks(name, *states[8 * n : 8 * n + 8])],
        unpublished=[shard.span for shard in SHARDS],
        claimable=waiting_for(outputs=spans),
        most_trials=32,
        ready_seconds=READY,
        pace=1.0,
    )  # fmt: skip
    return replace(known, **changes)  # type: ignore[arg-type]  # names of its fields


def asked(found: d.Facts) -> int:
    """Trials that a new round is asked for, 0 if none is."""
    rounds = [action for action in decide(RUN, DIR, found) if isinstance(action, d.NewRound)]
    assert len(rounds) <= 1
    return rounds[0].trials if rounds else 0


def test_what_was_lost_is_replaced_while_one_goes_on() -> None:
    assert asked(lost(400)) == 31
    assert asked(lost(400, running=20, pending=4)) == 8
    assert asked(lost(400, running=32)) == 0


def test_only_as_many_come_as_the_work_left_pays_for() -> None:
    # 600 s: one trial does 50 s of it until others are ready; 550 s are 11 times 50 s.
    assert asked(lost(60)) == 10
    assert asked(lost(60, pace=2.0)) == 22
    assert asked(lost(15)) == 1
    assert asked(lost(14)) == 0
    assert asked(lost(60, running=8)) == 0


def test_what_nobody_can_claim_needs_no_trial() -> None:
    slow = make_run(shards=[shard.model_copy(update={"gpu_seconds": 1e4}) for shard in SHARDS])
    assert missing_trials(slow, lost(3)) == 3
    assert missing_trials(slow, lost(3, pending=2)) == 1
    assert missing_trials(slow, lost(0)) == 0


def test_nothing_is_replaced_at_once_nor_before_a_trial_has_answered() -> None:
    assert asked(lost(400, pace=None)) == 0
    poll = RUN.settings.supervisor.poll_seconds
    assert asked(lost(400, asked=1000 - 6 * poll + 1)) == 0
    assert asked(lost(400, asked=1000 - 6 * poll)) == 31
    # The last round answered nothing: the next one waits for longer.
    assert asked(lost(400, asked=1000 - 6 * poll, fruitless_rounds=1)) == 0
    assert asked(lost(400, asked=1000 - 12 * poll, fruitless_rounds=1)) == 31


def test_replacements_count_and_their_nodes_too() -> None:
    second = Round(number=1, created=900, nodes=[FOUR[0]], minutes=30)
    both = lost(400, rounds=[FIRST, second])
    assert count_trials(RUN, both) == (1, 8)  # nothing is submitted for the second round yet
    assert asked(both) == 23
    assert held_nodes(RUN, both) == {"n0"}
    assert held_nodes(RUN, lost(400, running=9)) == {"n0", "n1"}
    assert held_nodes(RUN, lost(400, running=0)) == set()
    assert count_trials(make_run(exclusive=True, shards=SHARDS), lost(400))[0] == 8


def test_a_job_for_all_trials_of_a_node_counts_as_all_of_them() -> None:
    whole = {
        name: Submitted(job=jobs.node_job(RUN, DIR, FIRST, node), job_id=name, time=990)
        for node in FOUR
        for name in [jobs.trials_name(RUN, 0, node.name)]
    }
    running = [task for name in whole for task in tasks(name, State.RUNNING)]
    known = lost(400, submitted=whole, tasks=running)
    assert count_trials(RUN, known) == (32, 0)
    assert asked(known) == 0


def test_what_lost_trials_held_is_waited_for() -> None:
    orphan = [("outputs", claimed(SHARDS[399].span, "gone_7.0"))]
    assert asked(lost(15)) == 1
    assert asked(lost(15, open_claims=orphan)) == 0  # with its shards more may pay
    assert asked(lost(5, running=0, open_claims=orphan)) == 6


@given(
    left=st.integers(0, 400),
    running=st.integers(0, 32),
    pending=st.integers(0, 32),
    pace=st.one_of(st.none(), st.floats(0.1, 10)),
    ready=st.floats(0, 5000),
    most=st.integers(0, 64),
)
@examples(300)
def test_never_too_many_and_never_for_nothing(
    left: int, running: int, pending: int, pace: float | None, ready: float, most: int
) -> None:
    pending = min(pending, 32 - running)
    known = lost(
        left, running=running, pending=pending, pace=pace, ready_seconds=ready, most_trials=most
    )
    missing = missing_trials(RUN, known)
    assert missing >= 0
    if missing:
        assert pace is not None
        assert running + pending + missing <= most
        assert pending + missing <= left
        then = left * 10 * pace - running * ready
        assert then / (running + missing) >= ready - 1e-6
        # More that wait, or run, are never a reason for more.
        fewer = lost(left, running=running, pending=min(pending + 1, 32 - running), pace=pace,
                     ready_seconds=ready, most_trials=most)  # fmt: skip
        assert missing_trials(RUN, fewer) <= missing


@pytest.mark.parametrize("lives", [True, False])
@given(st.data())
@examples(20)
def test_rounds_come_to_an_end_whatever_is_lost(lives: bool, data: st.DataObject) -> None:
    """Trials do a shard in 10 s; some are lost at any time; rounds are started as decided."""
    left, running, now, asked_at, rounds = len(SHARDS), 32, 0.0, 0.0, 1
    while left:
        running -= data.draw(st.integers(0, running - lives), label="lost")
        left = max(0, left - running)
        now += 10
        known = lost(left, running=running, now=now, asked=asked_at)
        if not running:  # the next round, of which one trial lives for a while
            running, rounds, asked_at = min(32, max(1, left)), rounds + 1, now
            left = max(0, left - 1)
        elif left and (new := asked(known)):
            assert running + new <= 32
            running, rounds, asked_at = running + new, rounds + 1, now
    assert rounds <= 1 + now / 10
