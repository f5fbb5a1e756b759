"""Packing: deal the shards of all datasets to the trials.

Work that cannot be cut finely (unsplittable datasets, datasets of long items, short datasets) is
dealt longest first, each piece to the trial that is free first (LPT; R. L. Graham, "Bounds on
Multiprocessing Timing Anomalies", 1969). All other work is poured over that in layers (`pouring`).
There are several layers because a trial that runs dry takes over whole shards of other trials, and
because metrics need their first responses early.

Datasets with a long item, a long metric, a judge or a long scoring behind them come first.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, auto

from coordinate_eval.coordinator.planning.dealing.pieces import (
    WORTH_CUTTING,
    Piece,
    Queues,
    in_parts,
    own_seconds,
    seconds,
)
from coordinate_eval.coordinator.planning.dealing.pouring import pour_layers
from coordinate_eval.coordinator.planning.plan import Cost

FINE = 0.004
"""Longest item of a dataset that is poured, as a share of a trial's time; see `_is_fine`."""

LONG = 0.3
"""Longest item, as a share of a trial's time, above which `Way.APART` keeps a dataset apart."""

LONG_SCORING = 0.1
"""Scoring, as a share of a trial's time, above which `Way.EARLY` deals a dataset first."""

ALIKE = 0.0025
"""Difference of two tails, as a share of a trial's time, that is not worth an order: what is longer
or less certain matters more."""

OVERHEAD_SHARE = 0.01
"""Share of a trial's time that the cuts of poured work may cost if all predictions are sure."""

EARLY_OVERHEAD_SHARE = 0.03
"""Share of a trial's time that cuts may cost in the datasets that `Way.EARLY` deals first."""

OVERHEAD_PER_SPREAD = 0.06
"""Further share for each unit of the mean spread: trials share out small shards where predictions
are wrong."""

COARSE = 20.0
"""Least length of a piece of a dataset that is not poured, in multiples of the same overhead."""


def _layers(share: float, least: float) -> tuple[float, ...]:
    """Return layers of `share` of the work that is left, and of `least` of all work at least."""
    layers = []
    left = 1.0
    while left >= 2 * least:
        layers.append(max(least, share * left))
        left -= layers[-1]
    return (*layers, left)


LAYERS = _layers(0.1, 0.02)
"""Shares of the poured work, shrinking as in guided self-scheduling (Polychronopoulos and Kuck,
1987): where predictions are wrong, the trials share out the small shards at the end anew. Metrics
need their first responses soon, so `Way.EARLY` pours the smallest layer first."""


class Way(Enum):
    """A way to deal datasets. `planner` tries several and keeps the best."""

    POUR = auto()
    """Pour what can be cut finely over what cannot."""
    APART = auto()
    """Deal datasets with very long items first. A trial begins with one piece of one of these at
    most, and no piece ends before its longest item."""
    EARLY = auto()
    """Deal datasets with more metric work than GPU work or with a long scoring first, in small
    shards, so that cores start early."""
    WHOLE = auto()
    """Cut nothing: best where cutting has nothing to give, as on a single trial."""


