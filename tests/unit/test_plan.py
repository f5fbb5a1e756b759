"""Plans: every item once, replayable, never under the bound."""

import itertools
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coordinate_eval.coordinator import plan
from coordinate_eval.coordinator.plan import (
    Capacity,
    Cost,
    NodeCapacity,
    PlanEngine,
    PlanSuite,
)
from coordinate_eval.errors import UserError
from coordinate_eval.records import Checkpoint, CheckpointFormat

CHECKPOINT = Checkpoint(
    path="/ckpt",
    identity="i",
    format=CheckpointFormat.SAFETENSORS,
    weights=[],
    files=[],
    bytes=14_000_000_000,
    parameters=7_000_000_000,
    dtype="bfloat16",
    max_length=4096,
    attention_heads=32,
    kv_bytes_per_token=1,
)
SUITE = PlanSuite(name="s", digest="d")
ENGINE = PlanEngine(name="vllm", args={})

COSTS = st.lists(
    st.builds(
        Cost,
        name=st.just(""),
        items=st.integers(1, 20_000),
        gpu_seconds=st.floats(0.01, 5_000),
        metric_cpu_seconds=st.one_of(st.just(0.0), st.floats(0.0, 20_000)),
        chunk_overhead_seconds=st.floats(0, 2),
        floor_seconds=st.one_of(st.just(0.0), st.floats(0, 500)),
        splittable=st.booleans(),
    ),
    min_size=1,
    max_size=30,
).map(lambda costs: [c.model_copy(update={"name": f"d{i}"}) for i, c in enumerate(costs)])

CAPACITIES = st.builds(
    Capacity,
    nodes=st.lists(st.integers(1, 8), min_size=1, max_size=6).map(
        lambda trials: [
            NodeCapacity(name=f"n{i}", gpus=8, gpu_type="h200", trials=t)
            for i, t in enumerate(trials)
        ]
    ),
    gpus_per_trial=st.sampled_from([1, 2]),
    engine_start_seconds=st.floats(0, 60),
    storage_gigabits_per_node=st.floats(1, 400),
    metric_cpus=st.integers(1, 512),
)


def make(costs: list[Cost], capacity: Capacity) -> plan.Plan:
    return plan.make(CHECKPOINT, SUITE, ENGINE, costs, capacity)


@given(COSTS, CAPACITIES)
@settings(max_examples=150, deadline=None)
def test_every_item_is_in_exactly_one_shard(costs: list[Cost], capacity: Capacity) -> None:
    made = make(costs, capacity)
    for cost in costs:
        spans = sorted(
            (s.start, s.stop) for t in made.trials for s in t.shards if s.dataset == cost.name
        )
        assert spans[0][0] == 0
        assert spans[-1][1] == cost.items
        assert all(a[1] == b[0] for a, b in itertools.pairwise(spans))
        assert all(start < stop for start, stop in spans)
        assert cost.splittable or len(spans) == 1


@given(COSTS, CAPACITIES)
@settings(max_examples=150, deadline=None)
def test_bound_and_estimate(costs: list[Cost], capacity: Capacity) -> None:
    made = make(costs, capacity)
    estimate = made.estimate
    assert estimate.lower_bound_seconds <= estimate.makespan_seconds * (1 + 1e-9)
    assert 0 <= estimate.gpu_idle_fraction <= 1
    assert estimate.makespan_seconds == pytest.approx(independent_makespan(made, capacity))


@given(COSTS, CAPACITIES)
@settings(max_examples=50, deadline=None)
def test_trials_stay_within_nodes(costs: list[Cost], capacity: Capacity) -> None:
    made = make(costs, capacity)
    for node in capacity.nodes:
        assert sum(1 for t in made.trials if t.node == node.name) <= node.trials
    assert len({t.id for t in made.trials}) == len(made.trials)
    assert {s.node for s in made.stages} == {t.node for t in made.trials}


