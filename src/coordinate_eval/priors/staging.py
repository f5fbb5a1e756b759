"""The rate at which weights reach the memory of nodes, learned from observed copies.

The seconds per byte are in part the node's own, and in part those in which its threads wait for the
storage. The first part does not depend on the number of nodes; the second grows with it if all
nodes share one link:

    seconds per byte on each of n nodes = alone × (1 + shared × (n − 1))

`shared` is 0 for a storage that keeps up with any number of nodes, and 1 for a storage whose link
one node fills. The formula assumes equal nodes that start together, as plans do. Reads by other
runs and users are part of the observed seconds. `shared` stays 0 until copies were made on
different numbers of nodes.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

from coordinate_eval.priors.observations import StageSeen

GUESS_WEIGHT = 0.05
"""Weight of the configured link, in copies."""

SHARED_PRICE = 0.05
"""Factor of the penalty on `shared`² in the sum of squared log residuals."""

LEAST_GIGABITS, MOST_GIGABITS = 1e-4, 1e5
"""Limits of a link, in 10⁹ bits per second."""

_STEPS = 100


class Link(NamedTuple):
    """The rate at which a node copies alone, and how other nodes slow it down."""

    gigabits_per_node: float
    """Per second, on a node that copies alone."""
    shared: float = 0.0
    """Share of a lone copy's time that is multiplied by the number of nodes."""

    def seconds(self, size: int, nodes: int) -> float:
        """Return the seconds in which `nodes` nodes at once copy `size` bytes each."""
        return size * 8 / (self.gigabits_per_node * 1e9) * (1 + self.shared * (nodes - 1))


def fit(seen: Sequence[StageSeen], weights: Sequence[float], gigabits: float) -> Link:
    """Fit a link to weighted copies; it is near `gigabits` where their weights are small.

    The fit is by least squares of log seconds, so a copy that took ten times as long because of
    another user does not count ten times as much.
    """
    if not seen:
        return Link(gigabits)
    rows = [
        (weight, math.log(one.seconds / one.bytes), one.at_once)
        for one, weight in zip(seen, weights, strict=True)
    ]
    total = sum(weights)

    def squares(shared: float) -> float:
        logs = [(w, log - math.log1p(shared * (n - 1))) for w, log, n in rows]
        mean = sum(w * log for w, log in logs) / total
        return sum(w * (log - mean) ** 2 for w, log in logs) + SHARED_PRICE * shared**2

    shared = min((step / _STEPS for step in range(_STEPS + 1)), key=squares)
    guess = math.log(8 / (gigabits * 1e9))
    logs = sum(w * (log - math.log1p(shared * (n - 1))) for w, log, n in rows)
    alone = math.exp((logs + GUESS_WEIGHT * guess) / (total + GUESS_WEIGHT))
    learned = min(max(8 / (alone * 1e9), LEAST_GIGABITS), MOST_GIGABITS)
    return Link(learned, shared)
