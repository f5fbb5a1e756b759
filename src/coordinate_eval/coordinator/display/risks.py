"""The risks of a plan, one line each with names and numbers."""

import math
import time
from collections import Counter
from collections.abc import Iterator
from functools import partial

from coordinate_eval._format import duration, listed
from coordinate_eval.coordinator.display.summary import Review
from coordinate_eval.coordinator.planning.costs import without_prior
from coordinate_eval.coordinator.planning.plan import ScoreJob
from coordinate_eval.coordinator.run.jobs import (
    TIME_LIMIT_FACTOR,
    before_windows,
    keeper_gib,
    longest_trial,
)
from coordinate_eval.priors.observations import subject

HEADROOM = 0.1
"""Free memory is reported if it is less than this part of what a node is asked for."""

WIDE_SPREAD = 0.4
"""Standard deviation of the logarithm of a predicted time from which on it counts as a guess."""

MUCH = 0.05
"""Part of the GPU time from which on a dataset decides much of the makespan."""

TAIL = 0.02
"""Delays below this part of the makespan are not reported."""

_listed = partial(listed, most=3)


def risks(found: Review) -> list[str]:
    """Return a line for each risk, those of the whole run first."""
    return [
        *_nodes_unknown(found),
        *(f"maintenance: {line}" for line in before_windows(found.run, time.time())),
        *_time_limit(found),
        *_few_gpus(found),
        *_no_signal(found),
        *_memory(found),
        *(f"few-shot examples: {line}" for line in found.own_answers),
        *_metric_tail(found),
        *_deciding_dataset(found),
        *_wide(found),
        *_no_prior(found),
    ]


def _nodes_unknown(found: Review) -> Iterator[str]:
    known = {node.name for node in found.offer.nodes}
    if found.run.settings.engine.elsewhere:
        return
    if not any(node.name in known for node in found.plan.nodes):
        yield (
            f"no GPU is free now: the plan assumes {len(found.plan.trials)} trials and is made "
            "again when GPUs are free"
        )


def _time_limit(found: Review) -> Iterator[str]:
    makespan = found.plan.estimate.makespan_seconds
    minutes, why = longest_trial(found.run, time.time())
    most = 60 * minutes
    if TIME_LIMIT_FACTOR * makespan <= most:
        return
    times = most / makespan
    yield (
        f"time limit: {why} cuts it to "
        f"{duration(most)}, {times:.1f} × the makespan instead of {TIME_LIMIT_FACTOR:g} ×"
        + ("; further rounds of jobs do the rest" if times < 1 else "")
    )
    long = sorted({s.dataset for t in found.plan.trials for s in t.shards if s.gpu_seconds > most})
    if long:
        yield f"time limit: no job has time for {_listed(long)} as a whole; several do it in turn"


def _few_gpus(found: Review) -> Iterator[str]:
    nodes = found.offer.nodes
    free = sum(node.free_gpus for node in nodes)
    there = sum(node.gpus for node in nodes)
    full = [f"{node.name} ({node.why})" for node in found.offer.busy]
    if nodes and (free * 2 < there or len(full) > len(found.plan.nodes)):
        line = f"few GPUs: {free} of {there} are free on {len(nodes)} nodes"
        yield line + (f"; not usable: {_listed(full)}" if full else "")


def _no_signal(found: Review) -> Iterator[str]:
    if not found.run.settings.first_signal:
        return
    sliced = {s.dataset for trial in found.plan.trials for s in trial.shards if s.signal}
    left = [cost.name for cost in found.plan.datasets if cost.name not in sliced]
    if not sliced:
        yield "no first signal: slices of the datasets would delay the end by more than 2 %"
    elif left:
        yield f"first signal: none of {_listed(left)}, which take too long or cannot be split"


def _memory(found: Review) -> Iterator[str]:
    live = {node.name: node for node in found.offer.nodes}
    running = Counter(trial.node for trial in found.plan.trials)
    weights = keeper_gib(found.run)
    trial = found.run.settings.trial.memory_gib * found.plan.tensor_parallel
    tight = []
    for name, trials in running.items():
        node = live.get(name)
        if node is None:
            continue
        needed = weights + trials * trial
        left = node.memory_gib - needed
        if left < HEADROOM * needed:
            tight.append((left, f"{name} ({left:.1f} of {node.memory_gib:.1f} GiB left)"))
    if tight:
        yield (
            f"memory: little is left beside the weights ({weights:.1f} GiB a node) and "
            f"the trials ({trial:g} GiB each) on {_listed([name for _, name in sorted(tight)])}"
        )


def _metric_tail(found: Review) -> Iterator[str]:
    drawn, cores = found.timeline, found.offer.metric_cpus
    tail = drawn.end - drawn.gpus_end
    if tail <= TAIL * drawn.end:
        return
    last = max(drawn.on_cores, key=lambda bar: bar.end)
    most = max(step.cores for step in drawn.cores())
    more = "; [metrics] cpus allows more" if most == cores else ""
    if isinstance(last.job, ScoreJob) and (most < cores or not drawn.metrics):
        seconds = duration(last.job.seconds)
        yield (
            f"scoring: that of {last.job.dataset} ends {duration(tail)} after the last response; "
            f"it takes {seconds} on one core"
        )
        return
    longest = max(found.plan.datasets, key=lambda cost: cost.metric_cpu_seconds)
    name = last.job.dataset if most < cores else longest.name
    yield (
        f"metrics: those of {name} decide the end, {duration(tail)} after the last response, "
        f"using at most {most} of {cores} cores{more}"
    )


def _deciding_dataset(found: Review) -> Iterator[str]:
    """Yield the dataset that would end no sooner on more GPUs."""
    drawn = found.timeline
    bars = [(bar, trial) for trial in drawn.trials for bar in trial.shards]
    if not bars:
        return
    costs = {cost.name: cost for cost in found.plan.datasets}
    last, trial = max(bars, key=lambda pair: pair[0].complete)
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
            f"not splittable: {cost.name} takes {duration(cost.gpu_seconds)} on one trial; "
            "more GPUs do not shorten the run"
        )


def _wide(found: Review) -> Iterator[str]:
    total = sum(cost.gpu_seconds for cost in found.plan.datasets)
    wide = [
        cost
        for cost in sorted(found.plan.datasets, key=lambda cost: -cost.gpu_seconds)
        if cost.gpu_seconds >= MUCH * total and cost.spread > WIDE_SPREAD
    ]
    if wide:
        words = [
            f"{cost.name} ({cost.gpu_seconds / total:.0%} of the GPU time, within a factor of "
            f"{math.exp(cost.spread):.1f})"
            for cost in wide
        ]
        yield f"uncertain times: {_listed(words)}; trials that end early take over work from others"


def _no_prior(found: Review) -> Iterator[str]:
    priors, engine = found.offer.priors, found.run.settings.engine.name
    names = {
        dataset.name
        for dataset in without_prior(found.run.suite)
        if not priors.has_seen(subject(dataset), engine)
    }
    total = sum(cost.gpu_seconds for cost in found.plan.datasets)
    unknown = [c for c in found.plan.datasets if c.name in names and c.spread > WIDE_SPREAD]
    if unknown:
        share = sum(cost.gpu_seconds for cost in unknown) / total
        shown = _listed([c.name for c in sorted(unknown, key=lambda c: -c.gpu_seconds)])
        yield (
            f"guessed: {shown} ({share:.0%} of the GPU time), because no run has measured it yet; "
            "a suite can give a `prior`"
        )
