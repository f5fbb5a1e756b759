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
  speeds up with cores without limit here, as plan@1 has it;
- tails: of any datasets, some trial works on the last shard until all of their GPU seconds, spread
  evenly, are over. What is left of its floor then, if the floor is longer than any shard of the
  dataset, and the metric of one item at least, of all if it can't be cut, still follow.
"""

import math
from collections.abc import Iterator, Sequence

from coordinate_eval.coordinator.planning.plan import Cost

PRECISION = 1e-6
"""Part of the bound up to which it is found."""

WIDEST = 1.0
"""Spread that stands for larger ones too: between a third of what is predicted and three times."""

_EPS = 1e-9


def lower_bound(costs: Sequence[Cost], ready: float, trials: int, metric_cpus: int) -> float:
    """Seconds from submission that no plan beats; `ready` is when all of the trials can begin."""
    low = _simple(costs, ready, trials, metric_cpus)
    if _possible(costs, trials, low - ready):
        return low
    high = 2 * low - ready + 1
    while not _possible(costs, trials, high - ready):
        high += high - ready
    while high - low > PRECISION * high:
        middle = (low + high) / 2
        if _possible(costs, trials, middle - ready):
            high = middle
        else:
            low = middle
    return low


def if_wrong(costs: Sequence[Cost]) -> Iterator[list[Cost]]:
    """Two opposite ways in which all predictions are off by their spread.

    Of the datasets by length every second takes longer and the others less; then the other way
    round. So what decides the end may decide it no more, and what did not may.
    """
    ordered = sorted(costs, key=lambda c: -max(c.gpu_seconds, c.floor_seconds))
    for first in (0, 1):
        yield [
            _times(cost, math.exp(min(cost.spread, WIDEST) * (1 if n % 2 == first else -1)))
            for n, cost in enumerate(ordered)
        ]


def _times(cost: Cost, factor: float) -> Cost:
    """A dataset of which a model writes more, or less: its longest item follows."""
    seconds = {
        "gpu_seconds": cost.gpu_seconds * factor,
        "floor_seconds": cost.floor_seconds * factor,
    }
    return cost.model_copy(update=seconds)


def _simple(costs: Sequence[Cost], ready: float, trials: int, metric_cpus: int) -> float:
    """What needs no search: the work spread evenly, floors, and metrics after their first."""
    bound = ready + sum(c.gpu_seconds for c in costs) / trials
    firsts = []
    for cost in costs:
        pieces = min(trials, cost.items) if cost.splittable else 1
        atoms = cost.items if cost.splittable else 1
        metric = cost.metric_cpu_seconds / metric_cpus
        least = math.ceil(atoms / pieces) * cost.gpu_seconds / atoms
        bound = max(bound, ready + max(least, cost.floor_seconds) + metric / atoms)
        firsts.append((ready + max(cost.gpu_seconds / atoms, cost.floor_seconds), metric))
    following = 0.0
    for first, metric in sorted(firsts, reverse=True):
        following += metric
        bound = max(bound, first + following)
    return max(bound, ready + _before_tails(costs, trials, metric_cpus))


def _before_tails(costs: Sequence[Cost], trials: int, metric_cpus: int) -> float:
    """The GPU seconds of datasets spread evenly, and the shortest tail of these; at most."""
    work = most = 0.0
    for tail, seconds in sorted(
        ((_tail(c, metric_cpus), c.gpu_seconds) for c in costs), reverse=True
    ):
        work += seconds
        most = max(most, work / trials + tail)
    return most


def _tail(cost: Cost, metric_cpus: int) -> float:
    """What follows the GPU work of any shard of a dataset, at least."""
    atoms = cost.items if cost.splittable else 1
    metric = cost.metric_cpu_seconds / metric_cpus / atoms
    later = cost.gpu_seconds * (1 - 1 / atoms) + cost.chunk_overhead_seconds
    longest = max(cost.gpu_seconds, later if atoms > 1 else 0.0)
    return max(0.0, cost.floor_seconds - longest) + metric


def _possible(costs: Sequence[Cost], trials: int, window: float) -> bool:
    """Whether nothing here rules out that each trial needs so many seconds only."""
    needed = 0.0
    for cost in costs:
        pieces = _trials_needed(cost, window)
        if pieces > trials:
            return False
        needed += cost.gpu_seconds + (pieces - 1) * cost.chunk_overhead_seconds
    if needed > window * trials * (1 + _EPS):
        return False
    return all(
        sum(_atoms_over(c, window / (k + 1)) for c in costs) <= k * trials for k in (1, 2, 3, 4)
    )


def _trials_needed(cost: Cost, window: float) -> float:
    """On how many trials a dataset has to run at least; infinite where no number is enough."""
    if not cost.splittable:
        return 1 if cost.gpu_seconds <= window * (1 + _EPS) else math.inf
    each = cost.gpu_seconds / cost.items
    # The piece with the first item pays no overhead.
    left = cost.items - _fitting(window, each)
    if left <= 0:
        return 1
    further = _fitting(window - cost.chunk_overhead_seconds, each)
    return 1 + math.ceil(left / further) if further > 0 else math.inf


def _fitting(seconds: float, each: float) -> int:
    return int(max(0.0, seconds) / each * (1 + _EPS))


def _atoms_over(cost: Cost, seconds: float) -> int:
    """Pieces of a dataset that can't be cut and are longer than this."""
    if cost.splittable:
        return cost.items if cost.gpu_seconds / cost.items > seconds * (1 + _EPS) else 0
    return 1 if cost.gpu_seconds > seconds * (1 + _EPS) else 0
