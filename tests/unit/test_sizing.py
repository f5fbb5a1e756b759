"""How many GPUs a plan takes."""

import pytest
from tests.plans import CHECKPOINT
from tests.unit.test_plan import ENGINE, SUITE, capacity_of

from coordinate_eval.coordinator import planner, sizing
from coordinate_eval.coordinator.plan import Capacity, Cost, Plan
from coordinate_eval.errors import UserError


def draft_of(*costs: Cost) -> sizing.Draft:
    def draft(capacity: Capacity) -> Plan:
        return planner.make(CHECKPOINT, SUITE, ENGINE, costs, capacity)

    return draft


WORK = Cost(name="work", items=100_000, gpu_seconds=100_000)
LONG_ITEM = Cost(name="long", items=64, gpu_seconds=60, floor_seconds=2_000)
FOUR = capacity_of(8, 8, 8, 8, start=60)


def test_all_nodes_are_taken_while_they_shorten_the_plan() -> None:
    plan = sizing.best(draft_of(WORK), FOUR)
    assert len(plan.nodes) == 4


def test_nodes_that_shorten_nothing_are_left_to_others() -> None:
    draft = draft_of(WORK.model_copy(update={"gpu_seconds": 9_000}), LONG_ITEM)
    slow_start = FOUR.model_copy(update={"engine_start_seconds": 600})
    everything, plan = draft(slow_start), sizing.best(draft, slow_start)
    assert len(plan.nodes) == 1
    assert plan.estimate.makespan_seconds <= 1.01 * everything.estimate.makespan_seconds
    assert plan.estimate.gpu_hours <= everything.estimate.gpu_hours - 1


def test_a_short_run_keeps_its_nodes() -> None:
    short = [Cost(name=f"d{n}", items=10, gpu_seconds=1) for n in range(40)]
    assert len(sizing.best(draft_of(*short), FOUR).nodes) == 4


def test_fewer_nodes_are_taken_where_a_storage_that_all_share_makes_them_sooner() -> None:
    draft = draft_of(WORK.model_copy(update={"gpu_seconds": 1_000}))
    # 14 GB take 112 s on a lone node, and four times that on each of four.
    slow = FOUR.model_copy(update={"storage_gigabits_per_node": 1.0, "storage_shared": 1.0})
    everything, plan = draft(slow), sizing.best(draft, slow)
    assert len(plan.nodes) == 1
    assert plan.stages[0].seconds == pytest.approx(112)
    assert plan.estimate.makespan_seconds < everything.estimate.makespan_seconds
    assert everything.stages[0].seconds == pytest.approx(4 * 112)
    assert everything.estimate.lower_bound_seconds > 4 * 112


def test_few_gpu_hours_and_in_time() -> None:
    draft = draft_of(WORK)
    alone = sizing.cheapest(draft, FOUR, None)
    assert sum(t.gpus for t in alone.trials) == 1
    soon = sizing.cheapest(draft, FOUR, 7_000)
    assert soon.estimate.makespan_seconds <= 7_000
    assert len(soon.nodes) == 2
    for objective in ("makespan", "gpu-hours"):
        with pytest.raises(
            UserError, match=r"nothing ends within 1000 s: .* on 32 GPUs of 4 nodes"
        ):
            sizing.choose(draft, FOUR, objective, 1_000)


def test_the_curve_falls() -> None:
    found = sizing.curve(draft_of(WORK), FOUR)
    assert [(s.nodes, s.gpus) for s in found] == [
        (1, 1), (1, 2), (1, 4), (1, 8), (2, 16), (4, 32),
    ]  # fmt: skip
    spans = [s.estimate.makespan_seconds for s in found]
    assert spans == sorted(spans, reverse=True)
