"""The simulator of plans: when each shard, each metric job and each score job of a plan runs.

Times are seconds from the submission. A trial starts when its node's weights are staged, is ready
`setup_seconds` later, and runs its shards one after another. The responses of a shard are complete
at its end or `floor_seconds` after its start, whichever is later; the trial already works on the
next shard by then. A metric job can start when all shards over its range are complete, and a score
job when all shards of its dataset are complete and its metric jobs have ended. Jobs that run at
once never use more than `metric_cpus` cores: at each moment the first one that fits starts, metric
jobs before score jobs, each in the order listed.
"""

import heapq
import itertools
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import NamedTuple

from coordinate_eval.coordinator.planning.plan import (
    Cost,
    Estimate,
    MetricJob,
    PlanTrial,
    ScoreJob,
)
from coordinate_eval.records import Shard

EPSILON = 1e-9
"""Seconds within which two moments count as one: sums of floats differ with their order."""


class ShardBar(NamedTuple):
    """A shard on its trial: the engine is free at `end`, the last response exists at `complete`."""

    shard: Shard
    begin: float
    end: float
    complete: float


class TrialBar(NamedTuple):
    """A trial: it waits for the weights, starts its engine, and runs its shards."""

    trial: PlanTrial
    ready: float
    shards: tuple[ShardBar, ...]
    end: float

    @property
    def idle_from(self) -> float:
        """Return the end of the last shard; only long items may be under way after it."""
        return self.shards[-1].end if self.shards else self.ready


class JobBar(NamedTuple):
    """A metric job or a score job on its cores."""

    job: MetricJob | ScoreJob
    begin: float
    end: float


class Step(NamedTuple):
    """Metric jobs and score jobs use `cores` cores from `begin` until the next step."""

    begin: float
    cores: int


class Timeline(NamedTuple):
    """A simulated plan, with trials, metric jobs and score jobs in the plan's order."""

    trials: list[TrialBar]
    metrics: list[JobBar]
    scores: list[JobBar]

    @property
    def gpus_end(self) -> float:
        """Return the moment of the last response, in seconds."""
        return max((bar.end for bar in self.trials), default=0.0)

    @property
    def end(self) -> float:
        """Return the makespan, in seconds."""
        return max([self.gpus_end, *(bar.end for bar in self.on_cores)])

    @property
    def on_cores(self) -> list[JobBar]:
        """Return the metric jobs and the score jobs."""
        return [*self.metrics, *self.scores]

    def cores(self) -> list[Step]:
        """Return how many cores these jobs use at once, in the order of time."""
        changes: dict[float, int] = {0.0: 0}
        for bar in self.on_cores:
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

    def estimate(self, lower_bound_seconds: float) -> Estimate:
        """Return the makespan and GPU use of the plan, with its lower bound."""
        held = sum((bar.end - bar.trial.start_seconds) * bar.trial.gpus for bar in self.trials)
        busy = sum((bar.idle_from - bar.ready) * bar.trial.gpus for bar in self.trials)
        return Estimate(
            makespan_seconds=self.end,
            lower_bound_seconds=lower_bound_seconds,
            gpu_idle_fraction=1 - busy / held if held else 0.0,
            gpu_hours=held / 3600,
        )


def simulate(
    costs: Sequence[Cost],
    trials: Sequence[PlanTrial],
    metric_jobs: Sequence[MetricJob],
    score_jobs: Sequence[ScoreJob],
    metric_cpus: int,
) -> Timeline:
    """Run the trials, metric jobs and score jobs of a plan against its costs.

    Raises:
        ValueError: A job needs more than `metric_cpus` cores, or covers items that are in no shard.
    """
    floors = {cost.name: cost.floor_seconds for cost in costs}
    bars = [_run_trial(trial, floors) for trial in trials]
    begins = _run_jobs(metric_jobs, score_jobs, bars, metric_cpus)
    jobs: list[MetricJob | ScoreJob] = [*metric_jobs, *score_jobs]
    on_cores = [
        JobBar(job, begin, begin + job.seconds) for job, begin in zip(jobs, begins, strict=True)
    ]
    return Timeline(bars, on_cores[: len(metric_jobs)], on_cores[len(metric_jobs) :])


