"""Packing: deal the shards of all datasets to the trials.

Datasets are cut into pieces that take a small share of a trial's time. The pieces are dealt longest
first, those that much follows before others, each to the trial that is free first (LPT; R. L.
Graham, "Bounds on Multiprocessing Timing Anomalies", 1969). Pieces are small for two reasons: a
trial that runs dry takes over whole shards of other trials, and metrics need responses early.
"""

import heapq
import itertools
import math
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from coordinate_eval.coordinator.planning.plan import Cost
from coordinate_eval.records import Shard, even_parts

SHORT = 0.03
"""Length of a piece, as a share of a trial's time, if cuts cost little."""

FEW_CUTS = 20.0
"""Length of a piece in multiples of the overhead of a cut, if that is more."""

COARSEST = 1 / 6
"""Longest piece, as a share of a trial's time, that is made for its overhead."""

LONG = 0.3
"""Longest item, as a share of a trial's time, above which a piece is as long as that item: it would
end no sooner if it were shorter."""

FILLING = 0.9
"""Longest item, as a share of a trial's time, above which its trial has to begin with it, before
shards that cores wait for."""

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


def shard_of(cost: Cost, piece: Piece, *, signal: bool = False) -> Shard:
    """Return a piece as a shard of a plan."""
    return Shard(
        dataset=cost.name,
        start=piece.start,
        stop=piece.stop,
        gpu_seconds=seconds(cost, piece),
        metric_cpu_seconds=cost.metric_cpu_seconds * (piece.stop - piece.start) / cost.items,
        signal=signal,
    )


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


def stage_of(cost: Cost, start: int) -> int:
    """Return the stage of a dataset, from 0, that an item at this position belongs to."""
    return bisect_right(cost.stages, start)


def in_stages(cost: Cost, piece: Piece) -> Iterator[Piece]:
    """Yield a piece in parts that each belong to one stage."""
    inside = (end for end in cost.stages if piece.start < end < piece.stop)
    for start, stop in itertools.pairwise([piece.start, *inside, piece.stop]):
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

    def give_to_the_freest(self, pieces: Sequence[Piece]) -> None:
        """Give each piece in turn to the trial that is free first."""
        heap = [(load, trial) for trial, load in enumerate(self.loads)]
        heapq.heapify(heap)
        for piece in pieces:
            _, trial = heapq.heappop(heap)
            self.give(trial, piece)
            heapq.heappush(heap, (self.loads[trial], trial))


def deal(
    costs: Sequence[Cost], pieces: Sequence[Piece], ready: Sequence[float], metric_cpus: int
) -> list[list[Piece]]:
    """Return one queue per trial, with every item of the pieces in exactly one of them.

    A queue has the first stages of all datasets before later ones. Of a stage, it begins with items
    that fill a trial's time. Shards follow that are more work for cores than for GPUs, so that
    cores start early (Johnson's rule). The others are in the order of what follows their end, the
    longest first (Jackson's rule). Where as much follows, the longest comes first: other trials can
    take over the small ones that are left.
    """

    window = max(sum(own_seconds(costs[p.cost], p) for p in pieces) / len(ready), 1e-9)

    def dealt_first(piece: Piece) -> tuple[int, float]:
        cost = costs[piece.cost]
        metric = cost.metric_cpu_seconds / metric_cpus
        tail = cost.floor_seconds + metric + cost.score_seconds + cost.judge_seconds
        return stage_of(cost, piece.start), -own_seconds(cost, piece) - tail

    def run_first(piece: Piece) -> tuple[float, ...]:
        cost = costs[piece.cost]
        own = seconds(cost, piece)
        metric = cost.metric_cpu_seconds * (piece.stop - piece.start) / cost.items / metric_cpus
        follows = max(0.0, cost.floor_seconds - own) + metric
        follows += cost.score_seconds + cost.judge_seconds
        for_cores = metric / (own / len(ready))
        return (
            stage_of(cost, piece.start),
            -cost.floor_seconds if cost.floor_seconds > FILLING * window else 0.0,
            -for_cores if for_cores > 1 else 0.0,
            -follows,
            -own,
        )

    if len(ready) > 1:  # a lone trial shares nothing
        pieces = [part for p in pieces for part in _parts(costs[p.cost], p, window)]
    queues = Queues(costs, ready)
    queues.give_to_the_freest(sorted(pieces, key=dealt_first))
    return [sorted(queue, key=run_first) for queue in queues.pieces]


def deal_round_robin(
    costs: Sequence[Cost], pieces: Sequence[Piece], trials: int
) -> list[list[Piece]]:
    """Return one queue per trial: pieces uncut, longest first, dealt to the trials in turn."""

    def rank(piece: Piece) -> tuple[int, float]:
        cost = costs[piece.cost]
        return stage_of(cost, piece.start), -own_seconds(cost, piece)

    ordered = sorted(pieces, key=rank)
    return [ordered[number::trials] for number in range(trials)]


def _parts(cost: Cost, piece: Piece, window: float) -> Iterator[Piece]:
    """Yield a piece in parts as short as their cuts are worth."""
    few_cuts = min(FEW_CUTS * cost.chunk_overhead_seconds, COARSEST * window)
    item = cost.floor_seconds if cost.floor_seconds > LONG * window else 0.0
    yield from cut(cost, piece, max(SHORT * window, few_cuts, item))
