"""Which shards each trial gets: the dealing behind a plan. Costs and ready times in, queues out.

What can't be cut finely (whole datasets, and pieces of datasets whose items are long) is dealt
longest first to the trial that is free first (LPT; R. L. Graham, "Bounds on Multiprocessing
Timing Anomalies", 1969). Everything else is poured over that in layers, each up to one common
level, with datasets cut exactly where a trial is full: McNaughton's wrap-around rule, which is
optimal where cutting is free ("Scheduling with deadlines and loss functions", 1959). A cut costs
its overhead, so there are only as many layers as overhead allows; several, because a trial that
runs dry takes over whole shards of others, and because metrics want their first responses early.

Datasets come in the order of what must follow their GPU work: a long item, a long metric.
"""

import heapq
import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from coordinate_eval.coordinator.planning.plan import Cost

OVERHEAD_SHARE = 0.01
"""Part of a trial's time that cuts may cost it, beyond the one that it needs."""

WORTH_CUTTING = 4.0
"""Times its overhead that a dataset takes at least before it is cut."""

LAYERS = (0.14, 0.12, 0.11, 0.10, 0.09, 0.08, 0.07, 0.06, 0.05, 0.04) + (0.02,) * 7
"""Parts of the poured work, shrinking as in guided self-scheduling (Polychronopoulos and Kuck,
1987): where predictions were wrong, small shards at the end are what trials share out anew."""

EARLY_LAYERS = (0.02, 0.05, 0.10, 0.18, 0.25, 0.20, 0.13, 0.07)
"""The same of what metrics wait for: the first responses must exist soon."""


class Piece(NamedTuple):
    """Items of a dataset, by its position in the list of costs."""

    cost: int
    start: int
    stop: int


@dataclass(frozen=True)
class Way:
    """A way of dealing."""

    fine: float = 0.004
    """Part of a trial's time up to which one item is short enough to pour."""
    early_overhead: float = 0.0
    """Part of a trial's time that may go into cutting what metrics wait for; 0 where GPUs decide
    and metrics need no hurry."""
    apart: float = float("inf")
    """Part of a trial's time above which a longest item keeps its dataset apart: a trial begins
    with one of these, and none is cut finer than its item takes."""
    whole: bool = False
    """Nothing is cut: best where cutting has nothing to give, as on a single trial."""


@dataclass(frozen=True)
class _Flow:
    """In which order datasets go through GPUs and then through metrics."""

    trials: int
    metric_cpus: int
    feeds_metrics: bool

    def tail(self, cost: Cost) -> float:
        """What follows a dataset's GPU work at most: its longest item, its metric on all cores."""
        return cost.floor_seconds + cost.metric_cpu_seconds / self.metric_cpus

    def rank(self, cost: Cost) -> tuple[float, float, float, float]:
        """Sorts first what should begin first.

        Of equal tails the uncertain first, while there is time to make up for it.
        """
        density = self.density(cost.metric_cpu_seconds, cost.gpu_seconds)
        return (-density, -self.tail(cost), -cost.spread, -cost.gpu_seconds)

    def order(self, cost: Cost, part: Piece) -> tuple[float, float, float]:
        """Sorts one trial's shards by what follows their end (Jackson's rule).

        Where nothing does, or as much, the long and uncertain first: should they take longer, what
        is left then is certain, and others take it over.
        """
        own = seconds(cost, part.start, part.stop)
        metric = cost.metric_cpu_seconds * (part.stop - part.start) / cost.items
        follows = max(0.0, cost.floor_seconds - own) + metric / self.metric_cpus
        return (-self.density(metric, own), -follows, -cost.spread * own)

    def density(self, metric: float, own: float) -> float:
        """Seconds of metrics for one of GPUs, where that is more than one (Johnson's rule)."""
        density = (metric / self.metric_cpus) / (own / self.trials)
        return density if self.feeds_metrics and density > 1 else 0.0


class _Deal:
    """Queues as they fill, and how long each trial is taken."""

    def __init__(self, costs: Sequence[Cost], ready: Sequence[float]) -> None:
        self.costs = costs
        self.loads = list(ready)
        self.queues: list[list[Piece]] = [[] for _ in ready]

    def give(self, trial: int, part: Piece) -> None:
        self.queues[trial].append(part)
        self.loads[trial] += seconds(self.costs[part.cost], part.start, part.stop)


def seconds(cost: Cost, start: int, stop: int) -> float:
    """GPU seconds of a shard, as plan@1 defines them."""
    overhead = cost.chunk_overhead_seconds if start else 0.0
    return cost.gpu_seconds * (stop - start) / cost.items + overhead