def _run_trial(trial: PlanTrial, floors: dict[str, float]) -> TrialBar:
    now = ready = last = trial.start_seconds + trial.setup_seconds
    bars = []
    for shard in trial.shards:
        seconds, floor = shard.gpu_seconds, floors[shard.dataset]
        end = now + seconds
        complete = end if seconds >= floor else now + floor
        bars.append(ShardBar(shard, now, end, complete))
        now = end
        if complete > last:
            last = complete
    return TrialBar(trial, ready, tuple(bars), last)


@dataclass
class _Scoring:
    """A score job that waits: for metric jobs not begun, and until a moment."""

    position: int
    metrics: int
    ready: float


def _run_jobs(
    metric_jobs: Sequence[MetricJob],
    score_jobs: Sequence[ScoreJob],
    trials: Sequence[TrialBar],
    cores: int,
) -> list[float]:
    """Return the moment at which each job begins, metric jobs first."""
    jobs: list[MetricJob | ScoreJob] = [*metric_jobs, *score_jobs]
    if any(job.cpus > cores for job in jobs):
        raise ValueError(f"a job on CPUs needs more than {cores} cores")
    scoring = _scorings(metric_jobs, score_jobs, trials)
    releases = list(_releases(metric_jobs, trials))
    releases += [(each.ready, each.position) for each in scoring.values() if not each.metrics]
    heapq.heapify(releases)
    waiting: dict[int, list[int]] = {}  # by width, positions of jobs in the list
    running: list[tuple[float, int]] = []
    begins = [0.0] * len(jobs)
    left, now = len(jobs), 0.0
    while left:
        moments = [when for when, _ in (*releases[:1], *running[:1])]
        now = max(now, min(moments))
        while running and running[0][0] <= now + EPSILON:
            cores += heapq.heappop(running)[1]
        while releases and releases[0][0] <= now + EPSILON:
            index = heapq.heappop(releases)[1]
            heapq.heappush(waiting.setdefault(jobs[index].cpus, []), index)
        while fitting := [queue for cpus, queue in waiting.items() if queue and cpus <= cores]:
            index = heapq.heappop(min(fitting, key=itemgetter(0)))
            job, begins[index] = jobs[index], now
            left -= 1
            cores -= job.cpus
            heapq.heappush(running, (now + job.seconds, job.cpus))
            following = scoring.get(job.dataset)
            if following is not None and index < len(metric_jobs):
                following.metrics -= 1
                following.ready = max(following.ready, now + job.seconds)
                if not following.metrics:
                    heapq.heappush(releases, (following.ready, following.position))
    return begins


def _scorings(
    metric_jobs: Sequence[MetricJob],
    score_jobs: Sequence[ScoreJob],
    trials: Sequence[TrialBar],
) -> dict[str, _Scoring]:
    """Return what each dataset's score job waits for: metric jobs, and the last response."""
    found = {
        job.dataset: _Scoring(position, 0, 0.0)
        for position, job in enumerate(score_jobs, start=len(metric_jobs))
    }
    for job in metric_jobs:
        if job.dataset in found:
            found[job.dataset].metrics += 1
    for bar in itertools.chain.from_iterable(trial.shards for trial in trials if found):
        scoring = found.get(bar.shard.dataset)
        if scoring is not None and bar.complete > scoring.ready:
            scoring.ready = bar.complete
    return found


def _releases(jobs: Sequence[MetricJob], trials: Sequence[TrialBar]) -> Iterator[tuple[float, int]]:
    """Yield the moment at which each job can start, and the job's position in the list."""
    shards: dict[str, list[tuple[int, int, float]]] = {job.dataset: [] for job in jobs}
    for trial in trials:
        for shard, _, _, complete in trial.shards:
            if shard.dataset in shards:
                shards[shard.dataset].append((shard.start, shard.stop, complete))
    for found in shards.values():
        found.sort()
    starts = {name: [start for start, _, _ in found] for name, found in shards.items()}
    for index, job in enumerate(jobs):
        begun = starts[job.dataset]
        first = max(0, bisect_right(begun, job.start) - 1)
        needed = shards[job.dataset][first : bisect_left(begun, job.stop)]
        if not needed or needed[0][0] > job.start or needed[-1][1] < job.stop:
            raise ValueError(f"no shard has {job.dataset} {job.start}-{job.stop}")
        yield max(complete for _, _, complete in needed), index
