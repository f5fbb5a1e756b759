"""Whether causes of deaths end a run: what every other job would meet, and not one node's fault."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.decisions import DIR, ROUND, RUN, TRIAL, facts, submitted, tasks
from tests.incidents import incident, trial
from tests.random_examples import examples

from coordinate_eval.clusters.protocol import State
from coordinate_eval.coordinator.incidents.incident import Incident, keeper_id
from coordinate_eval.coordinator.run.jobs import trial_id, trials_name
from coordinate_eval.coordinator.run.records import Round, RoundNode, TrialProgress
from coordinate_eval.coordinator.supervisor import values as d
from coordinate_eval.coordinator.supervisor.decide import MOST_LOGS, decide
from coordinate_eval.coordinator.supervisor.decide_rounds import (
    LONGEST_PAUSE_SECONDS,
    MAX_IDLE_ROUNDS,
)
from coordinate_eval.diagnosis.cause import UNKNOWN


def seen(
    states: Mapping[str, Sequence[State]],
    dead: Sequence[Incident],
    others: Sequence[TrialProgress] = (),
    **changes: Any,
) -> d.Facts:
    """A round of two trials on each of two nodes: the states of their tasks, and who died."""
    begun = [*(trial(each.job, each.node) for each in dead if "keeper" not in each.job), *others]
    known = facts(
        now=1000,
        submitted=submitted(*TRIAL, when=990),
        tasks=[
            task.model_copy(update={"node": node})
            for node, each in states.items()
            for task in tasks(TRIAL[int(node[1]) - 1], *each)
        ],
        last=(ROUND, begun),
        trials={each.trial: each for each in begun},
        incidents=dead,
    )
    return replace(known, **changes)


def finished(found: d.Facts) -> str:
    """Why the run ends; empty if it goes on."""
    return next((a.why for a in decide(RUN, DIR, found) if isinstance(a, d.Finish)), "")


def tried_elsewhere(found: d.Facts) -> str:
    """Why the run ends if no other node is there; empty if it goes on in any case, or ends."""
    return next((a.otherwise for a in decide(RUN, DIR, found) if isinstance(a, d.NewRound)), "")


BOTH = [incident("n1-0"), incident("n2-0", "n2")]


def test_what_every_job_would_meet_ends_the_run_with_its_cure() -> None:
    why = finished(seen({}, BOTH))
    assert why.endswith("another round would fail too: Import Error (script): install it")
    waiting = {"n1": [State.ENDED, State.PENDING], "n2": [State.ENDED, State.PENDING]}
    assert finished(seen(waiting, BOTH)) == why, "two nodes agree: the queue is not waited for"


@pytest.mark.parametrize(
    "found",
    [
        seen({}, BOTH, answered=True),
        seen({}, BOTH[:1]),
        seen({}, [incident("n1-0"), incident("n1-1")]),
        seen({}, [BOTH[0], incident("n2-0", "n2", reason="Permission Error")]),
        seen({}, [BOTH[0], incident("n2-0", "n2", before_work=False)]),
        seen({}, [BOTH[0], incident("n2-0", "n2", category="slurm", reason="Cancelled")]),
        seen({}, [BOTH[0], incident("n2-0", "n2", then="node")]),
        seen({}, BOTH, [trial("n1-1", "n1", "ended")]),
        seen({}, BOTH, [trial("n1-1", "n1")]),
        seen({"n2": [State.ENDED, State.RUNNING]}, BOTH),
        seen({"n2": [State.PENDING]}, [incident("n1-0"), incident("n1-1")]),
    ],
    ids=[
        "answered", "one trial", "one node of two", "two reasons", "after work came",
        "the scheduler did it", "tried elsewhere", "one ended well", "one of another cause",
        "one begins", "another node is to come",
    ],
)  # fmt: skip
def test_one_odd_trial_or_node_ends_nothing(found: d.Facts) -> None:
    assert finished(found) == ""


@pytest.mark.parametrize("trials", [1, 2])
def test_where_one_node_is_asked_for_another_is_tried_before_the_end(trials: int) -> None:
    node = RoundNode(name="n1", gpu_type="h200", trials=trials)
    alone = ROUND.model_copy(update={"nodes": [node]})
    one, two = incident("n1-0"), incident("n1-1")
    found = seen({}, [one], rounds=[alone], last=(alone, [trial("n1-0", "n1")]))
    assert tried_elsewhere(found)
    both = [trial("n1-0", "n1"), trial("n1-1", "n1")]
    found = seen({}, [one, two], rounds=[alone], last=(alone, both))
    assert finished(found) == ""
    assert tried_elsewhere(found).endswith("fail too: Import Error (script): install it")
    before = incident("n2-0-r0", "n2")
    assert finished(replace(found, incidents=[before, *found.incidents]))
    assert finished(replace(found, idle_rounds=MAX_IDLE_ROUNDS)), "no other node was to be had"


def test_a_node_that_says_the_same_twice_is_believed() -> None:
    """No other one was to be had in between: it was suspected, and others were looked for."""
    node = RoundNode(name="n1", gpu_type="h200", trials=2)
    second = ROUND.model_copy(update={"nodes": [node], "number": 1})
    now = [incident("n1-0-r1"), incident("n1-1-r1")]
    tried = second, [trial(each.job, "n1") for each in now]
    gone = submitted(trials_name(RUN, 1, "n1"))
    found = seen({}, now, rounds=[second], last=tried, submitted=gone)
    assert tried_elsewhere(found), "two trials of one round are one opinion"

    def after(earlier: Incident) -> d.Facts:
        return replace(found, incidents=[earlier, *found.incidents])

    assert finished(after(incident("n1-0"))).endswith("Import Error (script): install it")
    assert tried_elsewhere(after(incident(keeper_id(1, "n1")))), "its keeper is of that round"
    for other in ({"reason": "Permission Error"}, {"before_work": False}):
        assert tried_elsewhere(after(incident("n1-0", **other))), "it died of something else before"


def test_rounds_without_a_response_end_with_the_last_known_cause() -> None:
    said = f"{MAX_IDLE_ROUNDS} rounds in a row produced no response"
    idle = replace(seen({}, []), idle_rounds=MAX_IDLE_ROUNDS)
    assert finished(idle) == said
    before = {"then": "load", "reason": "Out of Memory Error", "cure": "use less"}
    earlier = incident("n9-0", "n9", **before)
    known = replace(idle, incidents=[earlier])
    assert finished(known).startswith(f"{said}; the last job of which the cause is known died of ")
    assert finished(known).endswith("Out of Memory Error (script): use less")
    last = [incident("n1-0", before_work=False), incident("n2-0", "n2", reason=UNKNOWN)]
    found = seen({}, last, idle_rounds=MAX_IDLE_ROUNDS)
    found = replace(found, incidents=[earlier, *found.incidents])
    assert finished(found).endswith("Import Error (script): install it"), "of the last round"


@pytest.mark.parametrize("reason", ["Argument Error", "Model Loading Error", "Value Error"])
def test_what_no_node_brings_about_ends_a_run_on_one_node(reason: str) -> None:
    node = RoundNode(name="n1", gpu_type="h200", trials=1)
    alone = ROUND.model_copy(update={"nodes": [node]})
    last = alone, [trial("n1-0", "n1")]
    wrong = incident("n1-0", reason=reason)
    assert finished(seen({}, [wrong], rounds=[alone], last=last))
    bad = alone, [trial("n1-0", "n1", cause="input")]
    assert finished(seen({}, [incident("n1-0", said="input")], rounds=[alone], last=bad))


def test_keepers_that_no_trial_followed_tell_too() -> None:
    first = incident(keeper_id(0, "n1"), reason="Permission Error")
    second = incident(keeper_id(0, "n2"), "n2", reason="Permission Error")
    released = frozenset({(0, "n1"), (0, "n2")})
    none = seen({}, [first, second], submitted={}, released=released)
    assert "every keeper of a round failed" in finished(none)
    assert not finished(seen({}, [first], submitted={}, released=released))


STATES = st.sampled_from(
    ["none", "running", "ended", "answered", "import", "rights", "odd", "late"]
)


@given(st.lists(st.lists(STATES, min_size=1, max_size=3), min_size=1, max_size=3))
@examples(300)
def test_no_words_of_a_log_end_a_run_that_might_go_on(nodes: list[list[str]]) -> None:
    names = [f"n{number}" for number in range(1, len(nodes) + 1)]
    asked = [
        RoundNode(name=name, gpu_type="h200", trials=len(each))
        for name, each in zip(names, nodes, strict=True)
    ]
    round_ = Round(number=0, created=0, nodes=asked, minutes=9)
    begun, dead, alive = [], [], []
    for name, each in zip(names, nodes, strict=True):
        for index, word in enumerate(each):
            job = trial_id(name, index, 0)
            state = word if word in ("running", "ended") else "failed"
            if word != "none":
                begun.append(trial(job, name, state, responses=int(word == "answered")))
            if word in ("import", "rights", "late"):
                reason = "Permission Error" if word == "rights" else "Import Error"
                dead.append(incident(job, name, reason=reason, before_work=word != "late"))
            alive.append(State.RUNNING if word == "running" else State.ENDED)
    found = facts(
        now=1000,
        rounds=[round_],
        submitted=submitted(*(TRIAL[0].replace("n1", name) for name in names)),
        answered=any("answered" in each for each in nodes),
        last=(round_, begun),
        trials={each.trial: each for each in begun},
        incidents=dead,
    )
    words = [word for each in nodes for word in each if word != "none"]
    tried = [each for each in nodes if set(each) - {"none"}]
    same = len(set(words)) == 1 and words[0] in ("import", "rights")
    assert bool(finished(found)) == (same and len(tried) > 1)
    assert bool(tried_elsewhere(found)) == (same and len(tried) == 1)


def test_nothing_is_decided_before_each_log_is_read_and_few_are_at_once() -> None:
    dead = [incident(f"n1-{n}", cause=None) for n in range(99)]
    found = seen({}, BOTH, observed=dead)
    actions = decide(RUN, DIR, found)
    (read,) = (a for a in actions if isinstance(a, d.FindCauses | d.NewRound | d.Finish))
    assert read == d.FindCauses(tuple(dead[:MOST_LOGS]))


@given(waits=st.integers(0, 40), idle=st.integers(0, 2), passed=st.floats(0, 4000))
@examples(200)
def test_the_next_round_waits_ever_longer_and_not_for_ever(
    waits: int, idle: int, passed: float
) -> None:
    found = seen({}, [], waits=waits, idle_rounds=idle, asked=0.0, now=passed)
    starts = any(isinstance(action, d.NewRound) for action in decide(RUN, DIR, found))
    pause = max(10.0 * idle, min(LONGEST_PAUSE_SECONDS, 10.0 * 2**waits) if waits else 0.0)
    assert starts == (passed >= pause)