def independent_makespan(made: plan.Plan, capacity: Capacity) -> float:
    """The same numbers by another road: a step-by-step clock over all metric jobs."""
    costs = {c.name: c for c in made.datasets}
    stage = 14e9 * 8 / (capacity.storage_gigabits_per_node * 1e9)
    done: dict[tuple[str, int, int], float] = {}
    end = 0.0
    for trial in made.trials:
        clock = stage + capacity.engine_start_seconds
        for s in trial.shards:
            cost = costs[s.dataset]
            took = cost.gpu_seconds * (s.stop - s.start) / cost.items
            took += cost.chunk_overhead_seconds if s.start else 0
            done[s.dataset, s.start, s.stop] = max(clock + took, clock + cost.floor_seconds)
            end = max(end, done[s.dataset, s.start, s.stop])
            clock += took
    pending = list(made.metric_jobs)
    release = {
        id(j): max(
            t for (d, a, b), t in done.items() if d == j.dataset and a < j.stop and b > j.start
        )
        for j in pending
    }
    times = sorted(set(release.values()))
    busy: list[tuple[float, int]] = []
    while pending:
        now = times.pop(0)
        busy = [(e, c) for e, c in busy if e > now]
        free = capacity.metric_cpus - sum(c for _, c in busy)
        for job in list(pending):
            if release[id(job)] <= now and job.cpus <= free:
                pending.remove(job)
                cost = costs[job.dataset]
                seconds = cost.metric_cpu_seconds * (job.stop - job.start) / cost.items / job.cpus
                busy.append((now + seconds, job.cpus))
                times = sorted({*times, now + seconds})
                free -= job.cpus
                end = max(end, now + seconds)
    return end


def test_long_tails_begin_first() -> None:
    costs = [
        Cost(name="short", items=100, gpu_seconds=10, splittable=False),
        Cost(name="tail", items=100, gpu_seconds=5, floor_seconds=100, splittable=False),
    ]
    nodes = [NodeCapacity(name="n", gpus=1, gpu_type="", trials=1)]
    capacity = Capacity(
        nodes=nodes,
        gpus_per_trial=1,
        engine_start_seconds=0,
        storage_gigabits_per_node=112,
        metric_cpus=1,
    )
    made = make(costs, capacity)
    assert [s.dataset for s in made.trials[0].shards] == ["tail", "short"]
    assert made.estimate.makespan_seconds == pytest.approx(101)


def test_hand_computed_plan() -> None:
    cost = Cost(name="d", items=10, gpu_seconds=20, metric_cpu_seconds=40, chunk_overhead_seconds=1)
    nodes = [NodeCapacity(name="n", gpus=2, gpu_type="", trials=2)]
    capacity = Capacity(
        nodes=nodes,
        gpus_per_trial=1,
        engine_start_seconds=5,
        storage_gigabits_per_node=112,
        metric_cpus=4,
    )
    made = make([cost.model_copy(update={"splittable": False})], capacity)
    assert len(made.trials) == 1
    # 1 s of staging, 5 s of engine start, 20 s of work, 40 core seconds on 4 cores.
    assert made.estimate.makespan_seconds == pytest.approx(1 + 5 + 20 + 10)
    assert made.estimate.lower_bound_seconds == pytest.approx(36)
    assert made.estimate.gpu_hours == pytest.approx(25 / 3600)
    assert made.estimate.gpu_idle_fraction == pytest.approx(5 / 25)


def test_splitting_pays() -> None:
    nodes = [NodeCapacity(name=f"n{i}", gpus=8, gpu_type="", trials=8) for i in range(4)]
    capacity = Capacity(
        nodes=nodes,
        gpus_per_trial=1,
        engine_start_seconds=20,
        storage_gigabits_per_node=25,
        metric_cpus=256,
    )
    costs = [Cost(name=f"d{i}", items=10_000, gpu_seconds=3_000 / (i + 1)) for i in range(20)]
    made = make(costs, capacity)
    assert made.estimate.makespan_seconds < 1.08 * made.estimate.lower_bound_seconds


def test_nothing_to_plan_is_said() -> None:
    capacity = Capacity(
        nodes=[],
        gpus_per_trial=1,
        engine_start_seconds=0,
        storage_gigabits_per_node=1,
        metric_cpus=1,
    )
    with pytest.raises(UserError, match="no node"):
        make([Cost(name="d", items=1, gpu_seconds=1)], capacity)
    with pytest.raises(UserError, match="no datasets"):
        make([], capacity)


def test_costs_are_checked() -> None:
    for bad in (-1.0, 0.0, math.inf, math.nan):
        with pytest.raises(ValueError, match="gpu_seconds"):
            Cost(name="d", items=1, gpu_seconds=bad)
