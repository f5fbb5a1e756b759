"""When everything in a plan happens, for pictures of it and for saying what decides its end.

The rules are those of `replay`; times are seconds from the submission.
"""

import heapq
from collections.abc import Iterator
from typing import NamedTuple

from coordinate_eval.coordinator.plan import MetricJob, Plan, Trial
from coordinate_eval.coordinator.run import Shard
from coordinate_eval.coordinator.rundir import Span


class ShardBar(NamedTuple):
    """A shard on its trial: the engine goes on at `end`, its responses are there at `complete`."""

    shard: Shard
    begin: float
    end: float
    complete: float


class TrialBar(NamedTuple):
    """A trial: waits for the weights, starts its engine, runs shards, waits for long items."""

    trial: Trial
    ready: float
    shards: tuple[ShardBar, ...]
    end: float

    @property
    def idle_from(self) -> float:
        """When no shard runs any more."""
        return self.shards[-1].end if self.shards else self.ready


class MetricBar(NamedTuple):
    """A metric job on its cores."""

    job: MetricJob
    begin: float
    end: float


class Step(NamedTuple):
    """From `begin` on, until the next step, metric jobs use so many cores."""

    begin: float
    cores: int


class Timeline(NamedTuple):
    """A whole plan, trials and metric jobs in its own order."""

    trials: list[TrialBar]
    metrics: list[MetricBar]

    @property
    def gpus_end(self) -> float:
        """When the last response is there."""
        return max((bar.end for bar in self.trials), default=0.0)

    @property
    def end(self) -> float:
        """The makespan."""
        return max([self.gpus_end, *(bar.end for bar in self.metrics)])

    def cores(self) -> list[Step]:
        """How many cores metric jobs use at once, as steps in the order of time."""
        changes: dict[float, int] = {0.0: 0}
        for bar in self.metrics:
            changes[bar.begin] = changes.get(bar.begin, 0) + bar.job.cpus
            changes[bar.end] = changes.get(bar.end, 0) - bar.job.cpus
        used = 0
        steps = []
        for when in sorted(changes):
            used += changes[when]
            steps.append(Step(when, used))
        return steps


def timeline(plan: Plan, metric_cpus: int) -> Timeline:
    """Every shard and metric job of a plan on `metric_cpus` cores.

    Raises:
        ValueError: a metric job needs more cores, or covers items that no shard has.
    """
    floors = {cost.name: cost.floor_seconds for cost in plan.datasets}
    trials = [_trial(trial, floors) for trial in plan.trials]
    return Timeline(trials, _metrics(plan.metric_jobs, trials, metric_cpus))


def _trial(trial: Trial, floors: dict[str, float]) -> TrialBar:
    now = ready = trial.start_seconds + trial.setup_seconds
    bars = []
    for shard in trial.shards:
        end = now + shard.gpu_seconds
        bars.append(ShardBar(shard, now, end, max(end, now + floors[shard.dataset])))
        now = end
    last = max((bar.complete for bar in bars), default=ready)
    return TrialBar(trial, ready, tuple(bars), last)


def _metrics(jobs: list[MetricJob], trials: list[TrialBar], cores: int) -> list[MetricBar]:
    """At each moment the first in the list that fits begins."""
    if any(job.cpus > cores for job in jobs):
        raise ValueError(f"a metric job needs more than {cores} cores")
    arrivals = sorted(_releases(jobs, trials))
    least = min((job.cpus for job in jobs), default=0)
    waiting: list[int] = []
    running: list[tuple[float, int]] = []
    begins: dict[int, float] = {}
    next_arrival = 0
    now = 0.0
    while len(begins) < len(jobs):
        while next_arrival < len(arrivals) and arrivals[next_arrival][0] <= now:
            waiting.append(arrivals[next_arrival][1])
            next_arrival += 1
        for index in sorted(waiting):
            if cores < least:
                break
            if jobs[index].cpus <= cores:
                begins[index] = now
                cores -= jobs[index].cpus
                heapq.heappush(running, (now + jobs[index].seconds, jobs[index].cpus))
        waiting = [index for index in waiting if index not in begins]
        moments = [when for when, _ in arrivals[next_arrival : next_arrival + 1]]
        moments += [when for when, _ in running[:1]]
        now = min(moments, default=now)
        while running and running[0][0] <= now:
            cores += heapq.heappop(running)[1]
    return [MetricBar(job, begins[i], begins[i] + job.seconds) for i, job in enumerate(jobs)]


def _releases(jobs: list[MetricJob], trials: list[TrialBar]) -> Iterator[tuple[float, int]]:
    """When every response that a job needs is there, and the job's place in the list."""
    complete: dict[Span, float] = {}
    by_dataset: dict[str, list[ShardBar]] = {}
    for bar in (bar for trial in trials for bar in trial.shards):
        complete[bar.shard.span] = bar.complete
        by_dataset.setdefault(bar.shard.dataset, []).append(bar)
    for index, job in enumerate(jobs):
        when = complete.get(Span(job.dataset, job.start, job.stop))
        if when is None:
            when = max(
                bar.complete
                for bar in by_dataset.get(job.dataset, [])
                if bar.shard.start < job.stop and job.start < bar.shard.stop
            )
        yield when, index
