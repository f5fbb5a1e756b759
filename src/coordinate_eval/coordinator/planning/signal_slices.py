"""The first signal: which items of each dataset to run first, so that every score exists early.

A slice is ranges of items, evenly spaced from the first item on, so that it touches all parts of
a dataset that is in some order, as a group is in the order of its leaf tasks (systematic
sampling; W. G. Cochran, "Sampling Techniques", 3rd ed., 1977, chapter 8). Each range but the
first costs the overhead of a shard, and so does what follows it; of such cuts there are as many
as `OVERHEAD` allows, at least one range a dataset while that lasts.

Slices are dealt longest first (LPT). The last ends after the mean load and the longest range at
most (R. L. Graham, "Bounds on Multiprocessing Timing Anomalies", 1969): `EARLY` and `LONGEST`
together are a tenth.
"""

import heapq
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from coordinate_eval.coordinator.planning.packing import WORTH_CUTTING, Piece, seconds
from coordinate_eval.coordinator.planning.plan import Cost

SHARE = 0.055
"""Part of a dataset's items that its slice has."""

ENOUGH_ITEMS = 2500
"""Items at which the standard error of a proportion is at most 0.5 / √2500 = 0.01."""

FEWEST_ITEMS = 4
"""Below, no standard error is worth the name; a dataset of fewer than twice as many has none."""

MOST_RANGES = 32
"""Ranges of one slice."""

EARLY = 0.07
"""Part of the trials' time that all slices together take."""

LONGEST = 0.03
"""Part of a trial's time that one range takes."""

OVERHEAD = 0.01
"""Part of all GPU seconds that cuts may cost."""


@dataclass(frozen=True)
class _Slice:
    """So many items of a dataset in so many ranges."""

    number: int
    cost: Cost
    items: int
    ranges: int

    @property
    def whole(self) -> bool:
        return self.items == self.cost.items

    @property
    def cut_seconds(self) -> float:
        """What its ranges, and what follows each, cost beside the items themselves."""
        return 0.0 if self.whole else (2 * self.ranges - 1) * self.cost.chunk_overhead_seconds

    @property
    def early_seconds(self) -> float:
        own = self.cost.gpu_seconds * self.items / self.cost.items
        return own + (self.ranges - 1) * self.cost.chunk_overhead_seconds

    @property
    def most_ranges(self) -> int:
        """So that nothing between two ranges is too short to be cut off."""
        least = WORTH_CUTTING * self.cost.chunk_overhead_seconds
        between = self.cost.gpu_seconds / least if least else math.inf
        return 1 if self.whole else int(min(MOST_RANGES, self.items, between))

    def parts(self) -> Iterator[Piece]:
        for n in range(self.ranges):
            start = self.cost.items * n // self.ranges
            items = (self.items + self.ranges - 1 - n) // self.ranges
            yield Piece(self.number, start, start + items)


def pick(costs: Sequence[Cost], trials: int, window: float, scale: float = 1.0) -> list[Piece]:
    """The slices of these datasets on so many trials.

    A dataset that is too short to be cut is in it whole. One has no slice where that would not
    end in time: where it cannot be split, a single item is too long, or there are too many
    datasets; then those of the cheapest cuts are in it.

    Args:
        costs: of whole datasets.
        trials: how many.
        window: seconds from the trials' start to the end of a plan without slices.
        scale: times `SHARE`, `EARLY` and `OVERHEAD`, for less of a signal.
    """
    room = EARLY * scale * window * trials
    budget = OVERHEAD * scale * min(window * trials, sum(c.gpu_seconds for c in costs))
    found = [_least(number, cost, LONGEST * window, scale) for number, cost in enumerate(costs)]
    slices: dict[int, _Slice] = {}
    for one in sorted((s for s in found if s), key=lambda s: (s.cut_seconds, s.early_seconds)):
        if one.cut_seconds <= budget and one.early_seconds <= room:
            slices[one.number] = one
            budget -= one.cut_seconds
            room -= one.early_seconds
    heap = [(one.ranges / one.cost.items, number) for number, one in slices.items()]
    heapq.heapify(heap)
    while heap:
        _, number = heapq.heappop(heap)
        one = slices[number]
        overhead = one.cost.chunk_overhead_seconds
        if one.ranges < one.most_ranges and 2 * overhead <= budget and overhead <= room:
            slices[number] = replace(one, ranges=one.ranges + 1)
            budget -= 2 * overhead
            room -= overhead
            heapq.heappush(heap, ((one.ranges + 1) / one.cost.items, number))
    return [part for _, one in sorted(slices.items()) for part in one.parts()]


def rest(costs: Sequence[Cost], slices: Sequence[Piece]) -> list[Piece]:
    """All items that are in none of these parts, in as few parts as possible."""
    taken: dict[int, list[Piece]] = {}
    for part in sorted(slices):
        taken.setdefault(part.cost, []).append(part)
    left = []
    for number, cost in enumerate(costs):
        start = 0
        for part in taken.get(number, []):
            left.append(Piece(number, start, part.start))
            start = part.stop
        left.append(Piece(number, start, cost.items))
    return [part for part in left if part.start < part.stop]


def deal(costs: Sequence[Cost], slices: Sequence[Piece], trials: int) -> list[list[Piece]]:
    """Each trial's slices, those that take longest to be complete first."""
    queues: list[list[Piece]] = [[] for _ in range(trials)]
    heap = [(0.0, trial) for trial in range(trials)]

    def tail(part: Piece) -> float:
        cost = costs[part.cost]
        return max(seconds(cost, part.start, part.stop), cost.floor_seconds)

    for part in sorted(slices, key=tail, reverse=True):
        load, trial = heapq.heappop(heap)
        queues[trial].append(part)
        load += seconds(costs[part.cost], part.start, part.stop)
        heapq.heappush(heap, (load, trial))
    return queues


def _least(number: int, cost: Cost, longest: float, scale: float) -> _Slice | None:
    """A dataset's slice in as few ranges as are short enough; None where it has none."""
    short = cost.gpu_seconds <= WORTH_CUTTING * cost.chunk_overhead_seconds
    if short or not cost.splittable:
        return _Slice(number, cost, cost.items, 1) if cost.gpu_seconds <= longest else None
    if cost.items < 2 * FEWEST_ITEMS:
        return None
    items = max(FEWEST_ITEMS, min(ENOUGH_ITEMS, math.ceil(SHARE * scale * cost.items)))
    each = cost.gpu_seconds / cost.items
    fitting = int((longest - cost.chunk_overhead_seconds) / each)
    if fitting < 1:
        return None
    return _Slice(number, cost, items, math.ceil(items / fitting))
