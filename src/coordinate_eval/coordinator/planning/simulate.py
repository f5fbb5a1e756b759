"""What the numbers of a plan mean: this replays one, second by second of its own clock.

Time 0 is the submission. A trial starts when its node's weights are staged, is ready after
`setup_seconds`, and runs its shards one after another. The responses of a shard are complete at
its end or `floor_seconds` after its start, whichever is later, while the trial already works on
the next one. A metric job may start when every shard over its range is complete; jobs running
at once never use more than `metric_cpus` cores; in the order listed, the first that fits.
"""

import heapq
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from typing import NamedTuple

from coordinate_eval.coordinator.planning.plan import Cost, Estimate, MetricJob, Trial

EPSILON = 1e-9
"""Seconds within which moments are the same: sums of floats differ with their order."""


class Completion(NamedTuple):
    """When the responses of some items are complete."""

    start: int
    stop: int
    seconds: float


class TrialTimes(NamedTuple):
    """When a trial ends, and for how long it has a shard running."""

    end: float
    working: float


def estimate(
    costs: Sequence[Cost],
    trials: Sequence[Trial],
    metric_jobs: Sequence[MetricJob],
    metric_cpus: int,
    lower_bound_seconds: float,
) -> Estimate:
    """The makespan and GPU use of a plan of these parts."""
    complete, times = run_trials(costs, trials)
    metric_end = run_metrics(metric_jobs, complete, metric_cpus)
    held = sum((t.end - trial.start_seconds) * trial.gpus for trial, t in times)
    busy = sum(t.working * trial.gpus for trial, t in times)
    last = max((t.end for _, t in times), default=0.0)
    return Estimate(
        makespan_seconds=max(last, metric_end),
        lower_bound_seconds=lower_bound_seconds,
        gpu_idle_fraction=1 - busy / held if held else 0.0,
        gpu_hours=held / 3600,
    )


def run_trials(
    costs: Sequence[Cost], trials: Sequence[Trial]
) -> tuple[dict[str, list[Completion]], list[tuple[Trial, TrialTimes]]]:
    """When the items of each dataset are complete, in item order; and each trial's times."""
    floors = {c.name: c.floor_seconds for c in costs}
    complete: dict[str, list[Completion]] = {c.name: [] for c in costs}
    times = []
    for trial in trials:
        now = begin = last = trial.start_seconds + trial.setup_seconds
        for shard in trial.shards:
            done = now + max(shard.gpu_seconds, floors[shard.dataset])
            complete[shard.dataset].append(Completion(shard.start, shard.stop, done))
            now += shard.gpu_seconds
            last = max(last, done)
        times.append((trial, TrialTimes(last, now - begin)))
    for completions in complete.values():
        completions.sort()
    return complete, times


def run_metrics(
    jobs: Sequence[MetricJob], complete: dict[str, list[Completion]], cores: int
) -> float:
    """When the last metric job ends, in seconds; 0 without any."""
    starts = {name: [c.start for c in found] for name, found in complete.items()}
    releases = sorted(
        (_released(job, complete[job.dataset], starts[job.dataset]), number)
        for number, job in enumerate(jobs)
    )
    waiting: dict[int, list[int]] = {}
    running: list[tuple[float, int]] = []
    now = last = 0.0
    coming = 0
    while coming < len(releases) or running:
        events = [release for release, _ in releases[coming : coming + 1]]
        now = max(now, min([*events, *(end for end, _ in running[:1])]))
        while running and running[0][0] <= now + EPSILON:
            cores += heapq.heappop(running)[1]
        while coming < len(releases) and releases[coming][0] <= now + EPSILON:
            released = releases[coming][1]
            heapq.heappush(waiting.setdefault(jobs[released].cpus, []), released)
            coming += 1
        while (number := _first_that_fits(waiting, cores)) is not None:
            job = jobs[number]
            cores -= job.cpus
            heapq.heappush(running, (now + job.seconds, job.cpus))
            last = max(last, now + job.seconds)
    return last


def _released(job: MetricJob, completions: list[Completion], starts: list[int]) -> float:
    """When every shard over the job's range is complete."""
    first = max(0, bisect_right(starts, job.start) - 1)
    last = bisect_left(starts, job.stop)
    return max(completions[n].seconds for n in range(first, last))


def _first_that_fits(waiting: dict[int, list[int]], cores: int) -> int | None:
    """Take the first job in the order listed that so many free cores can run."""
    fitting = [cpus for cpus, numbers in waiting.items() if numbers and cpus <= cores]
    if not fitting:
        return None
    return heapq.heappop(waiting[min(fitting, key=lambda cpus: waiting[cpus][0])])
