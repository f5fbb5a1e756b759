"""What the numbers of a plan mean: this replays one, second by second of its own clock.

Time 0 is the submission. A trial starts when its node's weights are staged, is ready after
`setup_seconds`, and runs its shards one after another. The responses of a shard are complete at
its end or `floor_seconds` after its start, whichever is later, while the trial already works on
the next one. A metric job may start when every shard over its range is complete; jobs running
at once never use more than `metric_cpus` cores; in the order listed, the first that fits.
"""

import heapq

from coordinate_eval.coordinator.plan import Estimate, Plan
from coordinate_eval.coordinator.rundir import Span


def estimate(plan: Plan, metric_cpus: int) -> Estimate:
    """The makespan and GPU use of a plan; its lower bound is taken over."""
    complete, trial_ends, working = _trials(plan)
    metric_end = _metrics(plan, complete, metric_cpus)
    held = sum((trial_ends[t.id] - t.start_seconds) * t.gpus for t in plan.trials)
    busy = sum(working[t.id] * t.gpus for t in plan.trials)
    return Estimate(
        makespan_seconds=max(max(trial_ends.values(), default=0.0), metric_end),
        lower_bound_seconds=plan.estimate.lower_bound_seconds,
        gpu_idle_fraction=1 - busy / held if held else 0.0,
        gpu_hours=held / 3600,
    )


def _trials(plan: Plan) -> tuple[dict[Span, float], dict[str, float], dict[str, float]]:
    """When each shard is complete, when each trial ends, how long each has a shard running."""
    floors = {c.name: c.floor_seconds for c in plan.datasets}
    complete: dict[Span, float] = {}
    ends: dict[str, float] = {}
    working: dict[str, float] = {}
    for trial in plan.trials:
        now = begin = trial.start_seconds + trial.setup_seconds
        last = now
        for shard in trial.shards:
            done = max(now + shard.gpu_seconds, now + floors[shard.dataset])
            complete[shard.span] = done
            now += shard.gpu_seconds
            last = max(last, done)
        ends[trial.id] = last
        working[trial.id] = now - begin
    return complete, ends, working


def _metrics(plan: Plan, complete: dict[Span, float], cores: int) -> float:
    """When the last metric job ends; 0 without any."""
    by_dataset: dict[str, list[tuple[Span, float]]] = {}
    for span, when in complete.items():
        by_dataset.setdefault(span.dataset, []).append((span, when))
    waiting = [
        (
            max(
                when
                for span, when in by_dataset[job.dataset]
                if span.start < job.stop and span.stop > job.start
            ),
            job,
        )
        for job in plan.metric_jobs
    ]
    running: list[tuple[float, int]] = []
    now = last = 0.0
    while waiting:
        for entry in list(waiting):
            release, job = entry
            if release <= now and job.cpus <= cores:
                waiting.remove(entry)
                cores -= job.cpus
                heapq.heappush(running, (now + job.seconds, job.cpus))
                last = max(last, now + job.seconds)
        if waiting:
            events = [release for release, _ in waiting if release > now]
            now = min([*events, *([running[0][0]] if running else [])])
            while running and running[0][0] <= now:
                cores += heapq.heappop(running)[1]
    return last
