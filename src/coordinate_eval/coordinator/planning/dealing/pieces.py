"""Pieces of datasets, and the queues of trials as they fill."""

import heapq
import math
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from coordinate_eval.coordinator.planning.plan import Cost
from coordinate_eval.records import even_parts

WORTH_CUTTING = 4.0
"""Least length of a dataset that is cut, in multiples of its overhead per cut."""


class Piece(NamedTuple):
    """Items `start` to `stop` of a dataset; `cost` is its position in the list of costs."""

    cost: int
    start: int
    stop: int


def seconds(cost: Cost, piece: Piece) -> float:
    """Return the GPU seconds of a piece as a shard, as plan@1 defines them."""
    return own_seconds(cost, piece) + (cost.chunk_overhead_seconds if piece.start else 0.0)


def own_seconds(cost: Cost, piece: Piece) -> float:
    """Return the GPU seconds of a piece without overhead."""
    return cost.gpu_seconds * (piece.stop - piece.start) / cost.items


def cut(cost: Cost, piece: Piece, longest_seconds: float | None) -> Iterator[Piece]:
    """Yield a piece in equal parts that take `longest_seconds` at most, as far as it can be cut."""
    items = piece.stop - piece.start
    count = 1
    if longest_seconds is not None and cost.splittable:
        count = max(1, min(items, math.ceil(own_seconds(cost, piece) / longest_seconds)))
    yield from in_parts(piece, count)


def in_parts(piece: Piece, count: int) -> Iterator[Piece]:
    """Yield a piece in so many parts of about as many items each."""
    for start, stop in even_parts(piece.start, piece.stop, count):
        yield Piece(piece.cost, start, stop)


class Queues:
    """The queues of trials as they fill, and the second until which each trial is busy."""

    def __init__(self, costs: Sequence[Cost], ready: Sequence[float]) -> None:
        self.costs = costs
        self.loads = list(ready)
        self.pieces: list[list[Piece]] = [[] for _ in ready]

    def give(self, trial: int, piece: Piece) -> None:
        """Put a piece at the end of a trial's queue."""
        self.pieces[trial].append(piece)
        self.loads[trial] += seconds(self.costs[piece.cost], piece)

    def work(self, pieces: Iterable[Piece]) -> float:
        """Return the GPU seconds of these pieces without overhead."""
        return sum(own_seconds(self.costs[p.cost], p) for p in pieces)

    def give_to_the_freest(self, pieces: Sequence[Piece]) -> None:
        """Give each piece in turn to the trial that is free first."""
        heap = [(load, trial) for trial, load in enumerate(self.loads)]
        heapq.heapify(heap)
        for piece in pieces:
            _, trial = heapq.heappop(heap)
            self.give(trial, piece)
            heapq.heappush(heap, (self.loads[trial], trial))
