"""When everything in a plan happens, for pictures of it and for saying what decides its end.

The rules are those of `replay`; times are seconds from the submission.
"""

import heapq
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from typing import NamedTuple

from coordinate_eval.coordinator.planning.plan import MetricJob, Plan, Trial
from coordinate_eval.coordinator.planning.simulate import EPSILON
from coordinate_eval.records import Shard


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
        steps: list[Step] = []
        for when in sorted(changes):
            used += changes[when]
            if steps and when - steps[-1].begin <= 2 * EPSILON:  # the same moment
                steps[-1] = steps[-1]._replace(cores=used)
            else:
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
    releases = sorted(_releases(jobs, trials))
    waiting: dict[int, list[int]] = {}
    running: list[tuple[float, int]] = []
    begins: dict[int, float] = {}
    now, coming = 0.0, 0
    while len(begins) < len(jobs):
        moments = [when for when, _ in (*releases[coming : coming + 1], *running[:1])]
        now = max(now, min(moments))
        while running and running[0][0] <= now + EPSILON:
            cores += heapq.heappop(running)[1]
        while coming < len(releases) and releases[coming][0] <= now + EPSILON:
            index = releases[coming][1]
            heapq.heappush(waiting.setdefault(jobs[index].cpus, []), index)
            coming += 1
        while fitting := [w for cpus, w in waiting.items() if w and cpus <= cores]:
            index = heapq.heappop(min(fitting, key=lambda each: each[0]))
            begins[index] = now
            cores -= jobs[index].cpus
            heapq.heappush(running, (now + jobs[index].seconds, jobs[index].cpus))
    return [MetricBar(job, begins[i], begins[i] + job.seconds) for i, job in enumerate(jobs)]


def _releases(jobs: list[MetricJob], trials: list[TrialBar]) -> Iterator[tuple[float, int]]:
    """When every response that a job needs is there, and the job's place in the list."""
    by_dataset: dict[str, list[ShardBar]] = {}
    for bar in (bar for trial in trials for bar in trial.shards):
        by_dataset.setdefault(bar.shard.dataset, []).append(bar)
    starts = {}
    for name, bars in by_dataset.items():
        bars.sort(key=lambda bar: bar.shard.start)
        starts[name] = [bar.shard.start for bar in bars]
    for index, job in enumerate(jobs):
        begun = starts.get(job.dataset, [])
        first = max(0, bisect_right(begun, job.start) - 1)
        needed = by_dataset.get(job.dataset, [])[first : bisect_left(begun, job.stop)]
        if not needed or needed[-1].shard.stop < job.stop:
            raise ValueError(f"no shard has {job.dataset} {job.start}-{job.stop}")
        yield max(bar.complete for bar in needed), index
