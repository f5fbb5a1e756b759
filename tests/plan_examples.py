"""Costs and nodes, by hand and at random, and the plans that the planner makes of them."""

from collections.abc import Iterable, Sequence

from hypothesis import strategies as st

from coordinate_eval.coordinator.planning import planner
from coordinate_eval.coordinator.planning.plan import (
    Capacity,
    Cost,
    NodeCapacity,
    Plan,
    PlanEngine,
    PlanSuite,
)
from tests.plans import CHECKPOINT, capacity, costs

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

SCORED = COSTS.flatmap(
    lambda costs: st.lists(
        st.one_of(st.just(0.0), st.floats(0.001, 1_000)), min_size=len(costs), max_size=len(costs)
    ).map(lambda seconds: with_scoring(costs, seconds))
)
"""Costs of which some have a scoring that takes time."""

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
    storage_shared=st.one_of(st.just(0.0), st.floats(0, 1)),
    metric_cpus=st.integers(1, 512),
)


def with_scoring(costs: Sequence[Cost], seconds: Iterable[float]) -> list[Cost]:
    return [c.model_copy(update={"score_seconds": s}) for c, s in zip(costs, seconds, strict=True)]


def plan_of(costs: list[Cost], capacity: Capacity) -> Plan:
    return planner.plan_on_capacity(CHECKPOINT, SUITE, ENGINE, costs, capacity)


def capacity_of(
    *trials: int, start: float = 0.0, gigabits: float = 112.0, cpus: int = 1
) -> Capacity:
    """Nodes with so many trials each; 112 Gbit/s copy the checkpoint in a second."""
    return Capacity(
        nodes=[
            NodeCapacity(name=f"n{i}", gpus=8, gpu_type="h200", trials=t)
            for i, t in enumerate(trials)
        ],
        gpus_per_trial=1,
        engine_start_seconds=start,
        storage_gigabits_per_node=gigabits,
        metric_cpus=cpus,
    )


def as_file(capacity: Capacity) -> dict[str, float]:
    """Describe a cluster for `replayed`; each node has its part of the storage."""
    others = capacity.storage_shared * (len(capacity.nodes) - 1)
    return {
        "storage_gigabits_per_node": capacity.storage_gigabits_per_node / (1 + others),
        "engine_start_seconds": capacity.engine_start_seconds,
        "metric_cpus": capacity.metric_cpus,
    }


def planned() -> Plan:
    """Have thirty datasets planned on two nodes of four trials."""
    made = plan_of(costs(30), capacity(2, 4))
    assert made.trials
    return made
