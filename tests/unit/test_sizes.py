"""The number of GPUs of a plan."""

import random
import statistics
from collections.abc import Sequence
from typing import Any

import pytest
from benchmarks._instances import base, random_instance
from tests.plan_examples import ENGINE, SUITE, capacity_of
from tests.plans import CHECKPOINT

from coordinate_eval.coordinator.inputs.settings import MOST_RESTRAINT
from coordinate_eval.coordinator.planning import planner, sizes
from coordinate_eval.coordinator.planning.plan import Capacity, Cost, Plan
from coordinate_eval.errors import UserError


def plan_on(*costs: Cost) -> sizes.PlanOn:
    return lambda capacity: planner.plan_on_capacity(CHECKPOINT, SUITE, ENGINE, costs, capacity)


def best_of(costs: Sequence[Cost], capacity: Capacity, **wanted: Any) -> Plan:
    return sizes.plan_best_size(
        plan_on(*costs),
        lambda part: planner.least_seconds(CHECKPOINT, costs, part),
        capacity,
        **wanted,
    )


WORK = Cost(name="work", items=100_000, gpu_seconds=100_000)
TINY = Cost(name="d", items=10, gpu_seconds=0.1)
LONG_ITEM = Cost(name="long", items=64, gpu_seconds=60, floor_seconds=2_000)
FOUR = capacity_of(8, 8, 8, 8, start=60)


def test_nodes_that_shorten_nothing_are_left_to_others() -> None:
    costs = [WORK.model_copy(update={"gpu_seconds": 9_000}), LONG_ITEM]
    slow_start = FOUR.model_copy(update={"engine_start_seconds": 600})
    everything, plan = plan_on(*costs)(slow_start), best_of(costs, slow_start)
    assert len(plan.nodes) == 1
    assert plan.estimate.makespan_seconds <= 1.001 * everything.estimate.makespan_seconds
    assert plan.estimate.gpu_hours <= everything.estimate.gpu_hours - 1


def test_one_node_where_each_dataset_has_a_trial_there() -> None:
    whole = [
        Cost(name=f"d{n}", items=100, gpu_seconds=100 * n, splittable=False, spread=0.5)
        for n in range(1, 6)
    ]
    plan = best_of(whole, capacity_of(*[8] * 32, start=60))
    assert len(plan.nodes) == 1
    assert plan.estimate.makespan_seconds == plan.estimate.lower_bound_seconds


def test_a_short_run_keeps_nodes_that_shorten_it() -> None:
    short = [Cost(name=f"d{n}", items=10, gpu_seconds=1) for n in range(40)]
    assert len(best_of(short, FOUR).nodes) == 4


def test_a_node_is_taken_only_if_it_is_worth_its_gpu_time() -> None:
    """On 28 GPUs the run ends in 283 s, with 9 % of their time idle; on 24 it takes 295 s."""
    suite = base(16)
    found = {
        restraint: best_of(suite.costs, suite.capacity, restraint=restraint)
        for restraint in (0.0, 1.0, 100.0)
    }
    assert found[0.0].gpus >= found[1.0].gpus > found[100.0].gpus
    fastest, default = found[0.0].estimate, found[1.0].estimate
    assert default.makespan_seconds < 1.01 * fastest.makespan_seconds
    assert default.gpu_idle_fraction < 0.1
    # A deadline goes before.
    latest = (default.makespan_seconds + fastest.makespan_seconds) / 2
    soon = best_of(suite.costs, suite.capacity, restraint=1.0, latest=latest)
    assert soon.estimate.makespan_seconds <= latest


@pytest.mark.parametrize(
    ("gpu_seconds", "gpus"),
    # An engine starts in 60 s. Each one more is worth it while it saves more than it costs.
    [(1, 1), (60, 1), (120, 2), (500, 8), (10_000, 32)],
)
def test_an_engine_is_taken_only_if_it_is_worth_its_gpu_time(gpu_seconds: float, gpus: int) -> None:
    work = WORK.model_copy(update={"gpu_seconds": gpu_seconds})
    assert best_of([work], FOUR, restraint=1.0).gpus == gpus
    # Without restraint, each that shortens the run is taken.
    assert best_of([work], FOUR).gpus > min(8, gpus)


