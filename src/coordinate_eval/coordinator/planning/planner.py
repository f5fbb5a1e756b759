"""Planning: values in, `Plan` out. Nothing here reads a file, a clock or a cluster.

`pack` deals the shards, `bound` says what nobody can beat, `replay` what a plan comes to. Here
a few ways of dealing are tried and the one with the earliest last score is taken.
"""

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from coordinate_eval.coordinator.planning import packing, signal_slices
from coordinate_eval.coordinator.planning.lower_bound import lower_bound
from coordinate_eval.coordinator.planning.packing import Piece, Way
from coordinate_eval.coordinator.planning.plan import (
    Capacity,
    Cost,
    Estimate,
    MetricJob,
    NodeCapacity,
    Plan,
    PlanCheckpoint,
    PlanEngine,
    PlanNode,
    PlanSuite,
    PlanTrial,
    Stage,
)
from coordinate_eval.coordinator.planning.simulate import simulate
from coordinate_eval.errors import UserError
from coordinate_eval.priors.staging import Link
from coordinate_eval.records import Checkpoint, Shard

GOOD_ENOUGH = 1.01
"""Times the bound: a plan below needs no other way of dealing."""

METRIC_PART = 0.002
"""Part of the bound that one metric job takes on all cores, where its dataset's shards allow."""

LONG_METRIC_PART = 0.01
"""Part of the bound above which one item's metric is long: plan@1 lets it have more cores."""

SIGNAL_PRICE = 1.02
"""Times the makespan without a first signal that a plan with one takes at most."""

SIGNAL_SCALES = (1.0, 0.5, 0.25)
"""How much of a first signal is tried, one after the other, until it costs no more than that."""


class _Dealt(NamedTuple):
    """A way of dealing and what it comes to."""

    trials: list[PlanTrial]
    jobs: list[MetricJob]
    outcome: Estimate


def make(
    checkpoint: Checkpoint,
    suite: PlanSuite,
    engine: PlanEngine,
    costs: Sequence[Cost],
    capacity: Capacity,
    *,
    first_signal: bool = False,
) -> Plan:
    """The plan of one checkpoint on this capacity.

    `first_signal`: a slice of every dataset first, where the makespan stays within
    `SIGNAL_PRICE` of that without (see `signal_slice`).

    Raises:
        UserError: there is nothing to run, or nothing to run it on.
    """
    if not costs:
        raise UserError("the suite has no datasets")
    if not capacity.nodes:
        raise UserError("no node can start a trial")
    staged = stage_seconds(checkpoint, capacity)
    slots = _slots(capacity)
    ready = staged + capacity.engine_start_seconds
    bound = lower_bound(costs, ready, len(slots), capacity.metric_cpus)
    best = _best(costs, capacity, slots, staged, bound, [])
    if first_signal:
        best = _with_signal(costs, capacity, slots, staged, bound, best)
    trials, jobs, outcome = best
    # The bound may be the makespan itself, and sums of floats differ with their order.
    least = min(bound, outcome.makespan_seconds)
    outcome = outcome.model_copy(update={"lower_bound_seconds": least})
    used = {trial.node for trial in trials}
    nodes = [n for n in capacity.nodes if n.name in used]
    return Plan(
        checkpoint=PlanCheckpoint.model_validate(checkpoint.model_dump()),
        suite=suite,
        engine=engine,
        gpus_per_trial=capacity.gpus_per_trial,
        datasets=list(costs),
        nodes=[PlanNode(name=n.name, gpus=n.gpus, gpu_type=n.gpu_type) for n in nodes],
        stages=[Stage(node=n.name, bytes=checkpoint.bytes, seconds=staged) for n in nodes],
        trials=trials,
        metric_jobs=jobs,
        estimate=outcome,
    )


def least_seconds(checkpoint: Checkpoint, costs: Sequence[Cost], capacity: Capacity) -> float:
    """Seconds that no plan on this capacity beats."""
    ready = stage_seconds(checkpoint, capacity) + capacity.engine_start_seconds
    trials = sum(node.trials for node in capacity.nodes)
    return lower_bound(costs, ready, trials, capacity.metric_cpus)


def stage_seconds(checkpoint: Checkpoint, capacity: Capacity) -> float:
    """How long the copy of the weights to one node takes; all nodes copy at once.

    The bound takes it as given too: it is of plans that stage all of these nodes.
    """
    link = Link(capacity.storage_gigabits_per_node, capacity.storage_shared)
    return link.seconds(checkpoint.bytes, len(capacity.nodes))


def metric_jobs(
    costs: Sequence[Cost], trials: Sequence[PlanTrial], cpus: int, bound: float
) -> list[MetricJob]:
    """Jobs over neighbouring shards of each dataset whose metric costs anything, longest first.

    As few as keep each below `METRIC_PART` of the bound: a dataset of little metric work has one.
    """
    shards: dict[str, list[Shard]] = {}
    for trial in trials:
        for shard in trial.shards:
            shards.setdefault(shard.dataset, []).append(shard)
    jobs = []
    for cost in costs:
        if cost.metric_cpu_seconds <= 0:
            continue
        mine = sorted(shards[cost.name], key=lambda s: s.start)
        wanted = math.ceil(cost.metric_cpu_seconds / cpus / (METRIC_PART * bound))
        jobs += [
            _metric_job(cost, start, stop, cpus, bound)
            for start, stop in _ranges(mine, min(wanted, len(mine)))
        ]
    return sorted(jobs, key=lambda j: -j.seconds * j.cpus)


