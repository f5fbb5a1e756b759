"""When a judge has answered: what it adds to a plan, and what comes first because of it."""

import math
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.plan_examples import CAPACITIES, COSTS, ENGINE, SUITE, as_file, capacity_of
from tests.plans import CHECKPOINT
from tests.random_examples import examples
from tests.replay import replayed

from coordinate_eval.coordinator.planning import planner
from coordinate_eval.coordinator.planning.judging import judged
from coordinate_eval.coordinator.planning.plan import Capacity, Cost, JudgeWork, Plan, PlanTrial
from coordinate_eval.coordinator.planning.simulate import Timeline, simulate
from coordinate_eval.records import Shard

SERVER = JudgeWork(questions=100, gpus=0)
RATED = COSTS.flatmap(
    lambda costs: st.lists(
        st.one_of(st.just(0.0), st.floats(0.1, 5_000)), min_size=len(costs), max_size=len(costs)
    ).map(lambda seconds: rated(costs, seconds))
)
"""Costs of which some are rated by a judge."""
WORK = st.builds(JudgeWork, questions=st.just(100), gpus=st.integers(0, 16))


def rated(costs: Sequence[Cost], seconds: Sequence[float]) -> list[Cost]:
    return [c.model_copy(update={"judge_seconds": s}) for c, s in zip(costs, seconds, strict=True)]


def make(
    costs: Sequence[Cost],
    capacity: Capacity,
    judge: JudgeWork | None,
    latest: float = math.inf,
) -> Plan:
    return planner.plan_on_capacity(
        CHECKPOINT, SUITE, ENGINE, costs, capacity, judge=judge, latest=latest
    )


def timeline(costs: list[Cost], *queues: str) -> Timeline:
    """Trials on a GPU each, ready after a second, with whole datasets by name."""
    trials = [
        PlanTrial(
            id=f"n-{number}", node="n", gpus=1, start_seconds=0, setup_seconds=1,
            shards=[
                Shard(
                    dataset=cost.name, start=0, stop=cost.items, gpu_seconds=cost.gpu_seconds,
                    metric_cpu_seconds=0,
                )
                for name in queue
                for cost in costs
                if cost.name == name
            ],
        )
        for number, queue in enumerate(queues)
    ]  # fmt: skip
    return simulate(costs, trials, [], [], 1)


def cost(name: str, gpu_seconds: float, judge_seconds: float = 0.0, scoring: float = 0.0) -> Cost:
    return Cost(
        name=name, items=10, gpu_seconds=gpu_seconds, judge_seconds=judge_seconds,
        score_seconds=scoring,
    )  # fmt: skip


def test_a_server_answers_while_trials_go_on() -> None:
    costs = [cost("a", 10, judge_seconds=100), cost("b", 200), cost("c", 50, judge_seconds=30)]
    both = judged(SERVER, costs, timeline(costs, "ab", "c"))
    assert (both.begin_seconds, both.end_seconds) == (11, 11 + 100 + 30)
    late = judged(SERVER, costs, timeline(costs, "bac"))
    assert (late.begin_seconds, late.end_seconds) == (211, 211 + 100 + 30)
    waits = judged(SERVER, costs, timeline(costs, "abc"))
    assert waits.end_seconds == 1 + 10 + 200 + 50 + 30


@pytest.mark.parametrize(
    ("gpus", "spare", "begin"),
    [(1, 0, 51), (1, 1, 11), (2, 0, 211), (2, 1, 51), (2, 2, 11), (8, 0, 211)],
)
def test_a_checkpoint_begins_when_answers_and_gpus_are_there(
    gpus: int, spare: int, begin: float
) -> None:
    costs = [cost("a", 10, judge_seconds=100, scoring=7), cost("b", 200), cost("c", 50)]
    work = JudgeWork(questions=1, gpus=gpus, gpu_type="h200", weights_gib=14.0)
    found = judged(work, costs, timeline(costs, "ab", "c"), spare)
    assert JudgeWork.model_validate(found.model_dump()) == work  # its job asks for that
    assert (found.begin_seconds, found.end_seconds) == (begin, begin + 100 + 7)
    late = judged(work, costs, timeline(costs, "ba", "c"), spare)
    assert late.begin_seconds >= 211


@given(RATED, CAPACITIES, WORK)
@examples(100)
def test_it_changes_no_meaning_of_a_plan_and_what_it_costs_comes_back_in_the_last_score(
    costs: list[Cost], capacity: Capacity, work: JudgeWork
) -> None:
    made = make(costs, capacity, work)
    again = replayed(made.model_dump(by_alias=True), as_file(capacity))
    for name, value in again.items():
        assert getattr(made.estimate, name) == pytest.approx(value, rel=1e-6, abs=1e-6), name
    assert made.judge is not None
    assert made.judge.begin_seconds <= made.judge.end_seconds
    assert made.last_score_seconds >= made.estimate.makespan_seconds
    plain = make(rated(costs, [0.0] * len(costs)), capacity, None)
    bars = simulate(costs, plain.trials, plain.metric_jobs, plain.score_jobs, capacity.metric_cpus)
    slots = sum(node.trials for node in capacity.nodes)
    spare = (slots - len(plain.trials)) * capacity.gpus_per_trial
    without = judged(work, costs, bars, spare).end_seconds
    makespan = plain.estimate.makespan_seconds
    longer = made.estimate.makespan_seconds - makespan
    sooner = max(makespan, without) - made.last_score_seconds
    assert longer <= sooner + 1e-6 * makespan
    hurried = make(costs, capacity, work, latest=makespan)
    assert hurried.estimate.makespan_seconds <= makespan


def test_what_a_judge_rates_comes_first() -> None:
    costs = [cost("a", 400), cost("b", 300), cost("rated", 20, judge_seconds=200)]
    made = make(costs, capacity_of(2), SERVER)
    (first,) = {t.shards[0].dataset for t in made.trials if any(
        shard.dataset == "rated" for shard in t.shards
    )}  # fmt: skip
    assert first == "rated"
    assert made.judge is not None
    assert made.last_score_seconds == made.estimate.makespan_seconds


def test_a_plan_without_a_judge_says_nothing_of_one() -> None:
    made = make([cost("a", 400)], capacity_of(2), None).model_dump(by_alias=True)
    assert "judge" not in made
    assert "judge_seconds" not in made["datasets"][0]
