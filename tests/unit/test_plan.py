"""Plans: every item once, replayable, never under the bound, near it where that can be."""

import itertools
import random
import statistics

import pytest
from benchmarks._instances import random_instance
from hypothesis import given
from hypothesis import strategies as st
from tests.plan_examples import (
    CAPACITIES,
    COSTS,
    SCORED,
    as_file,
    capacity_of,
    plan_of,
    with_scoring,
)
from tests.random_examples import examples
from tests.replay import replayed

from coordinate_eval.coordinator.planning import planner
from coordinate_eval.coordinator.planning.plan import (
    Capacity,
    Cost,
    NodeCapacity,
    Plan,
    PlanTrial,
)
from coordinate_eval.coordinator.planning.simulate import simulate
from coordinate_eval.errors import UserError
from coordinate_eval.records import Shard


@given(COSTS, CAPACITIES)
@examples(60)
def test_every_item_is_in_exactly_one_shard(costs: list[Cost], capacity: Capacity) -> None:
    made = plan_of(costs, capacity)
    for cost in costs:
        spans = sorted(
            (s.start, s.stop) for t in made.trials for s in t.shards if s.dataset == cost.name
        )
        assert spans[0][0] == 0
        assert spans[-1][1] == cost.items
        assert all(a[1] == b[0] for a, b in itertools.pairwise(spans))
        assert all(start < stop for start, stop in spans)
        assert cost.splittable or len(spans) == 1


@given(st.one_of(COSTS, SCORED), CAPACITIES)
@examples(80)
def test_an_estimate_can_be_replayed_and_is_never_under_the_bound(
    costs: list[Cost], capacity: Capacity
) -> None:
    made = plan_of(costs, capacity)
    estimate = made.estimate
    assert estimate.lower_bound_seconds <= estimate.makespan_seconds
    assert 0 <= estimate.gpu_idle_fraction <= 1
    again = replayed(made.model_dump(by_alias=True), as_file(capacity))
    for name, value in again.items():
        assert getattr(estimate, name) == pytest.approx(value, rel=1e-6, abs=1e-6), name


@given(COSTS, CAPACITIES)
@examples(25)
def test_trials_stay_within_nodes(costs: list[Cost], capacity: Capacity) -> None:
    made = plan_of(costs, capacity)
    for node in capacity.nodes:
        assert sum(1 for t in made.trials if t.node == node.name) <= node.trials
    assert len({t.id for t in made.trials}) == len(made.trials)
    assert {s.node for s in made.stages} == {t.node for t in made.trials}


@given(st.one_of(COSTS, SCORED), CAPACITIES)
@examples(60)
def test_never_worse_than_dealing_sorted_datasets_round_robin(
    costs: list[Cost], capacity: Capacity
) -> None:
    made = plan_of(costs, capacity)
    assert made.estimate.makespan_seconds <= round_robin(made, capacity) * (1 + 1e-9)


def round_robin(made: Plan, capacity: Capacity) -> float:
    """The makespan of whole datasets, longest first, dealt to the trials in turn."""
    ordered = sorted(made.datasets, key=lambda c: -c.gpu_seconds)
    slots = [(n, i) for i in range(8) for n in capacity.nodes if i < n.trials]
    start = made.trials[0].start_seconds
    trials = [
        PlanTrial(
            id=f"{node.name}-{index}",
            node=node.name,
            gpus=capacity.gpus_per_trial,
            start_seconds=start,
            setup_seconds=capacity.engine_start_seconds,
            shards=[
                Shard(
                    dataset=c.name, start=0, stop=c.items, gpu_seconds=c.gpu_seconds,
                    metric_cpu_seconds=c.metric_cpu_seconds,
                )
                for c in ordered[number :: len(slots)]
            ],
        )
        for number, (node, index) in enumerate(slots)
    ]  # fmt: skip
    jobs = planner.metric_jobs(
        ordered, trials, capacity.metric_cpus, made.estimate.lower_bound_seconds
    )
    scores = planner.score_jobs(ordered)
    return simulate(ordered, trials, jobs, scores, capacity.metric_cpus).end