@dataclass(frozen=True)
class _Flow:
    """The order in which datasets pass through GPUs and then through metrics."""

    trials: int
    metric_cpus: int
    feeds_metrics: bool
    alike: float
    """Seconds by which tails differ that count as equal."""

    def tail(self, cost: Cost) -> float:
        """Return the seconds after a dataset's GPU work: longest item, metric, judge, scoring."""
        metric = cost.metric_cpu_seconds / self.metric_cpus
        return cost.floor_seconds + metric + cost.score_seconds + cost.judge_seconds

    def rank(self, cost: Cost) -> tuple[float, float, float, float]:
        """Return a sort key that puts first what should begin first.

        Among equal tails the uncertain come first, while there is time to make up for them.
        """
        density = self.density(cost.metric_cpu_seconds, cost.gpu_seconds)
        return (-density, -(self.tail(cost) // self.alike), -cost.spread, -cost.gpu_seconds)

    def hurries(self, cost: Cost, window: float) -> bool:
        """Return whether a dataset comes before others for what follows it on cores."""
        long_scoring = cost.score_seconds > LONG_SCORING * window
        return self.feeds_metrics and (self.rank(cost)[0] < 0 or long_scoring)

    def order(self, cost: Cost, piece: Piece) -> tuple[float, float, float]:
        """Return a sort key for one trial's shards: longest tail first (Jackson's rule).

        Among equal tails the long and uncertain come first. If they take longer than predicted,
        the rest is certain, and other trials take it over.
        """
        own = seconds(cost, piece)
        metric = cost.metric_cpu_seconds * (piece.stop - piece.start) / cost.items
        follows = max(0.0, cost.floor_seconds - own) + metric / self.metric_cpus
        follows += cost.score_seconds + cost.judge_seconds
        return (-self.density(metric, own), -(follows // self.alike), -cost.spread * own)

    def density(self, metric: float, own: float) -> float:
        """Return metric seconds per GPU second where that is above 1, else 0 (Johnson's rule)."""
        density = (metric / self.metric_cpus) / (own / self.trials)
        return density if self.feeds_metrics and density > 1 else 0.0


def deal(
    costs: Sequence[Cost],
    pieces: Sequence[Piece],
    ready: Sequence[float],
    metric_cpus: int,
    way: Way,
) -> list[list[Piece]]:
    """Return one queue per trial, with every item of the pieces in exactly one of them.

    Args:
        costs: Costs of whole datasets.
        pieces: The work to deal.
        ready: The second at which each trial can begin.
        metric_cpus: Cores for all metrics together.
        way: The way to deal.
    """
    window = max(sum(own_seconds(costs[p.cost], p) for p in pieces) / len(ready), 1e-9)
    flow = _Flow(len(ready), metric_cpus, way is Way.EARLY, ALIKE * window)
    longest = LONG * window if way is Way.APART else math.inf
    apart: list[Piece] = []
    dense: list[Piece] = []
    fine: list[Piece] = []
    coarse: list[Piece] = []
    for piece in sorted(pieces, key=lambda p: flow.rank(costs[p.cost])):
        cost = costs[piece.cost]
        if cost.floor_seconds > longest:
            apart.append(piece)
        elif way is Way.WHOLE or not _is_fine(cost, piece, window):
            coarse.append(piece)
        elif flow.hurries(cost, window):
            dense.append(piece)
        else:
            fine.append(piece)
    unsure = sum(costs[p.cost].spread * own_seconds(costs[p.cost], p) for p in pieces) / len(ready)
    insurance = OVERHEAD_PER_SPREAD * unsure
    queues = Queues(costs, ready)
    _deal_apart(queues, apart)
    pour_layers(queues, dense, EARLY_OVERHEAD_SHARE * window + insurance, LAYERS[::-1])
    _deal_coarse(queues, coarse, window, flow, cut=way is not Way.WHOLE)
    pour_layers(queues, fine, OVERHEAD_SHARE * window + insurance, LAYERS)
    return [sorted(q, key=lambda p: flow.order(costs[p.cost], p)) for q in queues.pieces]


def trials_apart(costs: Sequence[Cost], trials: int) -> int:
    """Return how many trials `Way.APART` begins with datasets of very long items, if it has them.

    Each is as long as its longest item there, so that its trial must begin with it.
    """
    longest = LONG * sum(c.gpu_seconds for c in costs) / trials
    return sum(
        math.ceil(c.gpu_seconds / c.floor_seconds) if c.splittable else 1
        for c in costs
        if c.floor_seconds > longest
    )


def deal_round_robin(
    costs: Sequence[Cost], pieces: Sequence[Piece], trials: int
) -> list[list[Piece]]:
    """Return one queue per trial: pieces uncut, longest first, dealt to the trials in turn."""
    ordered = sorted(pieces, key=lambda p: -own_seconds(costs[p.cost], p))
    return [ordered[number::trials] for number in range(trials)]


def _is_fine(cost: Cost, piece: Piece, window: float) -> bool:
    """Return whether a piece can be cut anywhere.

    It can if an item is short compared with the window or the overhead of a cut, and if the piece
    is long compared with that overhead.
    """
    overhead = cost.chunk_overhead_seconds
    each = cost.gpu_seconds / cost.items
    short = each <= FINE * window + WORTH_CUTTING * overhead
    return cost.splittable and short and own_seconds(cost, piece) >= WORTH_CUTTING * overhead


def _deal_apart(queues: Queues, pieces: list[Piece]) -> None:
    """Cut each piece into the fewest that end no later than its longest item, one per trial.

    Where trials are too few for that, the cuts are longer: a piece begun behind another one ends
    that much later, however short it is.
    """
    if not pieces:
        return
    costs = [queues.costs[p.cost] for p in pieces]
    own = [own_seconds(cost, piece) for cost, piece in zip(costs, pieces, strict=True)]

    def counts(level: float) -> list[int]:
        return [
            min(p.stop - p.start, math.ceil(work / max(level, c.floor_seconds)))
            if c.splittable
            else 1
            for c, p, work in zip(costs, pieces, own, strict=True)
        ]

    low, high = 0.0, max(own)
    for _ in range(30 if sum(counts(low)) > len(queues.loads) else 0):
        middle = (low + high) / 2
        low, high = (middle, high) if sum(counts(middle)) > len(queues.loads) else (low, middle)
    level = high if low else 0.0
    parts = [
        part
        for piece, count in zip(pieces, counts(level), strict=True)
        for part in in_parts(piece, count)
    ]
    queues.give_to_the_freest(sorted(parts, key=lambda p: -queues.costs[p.cost].floor_seconds))


def _deal_coarse(
    queues: Queues, pieces: list[Piece], window: float, flow: _Flow, *, cut: bool
) -> None:
    """Deal longest first; cuts shrink with the work that is left (guided self-scheduling)."""
    left = queues.work(pieces)
    share = LAYERS[-1] if flow.feeds_metrics else LAYERS[0]
    found: list[tuple[float, Piece]] = []
    for piece in pieces:
        cost = queues.costs[piece.cost]
        start = piece.start
        while start < piece.stop:
            stop = piece.stop
            if cost.splittable and cut:
                each = cost.gpu_seconds / cost.items
                least = max(each, min(COARSE * cost.chunk_overhead_seconds, window / 6))
                size = max(least, min(left / (3 * len(queues.loads)), window * share))
                stop = min(piece.stop, start + max(1, int(size / each)))
            part = Piece(piece.cost, start, stop)
            own = own_seconds(cost, part)
            found.append((own + flow.tail(cost), part))
            left -= own
            start = stop
    queues.give_to_the_freest([part for _, part in sorted(found, key=lambda f: -f[0])])