def deal(
    costs: Sequence[Cost],
    parts: Sequence[Piece],
    ready: Sequence[float],
    metric_cpus: int,
    way: Way,
) -> list[list[Piece]]:
    """Each trial's queue; every item of the parts in exactly one of them.

    Args:
        costs: of whole datasets.
        parts: what is to be dealt.
        ready: seconds at which each trial can begin; one queue is made for each.
        metric_cpus: cores for all metrics together.
        way: see `Way`.
    """
    flow = _Flow(len(ready), metric_cpus, way.early_overhead > 0)
    window = max(sum(_own(costs[p.cost], p) for p in parts) / len(ready), 1e-9)
    ranked = sorted(parts, key=lambda p: flow.rank(costs[p.cost]))
    apart = [p for p in ranked if costs[p.cost].floor_seconds > way.apart * window]
    ranked = [p for p in ranked if costs[p.cost].floor_seconds <= way.apart * window]
    fine = [p for p in ranked if _is_fine(costs[p.cost], p, window, way)]
    coarse = [p for p in ranked if not _is_fine(costs[p.cost], p, window, way)]
    heavy = [p for p in fine if flow.rank(costs[p.cost])[0] < 0]
    state = _Deal(costs, ready)
    _deal_apart(state, apart)
    _pour_layers(state, heavy, way.early_overhead * window, EARLY_LAYERS)
    _deal_coarse(state, coarse, window, flow, way)
    rest = [p for p in fine if flow.rank(costs[p.cost])[0] == 0]
    _pour_layers(state, rest, OVERHEAD_SHARE * window, LAYERS)
    return [sorted(q, key=lambda p: flow.order(costs[p.cost], p)) for q in state.queues]


def deal_whole(costs: Sequence[Cost], parts: Sequence[Piece], trials: int) -> list[list[Piece]]:
    """Each trial's queue, nothing cut further: longest first, to the trials in turn."""
    ordered = sorted(parts, key=lambda p: -_own(costs[p.cost], p))
    return [ordered[number::trials] for number in range(trials)]


def _own(cost: Cost, part: Piece) -> float:
    """GPU seconds of a part without overhead."""
    return cost.gpu_seconds * (part.stop - part.start) / cost.items


def _is_fine(cost: Cost, part: Piece, window: float, way: Way) -> bool:
    """Whether a part can be cut anywhere: the rounding to whole items is lost in the window or
    beside a cut's overhead, and the part is long beside that overhead.
    """
    overhead = cost.chunk_overhead_seconds
    short = way.fine * window + overhead / 20
    each = cost.gpu_seconds / cost.items
    divisible = cost.splittable and not way.whole
    return divisible and each <= short and _own(cost, part) >= WORTH_CUTTING * overhead


def _deal_apart(state: _Deal, parts: list[Piece]) -> None:
    """As few pieces of each as end with its longest item, or as there are trials for: a piece
    begun behind another one ends that much later, however short it is.
    """
    if not parts:
        return
    costs = [state.costs[p.cost] for p in parts]
    own = [_own(cost, part) for cost, part in zip(costs, parts, strict=True)]

    def counts(level: float) -> list[int]:
        return [
            min(p.stop - p.start, math.ceil(work / max(level, c.floor_seconds)))
            if c.splittable
            else 1
            for c, p, work in zip(costs, parts, own, strict=True)
        ]

    low, high = 0.0, max(own)
    for _ in range(30 if sum(counts(low)) > len(state.loads) else 0):
        middle = (low + high) / 2
        low, high = (middle, high) if sum(counts(middle)) > len(state.loads) else (low, middle)
    level = high if low else 0.0
    pieces = [
        Piece(part.cost, start, stop)
        for part, count in zip(parts, counts(level), strict=True)
        for start, stop in itertools.pairwise(
            part.start + (part.stop - part.start) * n // count for n in range(count + 1)
        )
    ]
    _to_the_freest(state, sorted(pieces, key=lambda p: -state.costs[p.cost].floor_seconds))


def _deal_coarse(state: _Deal, parts: list[Piece], window: float, flow: _Flow, way: Way) -> None:
    """Longest first, pieces shrinking with what is left (guided self-scheduling)."""
    left = sum(_own(state.costs[p.cost], p) for p in parts)
    share = EARLY_LAYERS[0] if flow.feeds_metrics else LAYERS[0]
    pieces: list[tuple[float, Piece]] = []
    for part in parts:
        cost = state.costs[part.cost]
        start = part.start
        while start < part.stop:
            stop = part.stop
            if cost.splittable and not way.whole:
                each = cost.gpu_seconds / cost.items
                least = max(each, min(WORTH_CUTTING * cost.chunk_overhead_seconds, window / 6))
                size = max(least, min(left / (3 * len(state.loads)), window * share))
                stop = min(part.stop, start + max(1, int(size / each)))
            piece = Piece(part.cost, start, stop)
            own = _own(cost, piece)
            pieces.append((own + flow.tail(cost), piece))
            left -= own
            start = stop
    _to_the_freest(state, [piece for _, piece in sorted(pieces, key=lambda p: -p[0])])


