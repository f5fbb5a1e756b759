"""The lower bound of a plan: seconds that nobody can beat with the same costs.

`lower_bound` is the least makespan that passes every test of `_possible`; each test states what
any schedule of that length must satisfy, so a makespan that fails one is out of reach, whatever
the schedule. For a makespan T, a trial that is ready at r has T − r seconds:

- capacity: all GPU seconds fit into all trials together (McNaughton, "Scheduling with deadlines
  and loss functions", 1959), where a dataset too long for one trial has to be cut and pays its
  overhead on each further trial that it needs at least;
- items: a trial takes whole items, so a dataset needs enough trials for all of its own;
- pigeonholes: of pieces that can't be cut and are longer than 1/(k+1) of the longest window, a
  trial takes k at most;
- floors: a dataset's longest item takes `floor_seconds` from the first moment it can begin;
- metrics: no metric begins before the first response of its dataset can exist, and all metrics
  of datasets that can't begin before some moment follow it, on all cores together. A metric
  speeds up with cores without limit here, as plan@1 has it.
"""

import math
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from coordinate_eval.coordinator.plan import Cost

PRECISION = 1e-6
"""Part of the bound up to which it is found."""

_EPS = 1e-9


class _Windows(NamedTuple):
    """What trials have of a makespan: (seconds, how many trials), longest first."""

    groups: list[tuple[float, int]]

    @property
    def longest(self) -> float:
        return self.groups[0][0] if self.groups else 0.0


def lower_bound(costs: Sequence[Cost], ready: Sequence[float], metric_cpus: int) -> float:
    """Seconds from submission that no plan beats; `ready` is when each trial can begin."""
    low = _simple(costs, ready, metric_cpus)
    starts = Counter(ready)
    if _possible(costs, starts, low):
        return low
    high = low
    while not _possible(costs, starts, high):
        high = 2 * high + 1
    while high - low > PRECISION * high:
        middle = (low + high) / 2
        if _possible(costs, starts, middle):
            high = middle
        else:
            low = middle
    return low


def _simple(costs: Sequence[Cost], ready: Sequence[float], metric_cpus: int) -> float:
    """What needs no search: the work spread evenly, floors, and metrics after their first."""
    begin = min(ready)
    bound = (sum(ready) + sum(c.gpu_seconds for c in costs)) / len(ready)
    firsts = []
    for cost in costs:
        pieces = min(len(ready), cost.items) if cost.splittable else 1
        atoms = cost.items if cost.splittable else 1
        metric = cost.metric_cpu_seconds / metric_cpus
        least = math.ceil(atoms / pieces) * cost.gpu_seconds / atoms
        bound = max(bound, begin + max(least, cost.floor_seconds) + metric / atoms)
        firsts.append((begin + max(cost.gpu_seconds / atoms, cost.floor_seconds), metric))
    following = 0.0
    for first, metric in sorted(firsts, reverse=True):
        following += metric
        bound = max(bound, first + following)
    return bound


def _possible(costs: Sequence[Cost], starts: Counter[float], makespan: float) -> bool:
    """Whether nothing here rules a schedule of this length out."""
    windows = _Windows(
        sorted(((makespan - r, n) for r, n in starts.items() if makespan > r), reverse=True)
    )
    trials = sum(n for _, n in windows.groups)
    capacity = sum(seconds * n for seconds, n in windows.groups)
    needed = 0.0
    for cost in costs:
        pieces = _trials_needed(cost, windows)
        if pieces is None:
            return False
        needed += cost.gpu_seconds + (pieces - 1) * cost.chunk_overhead_seconds
    if needed > capacity * (1 + _EPS):
        return False
    return all(
        sum(_atoms_over(c, windows.longest / (k + 1)) for c in costs) <= k * trials
        for k in (1, 2, 3, 4)
    )


def _trials_needed(cost: Cost, windows: _Windows) -> int | None:
    """On how many trials a dataset has to run at least; None where all are too few."""
    if not cost.splittable:
        return 1 if cost.gpu_seconds <= windows.longest * (1 + _EPS) else None
    each = cost.gpu_seconds / cost.items
    left = cost.items - _fitting(windows.longest, each)
    pieces, first = 1, True
    for seconds, count in windows.groups:
        if left <= 0:
            break
        fitting = _fitting(seconds - cost.chunk_overhead_seconds, each)
        if fitting <= 0:
            return None
        # The longest window was spent on the piece that pays no overhead.
        usable = min(count - 1 if first else count, math.ceil(left / fitting))
        first = False
        pieces += usable
        left -= usable * fitting
    return pieces if left <= 0 else None


def _fitting(seconds: float, each: float) -> int:
    return int(min(max(0.0, seconds) / each * (1 + _EPS), 2.0**62))


def _atoms_over(cost: Cost, seconds: float) -> int:
    """Pieces of a dataset that can't be cut and are longer than this."""
    if cost.splittable:
        return cost.items if cost.gpu_seconds / cost.items > seconds * (1 + _EPS) else 0
    return 1 if cost.gpu_seconds > seconds * (1 + _EPS) else 0