def test_no_engine_is_left_out_of_a_job_for_a_whole_node() -> None:
    work = WORK.model_copy(update={"gpu_seconds": 1})
    whole = FOUR.model_copy(update={"exclusive": True})
    plan = best_of([work], whole, restraint=1.0)
    assert (len(plan.nodes), plan.gpus) == (1, 8)
    assert [size.gpus for size in sizes.curve(plan_on(work), whole, plan)] == [8, 16, 32]


def test_a_deadline_takes_more_engines() -> None:
    work = WORK.model_copy(update={"gpu_seconds": 120})
    plan = best_of([work], FOUR, restraint=1.0, latest=80)
    assert (len(plan.nodes), plan.gpus) == (1, 7)  # six end in 81 s


@pytest.mark.parametrize("gpus", [1, 2, 4, 8])
def test_the_base_suite_takes_all_gpus_of_a_node(gpus: int) -> None:
    suite = base(16)
    node = suite.capacity.nodes[0].model_copy(update={"trials": gpus})
    capacity = suite.capacity.model_copy(update={"nodes": [node]})
    plan = best_of(suite.costs, capacity, restraint=1.0)
    assert plan.gpus == gpus
    assert plan.estimate.makespan_seconds <= 1.02 * plan.estimate.lower_bound_seconds


def test_random_suites_end_as_soon_with_fewer_gpu_hours() -> None:
    hours = []
    for seed in range(24):
        instance = random_instance(random.Random(f"size {seed}"), (2, 60), (8, 128))
        everything = plan_on(*instance.costs)(instance.capacity).estimate
        plan = best_of(instance.costs, instance.capacity).estimate
        assert plan.makespan_seconds <= 1.001 * everything.makespan_seconds, seed
        hours.append(plan.gpu_hours / everything.gpu_hours)
    assert statistics.mean(hours) <= 0.9


def test_fewer_nodes_are_taken_where_a_storage_that_all_share_makes_them_sooner() -> None:
    work = WORK.model_copy(update={"gpu_seconds": 1_000})
    # 14 GB take 112 s on a lone node, and four times that on each of four.
    slow = FOUR.model_copy(update={"storage_gigabits_per_node": 1.0, "storage_shared": 1.0})
    everything, plan = plan_on(work)(slow), best_of([work], slow)
    assert len(plan.nodes) == 1
    assert plan.stages[0].seconds == pytest.approx(112)
    assert plan.estimate.makespan_seconds < everything.estimate.makespan_seconds
    assert everything.stages[0].seconds == pytest.approx(4 * 112)
    assert everything.estimate.lower_bound_seconds > 4 * 112


def test_few_gpu_hours_and_in_time() -> None:
    alone = best_of([WORK], FOUR, restraint=MOST_RESTRAINT)
    assert sum(t.gpus for t in alone.trials) == 1
    soon = best_of([WORK], FOUR, restraint=MOST_RESTRAINT, latest=7_000)
    assert soon.estimate.makespan_seconds <= 7_000
    assert len(soon.nodes) == 2
    for restraint in (1.0, MOST_RESTRAINT):
        with pytest.raises(
            UserError, match=r"no plan ends within 1000 s: .* on 32 GPUs of 4 nodes"
        ):
            best_of([WORK], FOUR, restraint=restraint, latest=1_000)


def test_the_curve_falls() -> None:
    plan = plan_on(WORK)
    three = plan(FOUR.model_copy(update={"nodes": FOUR.nodes[:3]}))
    found = sizes.curve(plan, FOUR, three)
    assert [(s.nodes, s.gpus) for s in found] == [
        (1, 1), (1, 2), (1, 4), (1, 8), (2, 16), (3, 24), (4, 32),
    ]  # fmt: skip
    assert found[5].estimate == three.estimate
    spans = [s.estimate.makespan_seconds for s in found]
    assert spans == sorted(spans, reverse=True)
