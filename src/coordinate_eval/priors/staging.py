"""How fast weights reach the memory of nodes, from copies that were seen.

A copy reads a piece, then hashes and writes it, so the seconds of a byte are those of the node
itself and those in which it waits for the storage, added. The first are the same however many
nodes copy; the others are multiplied by their number where all of them share one link:

    seconds of a byte on each of n nodes = alone × (1 + shared × (n − 1))

`shared` = 0 is a storage that keeps up with any number of nodes, 1 one whose link a single node
fills. Assumed are nodes alike that begin together, as the plan has them; what other runs and users
read meanwhile is part of what was seen. Nothing says how a storage does with more nodes but copies
by several numbers of them: until there are, `shared` is 0.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

from coordinate_eval.priors.observations import StageSeen

GUESS_WEIGHT = 0.05
"""Copies that the configured link counts as."""

SHARED_PRICE = 0.05
"""By how much a `shared` of 1 must make the sum of squared log residuals smaller; of ½, ¼ of it."""

LEAST_GIGABITS, MOST_GIGABITS = 1e-4, 1e5
"""Per second: no link is slower or faster."""

_STEPS = 100


class Link(NamedTuple):
    """What a node reads at when it is alone, and what becomes of that with others."""

    gigabits_per_node: float
    """Per second, on a node that copies alone."""
    shared: float = 0.0
    """Part of a lone copy's time that is multiplied by the number of nodes."""

    def seconds(self, size: int, nodes: int) -> float:
        """Seconds until so many bytes are on each of so many nodes, which copy at once."""
        return size * 8 / (self.gigabits_per_node * 1e9) * (1 + self.shared * (nodes - 1))


def fit(seen: Sequence[StageSeen], weights: Sequence[float], gigabits: float) -> Link:
    """The link that these copies had, each so much worth; near `gigabits` where they count little.

    Least squares of the logarithm of seconds, so that a copy that took ten times as long, behind
    somebody else's, does not count for ten.
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