def _to_the_freest(state: _Deal, pieces: Sequence[Piece]) -> None:
    """One after the other to the trial that is free first."""
    heap = [(load, trial) for trial, load in enumerate(state.loads)]
    heapq.heapify(heap)
    for piece in pieces:
        _, trial = heapq.heappop(heap)
        state.give(trial, piece)
        heapq.heappush(heap, (state.loads[trial], trial))


def _pour_layers(
    state: _Deal, parts: list[Piece], overhead: float, shares: tuple[float, ...]
) -> None:
    """The finely divisible work, layer on layer, spending so many seconds of a trial on cuts."""
    if not parts:
        return
    work = sum(_own(state.costs[p.cost], p) for p in parts)
    cut = sum(_own(c := state.costs[p.cost], p) * c.chunk_overhead_seconds for p in parts) / work
    most = int(min(len(shares), overhead / cut)) if cut else len(shares)
    for layer in _in_layers(state.costs, parts, _merged(shares, max(1, most))):
        _pour(state, layer)


def _merged(shares: tuple[float, ...], most: int) -> list[float]:
    """At most so many shares of the same sum, neighbours put together."""
    count = min(most, len(shares))
    edges = [round(i * len(shares) / count) for i in range(count + 1)]
    return [sum(shares[a:b]) for a, b in itertools.pairwise(edges)]


def _in_layers(
    costs: Sequence[Cost], parts: Sequence[Piece], shares: Sequence[float]
) -> Iterator[list[Piece]]:
    """The parts cut into consecutive layers of these shares of their work."""
    work = sum(_own(costs[p.cost], p) for p in parts)
    queue = list(reversed(parts))
    for number, share in enumerate(shares):
        room = work * share
        layer: list[Piece] = []
        while queue and (room > 0 or number == len(shares) - 1):
            part = queue.pop()
            each = costs[part.cost].gpu_seconds / costs[part.cost].items
            items = part.stop - part.start
            if number < len(shares) - 1 and items * each > room:
                items = max(1, int(room / each))
            layer.append(Piece(part.cost, part.start, part.start + items))
            room -= items * each
            if part.start + items < part.stop:
                queue.append(Piece(part.cost, part.start + items, part.stop))
                if number < len(shares) - 1:
                    break
        if layer:
            yield layer


def _pour(state: _Deal, parts: list[Piece]) -> None:
    """Fill the trials up to one level, cutting where a trial is full."""
    work = sum(_own(state.costs[p.cost], p) for p in parts)
    low = _level(state.loads, work)
    overhead = max(state.costs[p.cost].chunk_overhead_seconds for p in parts)
    each = max(state.costs[p.cost].gpu_seconds / state.costs[p.cost].items for p in parts)
    high = low + max(2 * (overhead + each), 1e-9 * low)
    while _poured(state, parts, high) is None:
        high += high - low
    best = high
    for _ in range(12):
        middle = (low + high) / 2
        if _poured(state, parts, middle) is None:
            low = middle
        else:
            best = high = middle
    poured = _poured(state, parts, best)
    assert poured is not None
    for trial, cost, start, stop in poured:
        state.give(trial, Piece(cost, start, stop))


def _level(loads: Sequence[float], work: float) -> float:
    """Up to where so much work fills these loads, if it were a liquid."""
    ordered = sorted(loads)
    below = 0.0
    for count, load in enumerate(ordered, start=1):
        below += load
        level = (work + below) / count
        if count == len(ordered) or level <= ordered[count]:
            return level
    return work


def _poured(
    state: _Deal, parts: Sequence[Piece], level: float
) -> list[tuple[int, int, int, int]] | None:
    """The wrap-around filling up to a level, as (trial, cost, start, stop); None where the work
    does not fit below it.

    This is where planning spends its time: it is done a dozen times a layer.
    """
    found: list[tuple[int, int, int, int]] = []
    pending = iter(parts)
    number, start, end = next(pending)
    cost = state.costs[number]
    each, overhead = cost.gpu_seconds / cost.items, cost.chunk_overhead_seconds
    for trial, load in enumerate(state.loads):
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
                break  # less than an item fits beside it
            found.append((trial, number, start, end))
            gap -= (end - start) * each
            following = next(pending, None)
            if following is None:
                return found
            number, start, end = following
            cost = state.costs[number]
            each, overhead = cost.gpu_seconds / cost.items, cost.chunk_overhead_seconds
    return None
