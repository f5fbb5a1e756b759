"""From observations to coefficients: how fast an engine really is on a type of GPU.

Relative least squares: the coefficients, none below 0, for which the sum of squares of
predicted / measured − 1 is least, so that a dataset of seconds counts as much as one of an hour.
They are drawn to the shipped roofline's, first scaled as a whole to what was measured: what few
observations cannot tell apart, such as the cost of a step from that of its weights, stays as the
roofline has it. The sum is convex and has six unknowns; going down along one coordinate after
the other finds its least point (the non-negative least squares of Franc, Hlaváč & Navara,
"Sequential Coordinate-Wise Algorithm for the Non-negative Least Squares Problem", 2005).
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

from coordinate_eval.priors import gpus, roofline
from coordinate_eval.priors.observations import DatasetSeen
from coordinate_eval.priors.roofline import Conditions, Features

SCALE_WEIGHT = 0.2
"""Observations that the roofline's own scale is worth."""

SHAPE_WEIGHT = 0.01
"""Observations that the roofline's shape is worth, in each coefficient."""

SHIPPED_SPREAD = 0.5
"""Standard deviation of log seconds, measured over predicted, of the roofline where nothing was
run: seven datasets in ten take 0.6 to 1.65 times what it says."""

UNKNOWN_SPREAD = 0.7
"""The same where the GPU type is not in the table either."""

_UNITS = roofline.SHIPPED._replace(steps=1e-3, output_tokens=1e-5)
"""What a coefficient may plausibly be: the shipped ones, a millisecond a step, 10 µs a token."""

_SWEEPS = 2000
_CONVERGED = 1e-9


class Fit(NamedTuple):
    """Coefficients, what they rest on, and how well they do."""

    coefficients: Features
    observations: int
    spread: float
    """Standard deviation of log seconds, measured over predicted."""


def features(seen: DatasetSeen) -> Features:
    """What of an observation cost time."""
    on = seen.conditions
    return roofline.features(seen.work(), on.model, gpus.lookup(on.gpu), on.sequences)


def shipped(gpu: str) -> Fit:
    """The roofline, for a type of GPU on which nothing was run."""
    return Fit(roofline.SHIPPED, 0, SHIPPED_SPREAD if gpus.known(gpu) else UNKNOWN_SPREAD)


def of_conditions(conditions: Conditions) -> tuple[str, str]:
    """What a fit is for: an engine on a type of GPU."""
    return conditions.engine, gpus.name(conditions.gpu)


def fit(seen: Sequence[DatasetSeen], weights: Sequence[float]) -> Fit:
    """Coefficients for observations of one engine on one type of GPU, each so much worth."""
    asked = [features(one) for one in seen]
    pairs = list(zip(asked, (one.gpu_seconds for one in seen), weights, strict=True))
    logs = sum(w * math.log(s / f.seconds(roofline.SHIPPED)) for f, s, w in pairs)
    scale = math.exp(logs / (sum(weights) + SCALE_WEIGHT))
    units = [unit * scale for unit in _UNITS]
    rows = [
        (w, [unit * part / s for unit, part in zip(units, f, strict=True)]) for f, s, w in pairs
    ]
    start = [ours / unit for ours, unit in zip(roofline.SHIPPED, _UNITS, strict=True)]
    found = _least(rows, start)
    coefficients = Features(*(u * unit for u, unit in zip(found, units, strict=True)))
    squares = sum(w * math.log(s / _positive(f, coefficients)) ** 2 for f, s, w in pairs)
    # One more, of the roofline's own: a single observation that fits proves little.
    spread = math.sqrt((squares + SHIPPED_SPREAD**2) / (sum(weights) + 1))
    return Fit(coefficients, len(seen), spread)


def residual(seen: DatasetSeen, found: Fit) -> float:
    """Log of measured over fitted seconds."""
    return math.log(seen.gpu_seconds / _positive(features(seen), found.coefficients))


def _positive(asked: Features, coefficients: Features) -> float:
    return max(1e-6, asked.seconds(coefficients))


def _least(rows: Sequence[tuple[float, list[float]]], start: list[float]) -> list[float]:
    """The u ≥ 0 with the least Σ weight × (row · u − 1)² + SHAPE_WEIGHT × |u − start|²."""
    size = range(len(start))
    gram = [[sum(w * row[i] * row[j] for w, row in rows) for j in size] for i in size]
    target = [sum(w * row[i] for w, row in rows) + SHAPE_WEIGHT * start[i] for i in size]
    for i in size:
        gram[i][i] += SHAPE_WEIGHT
    u = list(start)
    for _ in range(_SWEEPS):
        moved = 0.0
        for i in size:
            rest = sum(gram[i][j] * u[j] for j in size if j != i)
            new = max(0.0, (target[i] - rest) / gram[i][i])
            moved, u[i] = max(moved, abs(new - u[i])), new
        if moved < _CONVERGED:
            break
    return u
