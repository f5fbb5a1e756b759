"""Planning: values in, `Plan` out. Nothing here reads a file, a clock or a cluster.

Longest first, as Graham's LPT rule deals (1969): datasets are cut into shards of at most a
fraction of what one trial has to do, and each shard goes to the trial that is free first. What
the numbers of a plan mean is written down in `replay`, which also makes the estimate.
"""

import heapq
import itertools
import math
from collections.abc import Sequence
from typing import Any, Literal

from pydantic import ConfigDict, Field

from coordinate_eval.coordinator.run import Shard
from coordinate_eval.errors import UserError
from coordinate_eval.records import Checkpoint, Record

PIECES_PER_TRIAL = 12
"""Shards that a trial gets at least, so that the last of them to end is a small part."""

OVERHEAD_SHARE = 0.05
"""A shard is never so small that its overhead is more than this part of it."""


class Cost(Record):
    """What a whole dataset costs: seconds on one trial, and of its metric on one core."""

    name: str
    items: int = Field(gt=0)
    gpu_seconds: float = Field(gt=0, allow_inf_nan=False)
    metric_cpu_seconds: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    chunk_overhead_seconds: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    floor_seconds: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    splittable: bool = True
    spread: float = Field(
        default=0.0,
        ge=0,
        allow_inf_nan=False,
        description="standard deviation of the logarithm of gpu_seconds; 0 where costs are given",
    )


class NodeCapacity(Record):
    """A node that takes part, and how many trials can start on it."""

    name: str
    gpus: int
    gpu_type: str
    trials: int = Field(gt=0)


class Capacity(Record):
    """What there is to run on."""

    nodes: list[NodeCapacity]
    gpus_per_trial: int
    engine_start_seconds: float
    storage_gigabits_per_node: float
    metric_cpus: int


class PlanCheckpoint(Record):
    """The checkpoint as a plan shows it."""

    path: str
    identity: str
    bytes: int
    parameters: int


class PlanSuite(Record):
    """The suite as a plan shows it."""

    name: str
    digest: str


class PlanEngine(Record):
    """The engine as a plan shows it."""

    name: str
    args: dict[str, Any]


class PlanNode(Record):
    """A node as a plan shows it."""

    name: str
    gpus: int
    gpu_type: str


class Stage(Record):
    """The copy of the weights to one node, from time 0."""

    node: str
    bytes: int
    seconds: float


class Trial(Record):
    """One engine and the shards that it runs first, in this order."""

    id: str
    node: str
    gpus: int
    start_seconds: float
    setup_seconds: float
    shards: list[Shard]


class MetricJob(Record):
    """A span whose questions are answered together."""

    dataset: str
    start: int
    stop: int
    cpus: int
    seconds: float


class Estimate(Record):
    """What a plan comes to; see `replay`."""

    makespan_seconds: float
    lower_bound_seconds: float
    gpu_idle_fraction: float
    gpu_hours: float


class Plan(Record):
    """plan@1, as `--dry-run --json` prints it."""

    schema_: Literal["coordinate-eval/plan@1"] = Field(
        default="coordinate-eval/plan@1", alias="schema"
    )
    model_config = ConfigDict(populate_by_name=True)

    checkpoint: PlanCheckpoint
    suite: PlanSuite
    engine: PlanEngine
    gpus_per_trial: int
    datasets: list[Cost]
    nodes: list[PlanNode]
    stages: list[Stage]
    trials: list[Trial]
    metric_jobs: list[MetricJob]
    estimate: Estimate


def make(
    checkpoint: Checkpoint,
    suite: PlanSuite,
    engine: PlanEngine,
    costs: Sequence[Cost],
    capacity: Capacity,
) -> Plan:
    """The plan of one checkpoint on this capacity.

    Raises:
        UserError: there is nothing to run, or nothing to run it on.
    """
    from coordinate_eval.coordinator.replay import estimate

    if not costs:
        raise UserError("the suite has no datasets")
    if not capacity.nodes:
        raise UserError("no node can start a trial")
    stage_seconds = checkpoint.bytes * 8 / (capacity.storage_gigabits_per_node * 1e9)
    ready = stage_seconds + capacity.engine_start_seconds
    slots = [(node, index) for index in range(_most(capacity)) for node in capacity.nodes]
    slots = [(node, index) for node, index in slots if index < node.trials]
    queues = _deal(cut(costs, len(slots)), len(slots))
    trials = [
        Trial(
            id=f"{node.name}-{index}",
            node=node.name,
            gpus=capacity.gpus_per_trial,
            start_seconds=stage_seconds,
            setup_seconds=capacity.engine_start_seconds,
            shards=queue,
        )
        for (node, index), queue in zip(slots, queues, strict=True)
        if queue
    ]
    used = {trial.node for trial in trials}
    draft = Plan(
        checkpoint=PlanCheckpoint.model_validate(checkpoint.model_dump()),
        suite=suite,
        engine=engine,
        gpus_per_trial=capacity.gpus_per_trial,
        datasets=list(costs),
        nodes=[PlanNode(**n.model_dump()) for n in capacity.nodes if n.name in used],
        stages=[
            Stage(node=n.name, bytes=checkpoint.bytes, seconds=stage_seconds)
            for n in capacity.nodes
            if n.name in used
        ],
        trials=trials,
        metric_jobs=metric_jobs(trials, costs, capacity.metric_cpus),
        estimate=Estimate(
            makespan_seconds=0,
            lower_bound_seconds=lower_bound(costs, len(slots), ready, capacity.metric_cpus),
            gpu_idle_fraction=0,
            gpu_hours=0,
        ),
    )
    return draft.model_copy(update={"estimate": estimate(draft, capacity.metric_cpus)})