@given(COSTS, CAPACITIES, st.integers(1, 8))
@examples(50)
def test_another_node_does_no_harm(costs: list[Cost], capacity: Capacity, trials: int) -> None:
    # Unless it takes a part of the storage that the others read from.
    capacity = capacity.model_copy(update={"storage_shared": 0.0})
    another = NodeCapacity(name="more", gpus=8, gpu_type="h200", trials=trials)
    larger = capacity.model_copy(update={"nodes": [*capacity.nodes, another]})
    before, after = plan_of(costs, capacity).estimate, plan_of(costs, larger).estimate
    assert after.makespan_seconds <= before.makespan_seconds * 1.05
    assert after.lower_bound_seconds <= before.lower_bound_seconds * (1 + 1e-5)


@pytest.mark.parametrize("scoring", [0.0, 0.0008], ids=["without scoring", "scoring as usual"])
def test_random_suites_come_close_to_the_bound(scoring: float) -> None:
    """Seconds of scoring are of an item."""
    ratios = []
    for seed in range(80):
        costs, capacity = random_instance(random.Random(seed), gpus=(1, 256))
        scored = with_scoring(costs, [scoring * cost.items for cost in costs])
        estimate = plan_of(scored, capacity).estimate
        ratios.append(estimate.makespan_seconds / estimate.lower_bound_seconds)
    assert statistics.median(ratios) <= 1.03
    assert max(ratios) <= 1.10


def test_a_score_follows_all_responses_and_metrics_of_its_dataset() -> None:
    costs = [
        Cost(name="long", items=1, gpu_seconds=4, metric_cpu_seconds=6, score_seconds=9),
        Cost(name="short", items=1, gpu_seconds=10, score_seconds=1),
    ]
    made = plan_of(costs, capacity_of(1, cpus=2))
    assert [s.dataset for s in made.trials[0].shards] == ["long", "short"]
    assert [(job.dataset, job.seconds) for job in made.score_jobs] == [("long", 9), ("short", 1)]
    # Staged at 1, answered at 5, its metric on two cores until 8.
    drawn = simulate(costs, made.trials, made.metric_jobs, made.score_jobs, 2)
    assert [(bar.begin, bar.end) for bar in drawn.scores] == [(8, 17), (15, 16)]
    assert made.estimate.makespan_seconds == made.estimate.lower_bound_seconds == 17


def test_a_plan_without_scoring_does_not_mention_it() -> None:
    made = plan_of([Cost(name="d", items=1, gpu_seconds=1)], capacity_of(1))
    assert "score" not in made.model_dump_json(by_alias=True)


def test_the_longest_begin_first_where_nothing_follows() -> None:
    costs = [
        Cost(name="middle", items=100, gpu_seconds=20, spread=1.0, splittable=False),
        Cost(name="long", items=100, gpu_seconds=30, spread=0.1, splittable=False),
        Cost(name="short", items=100, gpu_seconds=1, spread=1.0, splittable=False),
        Cost(name="tail", items=100, gpu_seconds=5, floor_seconds=100, splittable=False),
    ]
    made = plan_of(costs, capacity_of(1))
    order = [s.dataset for s in made.trials[0].shards]
    assert order == ["tail", "long", "middle", "short"]


def test_whole_datasets_in_the_best_order_where_cuts_cost_much() -> None:
    costs = [
        Cost(name="a", items=3, gpu_seconds=4, chunk_overhead_seconds=3),
        Cost(name="b", items=2, gpu_seconds=7, chunk_overhead_seconds=3),
        Cost(name="c", items=2, gpu_seconds=3, chunk_overhead_seconds=3, floor_seconds=12),
    ]
    made = plan_of(costs, capacity_of(1))
    assert made.trials[0].shards[0].dataset == "c"
    assert made.estimate.makespan_seconds == pytest.approx(1 + 14)


def test_nothing_to_plan_is_said() -> None:
    with pytest.raises(UserError, match="no node"):
        plan_of([Cost(name="d", items=1, gpu_seconds=1)], capacity_of())
    with pytest.raises(UserError, match="no datasets"):
        plan_of([], capacity_of(1))
