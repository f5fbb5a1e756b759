"""The first signal: a slice of each dataset to run first, so that every score exists early.

A slice consists of ranges of items, evenly spaced from the first item on. It touches all parts of
a dataset whose items are in some order, such as a group in the order of its leaf tasks (systematic
sampling; W. G. Cochran, "Sampling Techniques", 3rd ed., 1977, chapter 8). Each range but the first
costs the overhead of a shard, and so do the items behind it. `OVERHEAD` limits the number of these
cuts; while it lasts, each dataset gets at least one range.

Slices are dealt longest first (LPT). The last one ends no later than the mean load plus the longest
range (R. L. Graham, "Bounds on Multiprocessing Timing Anomalies", 1969). `EARLY` and `LONGEST` add
up to a tenth of the trials' time.
"""

import heapq
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from coordinate_eval.coordinator.planning.dealing.packing import (
    WORTH_CUTTING,
    Piece,
    Queues,
    seconds,
)
from coordinate_eval.coordinator.planning.plan import Cost

SHARE = 0.055
"""Share of a dataset's items in its slice."""

ENOUGH_ITEMS = 2500
"""Most items in a slice: the standard error of a proportion is at most 0.5 / √2500 = 0.01 then."""

FEWEST_ITEMS = 4
"""Fewest items in a slice that leaves others: fewer give no useful standard error. A dataset with
fewer than twice as many has no slice."""

MOST_RANGES = 32
"""Most ranges in one slice."""

EARLY = 0.07
"""Share of the trials' time that all slices together take at most."""

LONGEST = 0.03
"""Share of a trial's time that one range takes at most."""

OVERHEAD = 0.01
"""Share of all GPU seconds that cuts may cost."""


@dataclass(frozen=True)
class _Slice:
    """A number of items of a dataset, in a number of ranges."""

    number: int
    cost: Cost
    items: int
    ranges: int

    @property
    def whole(self) -> bool:
        return self.items == self.cost.items

    @property
    def cut_seconds(self) -> float:
        """Return the overhead of its ranges and of the items behind each, in seconds."""
        return 0.0 if self.whole else (2 * self.ranges - 1) * self.cost.chunk_overhead_seconds

    @property
    def early_seconds(self) -> float:
        own = self.cost.gpu_seconds * self.items / self.cost.items
        return own + (self.ranges - 1) * self.cost.chunk_overhead_seconds

    @property
    def most_ranges(self) -> int:
        """Return up to how many ranges the items between two are worth cutting off."""
        least = WORTH_CUTTING * self.cost.chunk_overhead_seconds
        between = self.cost.gpu_seconds / least if least else math.inf
        return 1 if self.whole else int(min(MOST_RANGES, self.items, between))

    def pieces(self) -> Iterator[Piece]:
        for n in range(self.ranges):
            start = self.cost.items * n // self.ranges
            items = (self.items + self.ranges - 1 - n) // self.ranges
            yield Piece(self.number, start, start + items)


def pick(costs: Sequence[Cost], trials: int, window: float, scale: float = 1.0) -> list[Piece]:
    """Choose the slices of these datasets.

    A dataset that is too short to cut is its own slice. A dataset has no slice if it cannot be
    split, if a single item takes too long, or if there is no room for all datasets; the datasets
    with the cheapest cuts go first then.

    Args:
        window: Seconds from the trials' start to the end of a plan without slices.
        scale: Factor on `SHARE`, `EARLY` and `OVERHEAD`; below 1 the signal is smaller.
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
    return [piece for _, one in sorted(slices.items()) for piece in one.pieces()]


def rest(costs: Sequence[Cost], slices: Sequence[Piece]) -> list[Piece]:
    """Return all items that are in no slice, in as few pieces as possible."""
    taken: dict[int, list[Piece]] = {}
    for piece in sorted(slices):
        taken.setdefault(piece.cost, []).append(piece)
    left = []
    for number, cost in enumerate(costs):
        start = 0
        for piece in taken.get(number, []):
            left.append(Piece(number, start, piece.start))
            start = piece.stop
        left.append(Piece(number, start, cost.items))
    return [piece for piece in left if piece.start < piece.stop]


def deal(costs: Sequence[Cost], slices: Sequence[Piece], trials: int) -> list[list[Piece]]:
    """Return one queue per trial: slices in the order of the time until they are complete, longest
    first.
    """
    queues = Queues(costs, [0.0] * trials)

    def until_complete(piece: Piece) -> float:
        cost = costs[piece.cost]
        return max(seconds(cost, piece), cost.floor_seconds)

    queues.give_to_the_freest(sorted(slices, key=until_complete, reverse=True))
    return queues.pieces


def _least(number: int, cost: Cost, longest: float, scale: float) -> _Slice | None:
    """Return a dataset's slice in the fewest ranges that are short enough, or None."""
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
