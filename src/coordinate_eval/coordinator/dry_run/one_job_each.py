"""One job per dataset, what scripts around a scheduler do: the measure of a plan. Pure.

Jobs begin in the order given as GPUs become free, load the weights through their node's one
storage link, start an engine, answer a dataset, and hold the GPUs while its metric runs.
"""

import heapq
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from coordinate_eval.coordinator.planning.plan import Cost


@dataclass(frozen=True)
class Place:
    """Where such jobs run: seconds and cores are those of one job that is alone on its node."""

    slots: Sequence[int]
    """Jobs that each node runs at once."""
    load_seconds: float
    engine_start_seconds: float
    cores: int
    link_seconds: float | None = None
    """For which a load fills its node's link; None: all of its time. Others fit in beside it."""

    def slowed(self, loads: int) -> float:
        """How many times as long a load takes while there are so many on its node."""
        if self.link_seconds is None or not self.load_seconds:
            return loads
        return max(1.0, loads * self.link_seconds / self.load_seconds)


@dataclass
class _Loading:
    """A job that loads: seconds that it still needs if it is alone on its node."""

    node: int
    left: float
    cost: Cost


def one_job_each(costs: Sequence[Cost], place: Place) -> float:
    """Makespan, in seconds, of jobs started in this order as GPUs become free.

    Jobs that load at once on one node share its link evenly.
    """
    waiting = list(reversed(costs))
    free = Counter(dict(enumerate(place.slots)))
    loads: Counter[int] = Counter()
    loading: list[_Loading] = []
    ends: list[tuple[float, int]] = []
    now = 0.0
    while waiting or loading or ends:
        while waiting and any(free.values()):
            node = min((n for n in free if free[n]), key=lambda candidate: loads[candidate])
            free[node] -= 1
            loads[node] += 1
            loading.append(_Loading(node, place.load_seconds, waiting.pop()))
        events = [now + job.left * place.slowed(loads[job.node]) for job in loading]
        then = min([*events, *(when for when, _ in ends[:1])])
        for job in loading:
            job.left -= (then - now) / place.slowed(loads[job.node])
        now = then
        for job in [job for job in loading if job.left < 1e-9]:
            loading.remove(job)
            loads[job.node] -= 1
            begin = now + place.engine_start_seconds
            heapq.heappush(ends, (begin + held_seconds(job.cost, place.cores), job.node))
        while ends and ends[0][0] <= now:
            free[heapq.heappop(ends)[1]] += 1
    return now


def longest_first(costs: Sequence[Cost], cores: int) -> list[Cost]:
    """The order in which a careful user submits them."""
    return sorted(costs, key=lambda cost: -held_seconds(cost, cores))


def held_seconds(cost: Cost, cores: int) -> float:
    """How long a dataset holds the GPUs of a job of its own, once the engine runs."""
    used = min(cores, cost.items)
    return max(cost.gpu_seconds, cost.floor_seconds) + cost.metric_cpu_seconds / used
