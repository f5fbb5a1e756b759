"""Decide, while a run goes on, whether its mean differs from another run's.

Looking often costs nothing: together, all looks call equally good checkpoints different in 5 % of
the cases. Each look may spend a part of these 5 %, which depends on the share of the information
that is there (K. K. G. Lan and D. L. DeMets, "Discrete sequential boundaries for clinical trials",
1983), by the function that is like the bounds of O'Brien and Fleming. The mean over datasets, each
with as many items as it has by now, has independent increments in its information, which the bounds
need: the running mean of each dataset has them (C. Jennison and B. W. Turnbull, "Group Sequential
Methods with Applications to Clinical Trials", 2000, chapter 11).

A look ends in "no difference" if the items that are left would hardly change that: the predictive
probability that the fixed test on all items finds a difference is below `FUTILE` (D. J.
Spiegelhalter, L. S. Freedman and P. R. Blackburn, "Monitoring clinical trials: conditional or
predictive power?", 1986). This can only make false alarms rarer.
"""

import math
from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np

from coordinate_eval.coordinator.comparison.paired import CONFIDENCE, Floats

FUTILE = 0.05
"""Probability that all items would show a difference, below which none is looked for any more."""

LEAST_STEP = 1e-3
"""Least share of the information that a look adds: less is counted as so much."""

_GRID = 401
"""Points on which the distribution between two bounds is known."""

_MOST = 8.0
"""Largest bound, in standard errors."""

Decision = Literal["different", "no difference", ""]


class Look(NamedTuple):
    """The outcome of a look."""

    decision: Decision
    """Empty where further items are needed."""
    bound: float
    """Standard errors that the difference has to exceed."""
    likely: float
    """Probability that the fixed test on all items finds a difference, from what is known now."""


def look(value: float, stderr: float, z: float, information: Sequence[float]) -> Look:
    """Return what a look at a difference decides.

    Args:
        value: the difference.
        stderr: its standard error.
        z: the difference in standard errors, as its test tells it, without a sign.
        information: the share of the information at each look so far, this one last. It is the
            variance of the difference that is expected with all items, over that of now.
    """
    share = min(1.0, information[-1])
    bound = bounds(information)[-1]
    likely = _likely(value, stderr, share) if share < 1 else float(z >= bound)
    if z >= bound:
        return Look("different", bound, likely)
    return Look("no difference" if share >= 1 or likely < FUTILE else "", bound, likely)


def deviations(p: float) -> float:
    """Return the standard errors that a difference with this two-sided p-value has."""
    from scipy.special import ndtri

    return float(-ndtri(p / 2)) if p > 0 else math.inf


def _likely(value: float, stderr: float, share: float) -> float:
    """Return the predictive probability of a difference by the fixed test on all items."""
    from scipy.special import ndtr, ndtri

    least = ndtri((1 + CONFIDENCE) / 2) * stderr * math.sqrt(share)
    spread = stderr * math.sqrt(1 - share)
    if not spread:
        return float(abs(value) > least)
    return float(ndtr((value - least) / spread) + ndtr((-value - least) / spread))


def spent(share: float) -> float:
    """Return the probability of a false alarm, to either side, up to a share of the information."""
    from scipy.special import ndtr, ndtri

    edge = ndtri(1 - (1 - CONFIDENCE) / 4)
    return float(4 * ndtr(-edge / math.sqrt(min(1.0, share))))


class _Walk(NamedTuple):
    """The distribution of the score, which is z times the root of the information, while no bound
    is crossed.
    """

    points: Floats
    weights: Floats
    """The probability at each point."""

    def beyond(self, edge: float, step: float) -> float:
        """Return the probability that the next step, of this deviation, crosses an edge."""
        from scipy.special import ndtr

        out = ndtr((self.points - edge) / step) + ndtr((-self.points - edge) / step)
        return float(self.weights @ out)

    def within(self, edge: float, step: float) -> "_Walk":
        """Return the distribution after a step that crosses no edge."""
        grid = np.linspace(-edge, edge, _GRID)
        spacing = np.full(_GRID, grid[1] - grid[0])
        spacing[[0, -1]] /= 2
        kernel = np.exp(-(((grid[:, None] - self.points) / step) ** 2) / 2)
        return _Walk(grid, spacing * (kernel @ self.weights) / (step * math.sqrt(2 * math.pi)))


def bounds(information: Sequence[float]) -> list[float]:
    """Return the bound of each look, in standard errors, given the information at each of them.

    The recursion is that of P. Armitage, C. K. McPherson and B. C. Rowe, "Repeated significance
    tests on accumulating data", 1969.
    """
    from scipy.optimize import brentq

    found: list[float] = []
    walk, before, used = _Walk(np.zeros(1), np.ones(1)), 0.0, 0.0
    for share in information:
        now = max(share, before + LEAST_STEP)
        step, root, left = math.sqrt(now - before), math.sqrt(now), spent(now) - used

        def too_many(
            bound: float,
            walk: _Walk = walk,
            step: float = step,
            root: float = root,
            left: float = left,
        ) -> float:
            return walk.beyond(bound * root, step) - left

        most = too_many(_MOST) >= 0
        found.append(_MOST if most else float(brentq(too_many, 0.0, _MOST)))
        walk, before, used = walk.within(found[-1] * root, step), now, spent(now)
    return found
