"""The makespan of one job per dataset, which is what a plan is compared with.

Jobs start in the order given as GPUs become free. Each loads the weights through its node's one
storage link, starts an engine, answers a dataset, and holds the GPUs while it is scored.
"""

import heapq
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from coordinate_eval.coordinator.planning.plan import Cost


@dataclass(frozen=True)
class JobConditions:
    """The common conditions of these jobs. Seconds are those of a job alone on its node."""

    slots: Sequence[int]
    """Number of these jobs that run at once, on each node."""
    load_seconds: float
    engine_start_seconds: float
    cores: int
    link_seconds: float | None = None
    """Seconds of a load if it had its node's link for itself; None if a load fills the link."""

    def slowed(self, loads: int) -> float:
        """Return the factor by which a load takes longer with this many loads on its node."""
        if self.link_seconds is None or not self.load_seconds:
            return loads
        return max(1.0, loads * self.link_seconds / self.load_seconds)


@dataclass
class _Loading:
    """A job that loads weights; `left` are the seconds it needs if alone on its node."""

    node: int
    left: float
    cost: Cost


def one_job_each(costs: Sequence[Cost], on: JobConditions) -> float:
    """Return the makespan, in seconds, of jobs started in this order as GPUs become free.

    Jobs that load at once on one node share its link evenly.
    """
    waiting = list(reversed(costs))
    free = Counter(dict(enumerate(on.slots)))
    loads: Counter[int] = Counter()
    loading: list[_Loading] = []
    ends: list[tuple[float, int]] = []
    now = 0.0
    while waiting or loading or ends:
        while waiting and any(free.values()):
            node = min((n for n in free if free[n]), key=lambda candidate: loads[candidate])
            free[node] -= 1
            loads[node] += 1
            loading.append(_Loading(node, on.load_seconds, waiting.pop()))
        events = [now + job.left * on.slowed(loads[job.node]) for job in loading]
        then = min([*events, *(when for when, _ in ends[:1])])
        for job in loading:
            job.left -= (then - now) / on.slowed(loads[job.node])
        now = then
        for job in [job for job in loading if job.left < 1e-9]:
            loading.remove(job)
            loads[job.node] -= 1
            begin = now + on.engine_start_seconds
            heapq.heappush(ends, (begin + held_seconds(job.cost, on.cores), job.node))
        while ends and ends[0][0] <= now:
            free[heapq.heappop(ends)[1]] += 1
    return now


def longest_first(costs: Sequence[Cost], cores: int) -> list[Cost]:
    """Return the datasets in the order in which a careful user submits them."""
    return sorted(costs, key=lambda cost: -held_seconds(cost, cores))


def held_seconds(cost: Cost, cores: int) -> float:
    """Return how many seconds a job of its own holds the GPUs, once the engine runs."""
    used = min(cores, cost.items)
    answered = max(cost.gpu_seconds, cost.floor_seconds)
    return answered + cost.metric_cpu_seconds / used + cost.score_seconds
