"""Pouring: work that can be cut anywhere fills the trials up to one level, layer by layer.

This is McNaughton's wrap-around rule, which is optimal where cutting is free ("Scheduling with
Deadlines and Loss Functions", 1959). A cut costs its overhead, so the overhead limits the number of
layers.
"""

import itertools
from collections.abc import Iterator, Sequence

from coordinate_eval.coordinator.planning.dealing.pieces import Piece, Queues, own_seconds


def pour_layers(
    queues: Queues, pieces: list[Piece], overhead: float, shares: tuple[float, ...]
) -> None:
    """Pour finely divisible work in layers whose cuts cost a trial `overhead` seconds at most."""
    if not pieces:
        return
    work = queues.work(pieces)
    cuts = (own_seconds(c := queues.costs[p.cost], p) * c.chunk_overhead_seconds for p in pieces)
    cut = sum(cuts) / work
    most = int(min(len(shares), overhead / cut)) if cut else len(shares)
    for layer in _in_layers(queues, pieces, _merged(shares, max(1, most))):
        _pour(queues, layer)


def _merged(shares: tuple[float, ...], most: int) -> list[float]:
    """Merge neighbouring shares until there are at most `most`; their sum stays the same."""
    count = min(most, len(shares))
    edges = [round(i * len(shares) / count) for i in range(count + 1)]
    return [sum(shares[a:b]) for a, b in itertools.pairwise(edges)]


def _in_layers(
    queues: Queues, pieces: Sequence[Piece], shares: Sequence[float]
) -> Iterator[list[Piece]]:
    """Yield the pieces cut into consecutive layers of these shares of their work."""
    work, costs = queues.work(pieces), queues.costs
    queue = list(reversed(pieces))
    for number, share in enumerate(shares):
        last = number == len(shares) - 1
        room = work * share
        layer: list[Piece] = []
        while queue and (room > 0 or last):
            piece = queue.pop()
            each = costs[piece.cost].gpu_seconds / costs[piece.cost].items
            items = piece.stop - piece.start
            if not last and items * each > room:
                items = max(1, int(room / each))
            layer.append(Piece(piece.cost, piece.start, piece.start + items))
            room -= items * each
            if piece.start + items < piece.stop:
                queue.append(Piece(piece.cost, piece.start + items, piece.stop))
                if not last:
                    break
        if layer:
            yield layer


def _pour(queues: Queues, pieces: list[Piece]) -> None:
    """Fill the trials up to one level, cutting where a trial is full."""
    work = queues.work(pieces)
    low = _level(queues.loads, work)
    overhead = max(queues.costs[p.cost].chunk_overhead_seconds for p in pieces)
    each = max(queues.costs[p.cost].gpu_seconds / queues.costs[p.cost].items for p in pieces)
    high = low + max(2 * (overhead + each), 1e-9 * low)
    while _poured(queues, pieces, high) is None:
        high += high - low
    best = high
    for _ in range(12):
        middle = (low + high) / 2
        if _poured(queues, pieces, middle) is None:
            low = middle
        else:
            best = high = middle
    poured = _poured(queues, pieces, best)
    assert poured is not None
    for trial, cost, start, stop in poured:
        queues.give(trial, Piece(cost, start, stop))


def _level(loads: Sequence[float], work: float) -> float:
    """Return the level up to which this much work would fill the loads if it were a liquid."""
    ordered = sorted(loads)
    below = 0.0
    for count, load in enumerate(ordered, start=1):
        below += load
        level = (work + below) / count
        if count == len(ordered) or level <= ordered[count]:
            return level
    return work


def _poured(
    queues: Queues, pieces: Sequence[Piece], level: float
) -> list[tuple[int, int, int, int]] | None:
    """Fill the trials in turn up to a level; return (trial, cost, start, stop) of each cut.

    Return None where the work does not fit below the level. Planning spends most of its time here:
    each layer calls this a dozen times.
    """
    found: list[tuple[int, int, int, int]] = []
    pending = iter(pieces)
    number, start, end = next(pending)
    cost = queues.costs[number]
    each, overhead = cost.gpu_seconds / cost.items, cost.chunk_overhead_seconds
    for trial, load in enumerate(queues.loads):
        gap = level - load
        while gap > 0:
            if start:
                gap -= overhead
            stop = start + int(gap / each + 1e-9)
            if stop <= start:
                break
            if stop < end:
                found.append((trial, number, start, stop))
                start = stop
                break  # less room is left than one item takes
            found.append((trial, number, start, end))
            gap -= (end - start) * each
            following = next(pending, None)
            if following is None:
                return found
            number, start, end = following
            cost = queues.costs[number]
            each, overhead = cost.gpu_seconds / cost.items, cost.chunk_overhead_seconds
    return None
