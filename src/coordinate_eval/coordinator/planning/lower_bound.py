"""The lower bound of a plan: the makespan in seconds that no schedule with the same costs beats.

`lower_bound` returns the least makespan that passes every test of `_possible` and `_simple`. Each
test states a condition that every schedule of that length meets, so no schedule is as short as a
makespan that fails a test. For a makespan T, a trial that is ready at r has a window of T − r
seconds:

- capacity: all GPU seconds fit into all trials together (McNaughton, "Scheduling with Deadlines
  and Loss Functions", 1959). A dataset too long for one trial has to be cut, and pays its overhead
  on each further trial that it needs at least;
- items: a trial takes whole items, so a dataset needs enough trials for all of its items;
- pigeonholes: a trial takes at most k pieces that cannot be cut and are longer than 1/(k+1) of the
  window;
- floors: a dataset's longest item takes `floor_seconds` from the first moment at which it can
  begin;
- metrics: no metric begins before the first response of its dataset can exist. All metrics of the
  datasets that cannot begin before some moment follow that moment, on all cores together. A metric
  speeds up with cores without limit here, as in plan@1;
- scores: a dataset's scoring takes one core, after all of its responses and metrics. It follows
  all metrics of any datasets, of which the last belongs to one of them;
- tails: take any datasets. Some trial works on their last shard until all of their GPU seconds,
  spread evenly, are over. The rest of the shard's floor follows, if the floor is longer than any
  shard of the dataset. Then follows the metric of at least one item, or of all items if the
  dataset cannot be cut, and then the dataset's scoring.
"""

import math
from collections.abc import Sequence
from operator import itemgetter

from coordinate_eval.coordinator.planning.plan import Cost

PRECISION = 1e-6
"""Relative precision of the bound."""

_EPS = 1e-9


def lower_bound(costs: Sequence[Cost], ready: float, trials: int, metric_cpus: int) -> float:
    """Return the makespan in seconds that no plan beats; trials can begin at `ready` seconds."""
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


def _simple(costs: Sequence[Cost], ready: float, trials: int, metric_cpus: int) -> float:
    """Return the tests that need no search: work spread evenly, floors, metrics, scores, tails."""
    bound = ready + sum(c.gpu_seconds for c in costs) / trials
    firsts = []  # first response of each dataset, its metric, and its scoring
    due = []  # the moment from which work on cores can begin, and its seconds on all of them
    for cost in costs:
        pieces = min(trials, cost.items) if cost.splittable else 1
        atoms = cost.items if cost.splittable else 1
        metric = cost.metric_cpu_seconds / metric_cpus
        least = math.ceil(atoms / pieces) * cost.gpu_seconds / atoms
        scored = ready + max(least, cost.floor_seconds) + metric / atoms
        bound = max(bound, scored + cost.score_seconds)
        first = ready + max(cost.gpu_seconds / atoms, cost.floor_seconds)
        firsts.append((first, metric, cost.score_seconds))
        due += [(first, metric), (scored, cost.score_seconds / metric_cpus)]
    following = 0.0
    for when, seconds in sorted(due, reverse=True):
        following += seconds
        bound = max(bound, when + following)
    bound = max(bound, _before_scores(firsts))
    return max(bound, ready + _before_tails(costs, trials, metric_cpus))


def _before_scores(firsts: Sequence[tuple[float, float, float]]) -> float:
    """Return the latest end of any datasets' metrics, on all cores, and their shortest scoring."""
    least, work, latest = math.inf, 0.0, 0.0
    for first, metric, scoring in sorted(firsts, key=itemgetter(2), reverse=True):
        if not scoring:
            break
        least, work = min(least, first), work + metric
        latest = max(latest, least + work + scoring, first + metric + scoring)
    return latest


def _before_tails(costs: Sequence[Cost], trials: int, metric_cpus: int) -> float:
    """Return the longest time of any datasets' GPU work, spread evenly, and their shortest tail."""
    work = most = 0.0
    for tail, seconds in sorted(
        ((_tail(c, metric_cpus), c.gpu_seconds) for c in costs), reverse=True
    ):
        work += seconds
        most = max(most, work / trials + tail)
    return most


def _tail(cost: Cost, metric_cpus: int) -> float:
    """Return the least seconds that follow the GPU work of any shard of a dataset."""
    atoms = cost.items if cost.splittable else 1
    metric = cost.metric_cpu_seconds / metric_cpus / atoms
    later = cost.gpu_seconds * (1 - 1 / atoms) + cost.chunk_overhead_seconds
    longest = max(cost.gpu_seconds, later if atoms > 1 else 0.0)
    return max(0.0, cost.floor_seconds - longest) + metric + cost.score_seconds


def _possible(costs: Sequence[Cost], trials: int, window: float) -> bool:
    """Return whether no test rules out a schedule in which each trial works `window` seconds."""
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
    """Return the least number of trials that a dataset needs; infinity if no number is enough."""
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
    """Count the pieces of a dataset that cannot be cut and take longer than this."""
    if cost.splittable:
        return cost.items if cost.gpu_seconds / cost.items > seconds * (1 + _EPS) else 0
    return 1 if cost.gpu_seconds > seconds * (1 + _EPS) else 0