def _metric_job(cost: Cost, start: int, stop: int, cpus: int, bound: float) -> MetricJob:
    """One core an item, as metrics run, and more where an item alone would decide the makespan."""
    work = cost.metric_cpu_seconds * (stop - start) / cost.items
    cores = min(cpus, max(stop - start, math.ceil(work / (LONG_METRIC_PART * bound))))
    # So many that whole numbers of such jobs fill all cores.
    cores = cpus // math.ceil(cpus / cores)
    return MetricJob(dataset=cost.name, start=start, stop=stop, cpus=cores, seconds=work / cores)


def _ranges(shards: Sequence[Shard], count: int) -> Iterator[tuple[int, int]]:
    """So many ranges of about equal items, ending where shards end."""
    first = 0
    items = shards[-1].stop - shards[0].start
    for number in range(1, count + 1):
        edge = shards[0].start + items * number / count
        last = first
        while last + 1 < len(shards) and shards[last].stop < edge:
            last += 1
        yield shards[first].start, shards[last].stop
        first = last + 1
        if first == len(shards):
            return


def _slots(capacity: Capacity) -> list[tuple[NodeCapacity, int]]:
    """(node, index of a trial on it): one of each node, then the second of each, …"""
    most = max(node.trials for node in capacity.nodes)
    every = [(node, index) for index in range(most) for node in capacity.nodes]
    return [(node, index) for node, index in every if index < node.trials]


def _best(
    costs: Sequence[Cost],
    capacity: Capacity,
    slots: list[tuple[NodeCapacity, int]],
    staged: float,
    bound: float,
    slices: Sequence[Piece],
) -> _Dealt:
    """The dealing with the earliest last score, after these slices; of equals the first tried."""
    first = signal_slices.deal(costs, slices, len(slots))
    ready = [
        staged
        + capacity.engine_start_seconds
        + sum(packing.seconds(costs[p.cost], p.start, p.stop) for p in queue)
        for queue in first
    ]
    parts = signal_slices.rest(costs, slices)
    found: list[_Dealt] = []

    def consider(queues: list[list[Piece]]) -> float:
        trials = _trials(costs, capacity, slots, first, queues, staged)
        jobs = metric_jobs(costs, trials, capacity.metric_cpus, bound)
        outcome = simulate(costs, trials, jobs, capacity.metric_cpus).estimate(bound)
        found.append(_Dealt(trials, jobs, outcome))
        return outcome.makespan_seconds

    for way in _ways(costs, len(slots), capacity.metric_cpus):
        queues = packing.deal(costs, parts, ready, capacity.metric_cpus, way)
        if consider(queues) <= GOOD_ENOUGH * bound:
            break
    # Whole datasets too, in the best order and in the plain one, so that no plan is worse.
    consider(packing.deal(costs, parts, ready, capacity.metric_cpus, Way(whole=True)))
    consider(packing.deal_whole(costs, parts, len(slots)))
    return min(found, key=lambda f: f.outcome.makespan_seconds)


def _with_signal(
    costs: Sequence[Cost],
    capacity: Capacity,
    slots: list[tuple[NodeCapacity, int]],
    staged: float,
    bound: float,
    without: _Dealt,
) -> _Dealt:
    """The same with slices of datasets first, as large as they may be; without where they cost
    too much.
    """
    makespan = without.outcome.makespan_seconds
    window = makespan - staged - capacity.engine_start_seconds
    for scale in SIGNAL_SCALES:
        slices = signal_slices.pick(costs, len(slots), window, scale)
        dealt = _best(costs, capacity, slots, staged, bound, slices)
        if dealt.outcome.makespan_seconds <= SIGNAL_PRICE * makespan:
            return dealt
    return without


def _ways(costs: Sequence[Cost], trials: int, cpus: int) -> list[Way]:
    """Ways of dealing to try: others than the first only where it is not good enough."""
    metrics = sum(c.metric_cpu_seconds for c in costs) / cpus
    gpus = sum(c.gpu_seconds for c in costs) / trials
    early = [Way(early_overhead=share) for share in (0.03, 0.1, 0.3)]
    longest = max(c.floor_seconds for c in costs)
    apart = [Way(apart=share) for share in (1.0, 0.3) if longest > share * gpus]
    return [Way(), Way(fine=0.1), *apart, *(early if metrics > 0.2 * gpus else [])]


def _trials(
    costs: Sequence[Cost],
    capacity: Capacity,
    slots: list[tuple[NodeCapacity, int]],
    first: list[list[Piece]],
    queues: list[list[Piece]],
    staged: float,
) -> list[PlanTrial]:
    """Trials with anything to do, slices first."""
    return [
        PlanTrial(
            id=f"{node.name}-{index}",
            node=node.name,
            gpus=capacity.gpus_per_trial,
            start_seconds=staged,
            setup_seconds=capacity.engine_start_seconds,
            shards=[
                *(_shard(costs[p.cost], p.start, p.stop, signal=True) for p in slices),
                *(_shard(costs[p.cost], p.start, p.stop) for p in queue),
            ],
        )
        for (node, index), slices, queue in zip(slots, first, queues, strict=True)
        if slices or queue
    ]


def _shard(cost: Cost, start: int, stop: int, *, signal: bool = False) -> Shard:
    return Shard(
        dataset=cost.name,
        start=start,
        stop=stop,
        gpu_seconds=packing.seconds(cost, start, stop),
        metric_cpu_seconds=cost.metric_cpu_seconds * (stop - start) / cost.items,
        signal=signal,
    )
