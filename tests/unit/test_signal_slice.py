"""The first signal in plans: a slice of every dataset first, and next to nothing for it."""

import itertools
import random

import pytest
from benchmarks._instances import Instance, base, random_instance
from hypothesis import given
from hypothesis import strategies as st
from tests.plan_examples import ENGINE, SUITE
from tests.plans import CHECKPOINT
from tests.random_examples import examples

from coordinate_eval.coordinator.planning import planner
from coordinate_eval.coordinator.planning.dealing import signal_slices
from coordinate_eval.coordinator.planning.dealing.packing import Piece
from coordinate_eval.coordinator.planning.plan import Cost, Plan

COSTS = st.lists(
    st.builds(
        Cost,
        name=st.just("d"),
        items=st.integers(1, 100_000),
        gpu_seconds=st.floats(0.01, 5_000),
        chunk_overhead_seconds=st.one_of(st.just(0.0), st.floats(0, 2)),
        floor_seconds=st.one_of(st.just(0.0), st.floats(0, 500)),
        splittable=st.booleans(),
    ),
    min_size=1,
    max_size=30,
)


def planned(instance: Instance, *, first_signal: bool) -> Plan:
    return planner.plan_on_capacity(CHECKPOINT, SUITE, ENGINE, *instance, first_signal=first_signal)


def check(instance: Instance) -> Plan:
    """Check what holds of every plan with a first signal, and return the plan."""
    without = planned(instance, first_signal=False)
    made = planned(instance, first_signal=True)
    assert made.estimate.makespan_seconds <= 1.02 * without.estimate.makespan_seconds
    for cost in instance.costs:
        spans = sorted(
            (s.start, s.stop) for t in made.trials for s in t.shards if s.dataset == cost.name
        )
        assert [stop for _, stop in spans[:-1]] == [start for start, _ in spans[1:]]
        assert (spans[0][0], spans[-1][1]) == (0, cost.items)
    for trial in made.trials:
        first = [shard.signal for shard in trial.shards]
        assert first == sorted(first, reverse=True)
    return made


def ends(made: Plan) -> dict[str, float]:
    """Return the ends of each dataset's slices, without floors, as a part of the trials' time."""
    found: dict[str, float] = {}
    for trial in made.trials:
        now = 0.0
        window = made.estimate.makespan_seconds - trial.start_seconds - trial.setup_seconds
        for shard in trial.shards:
            now += shard.gpu_seconds
            if shard.signal:
                found[shard.dataset] = max(found.get(shard.dataset, 0.0), now / window)
    return found


@pytest.mark.parametrize("nodes", [1, 4])
def test_the_base_suite_has_a_signal_of_every_dataset_by_a_tenth(nodes: int) -> None:
    instance = base(nodes)
    made = check(instance)
    found = ends(made)
    # The slice of a dataset whose items take as long as the plan would come too late.
    late = {c.name for c in instance.costs if c.floor_seconds > made.estimate.makespan_seconds / 2}
    costs = [cost for cost in instance.costs if cost.name not in late]
    assert found.keys() - late == {cost.name for cost in costs}
    assert late == ({"aime24"} if nodes == 4 else set())
    assert max(found.values()) <= 0.1
    for cost in costs:
        shards = [s for t in made.trials for s in t.shards if s.dataset == cost.name and s.signal]
        items = sum(s.stop - s.start for s in shards)
        assert items >= min(cost.items, 2500, max(4, 0.05 * cost.items))
        if cost.items >= 5000:  # it is touched everywhere
            starts = sorted(s.start for s in shards)
            assert len(starts) >= 3
            gaps = [b - a for a, b in itertools.pairwise([*starts, cost.items])]
            assert max(gaps) - min(gaps) <= 1


@given(st.integers(0, 10_000))
@examples(40)
def test_slices_of_random_suites_end_early(seed: int) -> None:
    made = check(random_instance(random.Random(seed), datasets=(5, 100), gpus=(1, 64)))
    assert max(ends(made).values(), default=0.0) <= 0.1


@given(COSTS, st.integers(1, 64), st.floats(0.1, 5_000), st.sampled_from([1.0, 0.5, 0.25]))
@examples(200)
def test_slices_and_the_rest_are_all_items_once(
    costs: list[Cost], trials: int, window: float, scale: float
) -> None:
    slices = signal_slices.pick(costs, trials, window, scale)
    dealt = [part for queue in signal_slices.deal(costs, slices, trials) for part in queue]
    assert sorted(dealt) == slices
    parts = sorted([*dealt, *signal_slices.rest(costs, slices)])
    covered: dict[int, list[Piece]] = {}
    for part in parts:
        assert part.start < part.stop
        covered.setdefault(part.cost, []).append(part)
    for number, cost in enumerate(costs):
        edges = [0, *(part.stop for part in covered[number])]
        assert edges[:-1] == [part.start for part in covered[number]]
        assert edges[-1] == cost.items
        mine = [part for part in slices if part.cost == number]
        assert cost.splittable or len(covered[number]) == 1
        assert sum(p.stop - p.start for p in mine) <= max(2500, cost.items if len(mine) == 1 else 0)


def test_what_would_not_end_in_time_has_no_slice() -> None:
    long = Cost(name="whole", items=100, gpu_seconds=50, splittable=False)
    few = Cost(name="few", items=7, gpu_seconds=50)
    slow = Cost(name="slow", items=100, gpu_seconds=500)
    good = Cost(name="good", items=100, gpu_seconds=50)
    short = Cost(name="short", items=100, gpu_seconds=0.5, splittable=False)
    parts = signal_slices.pick([long, few, slow, good, short], trials=4, window=100)
    assert {part.cost for part in parts} == {3, 4}
    assert Piece(4, 0, 100) in parts


def test_the_longest_items_wait_for_no_slice() -> None:
    instance = base(4)
    assert planned(instance, first_signal=True).estimate.makespan_seconds == pytest.approx(
        planned(instance, first_signal=False).estimate.makespan_seconds
    )


def test_slices_may_be_all_there_is_to_run() -> None:
    instance = base(1)
    code = Cost(name="c", items=20, gpu_seconds=1, metric_cpu_seconds=1e6, splittable=False)
    made = check(Instance([code], instance.capacity))
    assert [shard.signal for trial in made.trials for shard in trial.shards] == [True]
