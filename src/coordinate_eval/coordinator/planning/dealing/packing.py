"""Packing: deal the shards of all datasets to the trials.

Work that cannot be cut finely (unsplittable datasets, datasets of long items, short datasets) is
dealt longest first, each piece to the trial that is free first (LPT; R. L. Graham, "Bounds on
Multiprocessing Timing Anomalies", 1969). All other work is poured over that in layers (`pouring`).
There are several layers because a trial that runs dry takes over whole shards of other trials, and
because metrics need their first responses early.

Datasets with a long item, a long metric, a judge or a long scoring behind them come first.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from coordinate_eval.coordinator.planning.dealing.pieces import (
    WORTH_CUTTING,
    Piece,
    Queues,
    cut,
    own_seconds,
    seconds,
)
from coordinate_eval.coordinator.planning.dealing.pouring import pour_layers
from coordinate_eval.coordinator.planning.plan import Cost

FINE = 0.004
"""Longest item of a dataset that is poured, as a share of a trial's time; see `_is_fine`."""

COARSE = 0.03
"""Length of a piece of any other dataset, as a share of a trial's time, if cuts cost little."""

FEW_CUTS = 20.0
"""Length of such a piece in multiples of the overhead of a cut, if that is more."""

LONG = 0.3
"""Longest item, as a share of a trial's time, above which a piece is as long as that item: it would
end no sooner if it were shorter, and its trial has to begin with it."""

COARSEST = 1 / 6
"""Longest piece, as a share of a trial's time, that is made for its overhead."""

LONG_SCORING = 0.1
"""Scoring, as a share of a trial's time, above which a dataset is dealt early."""

OVERHEAD_SHARE = 0.01
"""Share of a trial's time that the cuts of poured work may cost if all predictions are sure."""

EARLY_OVERHEAD_SHARE = 0.03
"""Share of a trial's time that cuts may cost in the datasets that are dealt early."""

OVERHEAD_PER_SPREAD = 0.06
"""Further share for each unit of the mean spread: trials share out small shards where predictions
are wrong."""


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
need their first responses soon, so work that is dealt early has the smallest layer first."""


@dataclass(frozen=True)
class _Flow:
    """The order in which datasets pass through GPUs and then through metrics."""

    trials: int
    metric_cpus: int
    cores_first: bool

    def tail(self, cost: Cost) -> float:
        """Return the seconds after a dataset's GPU work: longest item, metric, judge, scoring."""
        metric = cost.metric_cpu_seconds / self.metric_cpus
        return cost.floor_seconds + metric + cost.score_seconds + cost.judge_seconds

    def rank(self, cost: Cost) -> tuple[float, float, float, float]:
        """Return a sort key that puts first what should begin first.

        Among equal tails the uncertain come first, while there is time to make up for them.
        """
        density = self.density(cost.metric_cpu_seconds, cost.gpu_seconds)
        return (-density, -self.tail(cost), -cost.spread, -cost.gpu_seconds)

    def early(self, cost: Cost, window: float) -> bool:
        """Return whether a dataset comes before others for what follows it on cores."""
        long_scoring = cost.score_seconds > LONG_SCORING * window
        return self.cores_first and (self.rank(cost)[0] < 0 or long_scoring)

    def order(self, cost: Cost, piece: Piece) -> tuple[float, float, float]:
        """Return a sort key for one trial's shards: longest tail first (Jackson's rule).

        Among equal tails the long and uncertain come first. If they take longer than predicted,
        the rest is certain, and other trials take it over.
        """
        own = seconds(cost, piece)
        metric = cost.metric_cpu_seconds * (piece.stop - piece.start) / cost.items
        follows = max(0.0, cost.floor_seconds - own) + metric / self.metric_cpus
        follows += cost.score_seconds + cost.judge_seconds
        return (-self.density(metric, own), -follows, -cost.spread * own)

    def density(self, metric: float, own: float) -> float:
        """Return metric seconds per GPU second where that is above 1, else 0 (Johnson's rule)."""
        density = (metric / self.metric_cpus) / (own / self.trials)
        return density if self.cores_first and density > 1 else 0.0


def deal(
    costs: Sequence[Cost],
    pieces: Sequence[Piece],
    ready: Sequence[float],
    metric_cpus: int,
    *,
    cores_first: bool,
) -> list[list[Piece]]:
    """Return one queue per trial, with every item of the pieces in exactly one of them.

    Args:
        costs: Costs of whole datasets.
        pieces: The work to deal.
        ready: The second at which each trial can begin.
        metric_cpus: Cores for all metrics together.
        cores_first: Deal datasets with more metric work than GPU work or with a long scoring
            first, in small shards, so that cores start early.
    """
    window = max(sum(own_seconds(costs[p.cost], p) for p in pieces) / len(ready), 1e-9)
    flow = _Flow(len(ready), metric_cpus, cores_first)
    early: list[Piece] = []
    fine: list[Piece] = []
    coarse: list[Piece] = []
    for piece in sorted(pieces, key=lambda p: flow.rank(costs[p.cost])):
        cost = costs[piece.cost]
        if not _is_fine(cost, piece, window):
            coarse.append(piece)
        else:
            (early if flow.early(cost, window) else fine).append(piece)
    unsure = sum(costs[p.cost].spread * own_seconds(costs[p.cost], p) for p in pieces) / len(ready)
    insurance = OVERHEAD_PER_SPREAD * unsure
    queues = Queues(costs, ready)
    pour_layers(queues, early, EARLY_OVERHEAD_SHARE * window + insurance, LAYERS[::-1])
    if len(ready) > 1:  # a lone trial shares nothing
        coarse = [part for p in coarse for part in _coarse_parts(costs[p.cost], p, window)]
    coarse.sort(key=lambda p: -own_seconds(costs[p.cost], p) - flow.tail(costs[p.cost]))
    queues.give_to_the_freest(coarse)
    pour_layers(queues, fine, OVERHEAD_SHARE * window + insurance, LAYERS)
    return [sorted(q, key=lambda p: flow.order(costs[p.cost], p)) for q in queues.pieces]


def deal_round_robin(
    costs: Sequence[Cost], pieces: Sequence[Piece], trials: int
) -> list[list[Piece]]:
    """Return one queue per trial: pieces uncut, longest first, dealt to the trials in turn."""
    ordered = sorted(pieces, key=lambda p: -own_seconds(costs[p.cost], p))
    return [ordered[number::trials] for number in range(trials)]


def _coarse_parts(cost: Cost, piece: Piece, window: float) -> Iterator[Piece]:
    """Yield a piece of a dataset that is not poured in parts, as short as their cuts are worth."""
    few_cuts = min(FEW_CUTS * cost.chunk_overhead_seconds, COARSEST * window)
    item = cost.floor_seconds if cost.floor_seconds > LONG * window else 0.0
    yield from cut(cost, piece, max(COARSE * window, few_cuts, item))


def _is_fine(cost: Cost, piece: Piece, window: float) -> bool:
    """Return whether a piece can be cut anywhere.

    It can if an item is short compared with the window or the overhead of a cut, and if the piece
    is long compared with that overhead.
    """
    overhead = cost.chunk_overhead_seconds
    each = cost.gpu_seconds / cost.items
    short = each <= FINE * window + WORTH_CUTTING * overhead
    long = own_seconds(cost, piece) >= WORTH_CUTTING * overhead
    return cost.splittable and short and long and cost.floor_seconds <= LONG * window