def cut(costs: Sequence[Cost], trials: int) -> list[Shard]:
    """Every dataset as shards, longest first; each item in exactly one."""
    longest = sum(c.gpu_seconds for c in costs) / trials / PIECES_PER_TRIAL
    shards: list[Shard] = []
    for cost in costs:
        least = cost.chunk_overhead_seconds / OVERHEAD_SHARE
        size = max(longest, least, 1e-9)
        pieces = math.ceil(cost.gpu_seconds / size) if cost.splittable else 1
        pieces = max(1, min(pieces, cost.items))
        edges = [cost.items * i // pieces for i in range(pieces + 1)]
        shards += [_shard(cost, a, b) for a, b in itertools.pairwise(edges)]
    tails = {c.name: _tail(c) for c in costs}
    # What has a long tail behind it (its longest item, its metric) must begin early.
    return sorted(shards, key=lambda s: -(s.gpu_seconds + tails[s.dataset]))


def metric_jobs(trials: Sequence[Trial], costs: Sequence[Cost], cpus: int) -> list[MetricJob]:
    """One job a shard whose metric costs anything, longest first."""
    jobs = []
    per_item = {c.name: c.metric_cpu_seconds / c.items for c in costs}
    for shard in (s for t in trials for s in t.shards if per_item[s.dataset] > 0):
        items = shard.stop - shard.start
        cores = min(cpus, items)
        jobs.append(
            MetricJob(
                dataset=shard.dataset,
                start=shard.start,
                stop=shard.stop,
                cpus=cores,
                seconds=per_item[shard.dataset] * items / cores,
            )
        )
    return sorted(jobs, key=lambda j: -j.seconds * j.cpus)


def lower_bound(costs: Sequence[Cost], trials: int, ready: float, metric_cpus: int) -> float:
    """Seconds that no plan can beat with these costs.

    The largest of: all work spread evenly over all trials; for each dataset, its least time on
    idle trials and the metric of its last piece on all cores; for each dataset, its first
    possible response and then all of its metric on all cores; the same for all metrics together.
    """
    bound = ready + sum(c.gpu_seconds for c in costs) / trials
    first_of_all = math.inf
    for cost in costs:
        pieces = min(trials, cost.items) if cost.splittable else 1
        smallest = cost.items if cost.splittable else 1
        whole = ready + max(cost.gpu_seconds / pieces, cost.floor_seconds)
        first = ready + max(cost.gpu_seconds / smallest, cost.floor_seconds)
        metric = cost.metric_cpu_seconds / metric_cpus
        bound = max(bound, whole + metric / smallest, first + metric)
        if cost.metric_cpu_seconds > 0:
            first_of_all = min(first_of_all, first)
    metrics = sum(c.metric_cpu_seconds for c in costs) / metric_cpus
    return max(bound, first_of_all + metrics) if metrics else bound


def _most(capacity: Capacity) -> int:
    return max(node.trials for node in capacity.nodes)


def _tail(cost: Cost) -> float:
    return max(0.0, cost.floor_seconds) + cost.metric_cpu_seconds / cost.items


def _shard(cost: Cost, start: int, stop: int) -> Shard:
    part = (stop - start) / cost.items
    return Shard(
        dataset=cost.name,
        start=start,
        stop=stop,
        gpu_seconds=cost.gpu_seconds * part + (cost.chunk_overhead_seconds if start else 0.0),
        metric_cpu_seconds=cost.metric_cpu_seconds * part,
    )


def _deal(shards: Sequence[Shard], trials: int) -> list[list[Shard]]:
    """Each shard, longest first, to the trial with the least to do (LPT)."""
    loads = [(0.0, index) for index in range(trials)]
    queues: list[list[Shard]] = [[] for _ in range(trials)]
    for shard in shards:
        load, index = heapq.heappop(loads)
        queues[index].append(shard)
        heapq.heappush(loads, (load + shard.gpu_seconds, index))
    return queues
