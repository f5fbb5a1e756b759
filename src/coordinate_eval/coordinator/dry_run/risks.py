"""What could go wrong with a plan, one line each, with names and numbers. Pure."""

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from coordinate_eval._format import duration
from coordinate_eval.coordinator.cluster import Busy, Node
from coordinate_eval.coordinator.inputs.settings import Settings
from coordinate_eval.coordinator.planning.plan import Cost, Plan
from coordinate_eval.coordinator.planning.simulate import Timeline

HEADROOM = 0.1
"""Part of the memory asked of a node below which what stays free is little."""

WIDE_SPREAD = 0.4
"""Standard deviation of a predicted time's logarithm from which on it is a guess."""

MUCH = 0.05
"""Part of all GPU time from which on a dataset carries much of the makespan."""

TAIL = 0.02
"""Part of the makespan that one thing may add to it unsaid."""

NAMED = 3
"""Names in a line; the others are counted."""


@dataclass(frozen=True)
class Site:
    """What a plan meets: nodes as they are now, and what is asked of each."""

    nodes: Sequence[Node]
    busy: Sequence[Busy]
    settings: Settings
    keeper_gib: float
    metric_cpus: int
    gigabits_per_node: float
    """Of a node's storage link, as it is set."""
    guessed: Sequence[str] = field(default=())
    """Datasets of whose cost nothing is known but their requests."""


def risks(plan: Plan, drawn: Timeline, site: Site) -> list[str]:
    """All of them, what concerns the whole run first."""
    return [
        *_nodes_unknown(plan, site),
        *_time_limit(plan, site),
        *_few_gpus(plan, site),
        *_no_signal(plan, site),
        *_memory(plan, site),
        *_metric_tail(drawn, site),
        *_deciding_dataset(plan, drawn),
        *_wide(plan),
        *_guessed(plan, site),
    ]


def _nodes_unknown(plan: Plan, site: Site) -> Iterator[str]:
    known = {node.name for node in site.nodes}
    if not any(node.name in known for node in plan.nodes):
        yield (
            f"no GPU is free now: the plan is for {len(plan.trials)} trials of GPUs that are not "
            "known yet; it is made again when they are"
        )


def _time_limit(plan: Plan, site: Site) -> Iterator[str]:
    trial = site.settings.trial
    makespan = plan.estimate.makespan_seconds
    if trial.time_limit_factor * makespan > trial.max_minutes * 60:
        times = trial.max_minutes * 60 / makespan
        yield (
            f"time limit: [trial] max_minutes cuts it to {duration(trial.max_minutes * 60)}, "
            f"{times:.1f} × the makespan instead of {trial.time_limit_factor:g} ×"
            + ("; further rounds of jobs do the rest" if times < 1 else "")
        )


def _few_gpus(plan: Plan, site: Site) -> Iterator[str]:
    free = sum(node.free_gpus for node in site.nodes)
    there = sum(node.gpus for node in site.nodes)
    full = [f"{node.name} ({node.why})" for node in site.busy]
    if not site.nodes or not (free * 2 < there or len(full) > len(plan.nodes)):
        return
    line = f"few GPUs: {free} of {there} are free on {len(site.nodes)} nodes"
    yield line + (f"; not usable are: {_named(full)}" if full else "")


def _no_signal(plan: Plan, site: Site) -> Iterator[str]:
    if not site.settings.first_signal:
        return
    sliced = {shard.dataset for trial in plan.trials for shard in trial.shards if shard.signal}
    left = [cost.name for cost in plan.datasets if cost.name not in sliced]
    if not sliced:
        yield "no first signal: any slice of the datasets would put off the end by more than 2 %"
    elif left:
        yield f"first signal: none of {_named(left)}, which take too long or cannot be split"


def _memory(plan: Plan, site: Site) -> Iterator[str]:
    live = {node.name: node for node in site.nodes}
    running = Counter(trial.node for trial in plan.trials)
    tight = []
    for planned in plan.nodes:
        node = live.get(planned.name)
        if node is None:
            continue
        asked = site.keeper_gib + running[node.name] * site.settings.trial.memory_gib
        left = node.memory_gib - asked
        if left < HEADROOM * asked:
            tight.append((left, f"{node.name} ({left:.1f} of {node.memory_gib:.1f} GiB left)"))
    if tight:
        names = _named([name for _, name in sorted(tight)])
        yield (
            f"memory: little is left beside the weights ({site.keeper_gib:.1f} GiB a node) and "
            f"the trials ({site.settings.trial.memory_gib:g} GiB each) on {names}"
        )


def _metric_tail(drawn: Timeline, site: Site) -> Iterator[str]:
    tail = drawn.end - drawn.gpus_end
    if drawn.metrics and tail > TAIL * drawn.end:
        last = max(drawn.metrics, key=lambda bar: bar.end).job
        most = max(step.cores for step in drawn.cores())
        yield (
            f"metrics: those of {last.dataset} end {duration(tail)} after the last response, "
            f"using at most {most} of {site.metric_cpus} cores"
            + ("; [metrics] cpus allows more" if most == site.metric_cpus else "")
        )


def _deciding_dataset(plan: Plan, drawn: Timeline) -> Iterator[str]:
    """A dataset that would end no sooner on more GPUs."""
    bars = [(bar, trial) for trial in drawn.trials for bar in trial.shards]
    if not bars:
        return
    costs = {cost.name: cost for cost in plan.datasets}
    last, trial = max(bars, key=lambda found: found[0].complete)
    cost = costs[last.shard.dataset]
    waited = last.complete - max(bar.idle_from for bar in drawn.trials)
    if waited > TAIL * drawn.end:
        yield (
            f"longest item: {cost.name} is complete {duration(waited)} after all shards have run: "
            f"one of its items takes {duration(cost.floor_seconds)} on any number of GPUs"
        )
        return
    alone = trial.ready + max(cost.gpu_seconds, cost.floor_seconds)
    if not cost.splittable and alone > (1 - TAIL) * drawn.gpus_end and len(drawn.trials) > 1:
        yield (
            f"not splittable: {cost.name} takes {duration(cost.gpu_seconds)} on one trial, and "
            "more GPUs shorten nothing"
        )


def _wide(plan: Plan) -> Iterator[str]:
    total = sum(cost.gpu_seconds for cost in plan.datasets)

    def carries(cost: Cost) -> bool:
        return cost.gpu_seconds >= MUCH * total and cost.spread > WIDE_SPREAD

    wide = sorted(filter(carries, plan.datasets), key=lambda cost: -cost.gpu_seconds)
    if wide:
        found = [
            f"{cost.name} ({cost.gpu_seconds / total:.0%} of the GPU time, within a factor of "
            f"{math.exp(cost.spread):.1f})"
            for cost in wide
        ]
        yield f"unsure times: {_named(found)}; trials that are done early take over work of others"


def _guessed(plan: Plan, site: Site) -> Iterator[str]:
    total = sum(cost.gpu_seconds for cost in plan.datasets)
    ours = [cost for cost in plan.datasets if cost.name in set(site.guessed)]
    if ours:
        share = sum(cost.gpu_seconds for cost in ours) / total
        names = _named([c.name for c in sorted(ours, key=lambda c: -c.gpu_seconds)])
        yield (
            f"guessed: {names} ({share:.0%} of the GPU time) have no prior; a suite can give one"
        )


def _named(names: Sequence[str]) -> str:
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return ", ".join(names[:NAMED]) + more
