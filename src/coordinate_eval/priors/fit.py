"""The fit of the roofline's coefficients to observations of an engine on a type of GPU.

The fit is by relative least squares: it minimizes the sum of squares of predicted / measured − 1
over non-negative coefficients, so a dataset of seconds counts as much as one of an hour. The
coefficients are drawn to those of the shipped roofline, which are first scaled together to the
measured seconds. So coefficients that few observations cannot tell apart, such as the cost of a
step and of its weights, keep the roofline's ratio. The sum is convex and has six unknowns;
coordinate descent finds its minimum (Franc, Hlaváč & Navara, "Sequential Coordinate-Wise Algorithm
for the Non-negative Least Squares Problem", 2005).
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

from coordinate_eval.priors import gpus, roofline
from coordinate_eval.priors.observations import DatasetSeen
from coordinate_eval.priors.roofline import Conditions, Features

SCALE_WEIGHT = 0.2
"""Weight of the roofline's own scale, in observations."""

SHAPE_WEIGHT = 0.01
"""Weight of the roofline's shape in each coefficient, in observations."""

SHIPPED_SPREAD = 0.5
"""Standard deviation of the log of measured over predicted seconds before any run: seven datasets
in ten take 0.6 to 1.65 times the roofline."""

UNKNOWN_SPREAD = 0.7
"""Standard deviation before any run on a GPU type that is not in the table."""

_UNITS = roofline.SHIPPED._replace(steps=1e-3, output_tokens=1e-5)
"""Plausible sizes of the coefficients: the shipped ones, 1 ms per step, 10 µs per token."""

_SWEEPS = 2000
_CONVERGED = 1e-9


class Fit(NamedTuple):
    """Coefficients, the number of observations behind them, and their spread."""

    coefficients: Features
    observations: int
    spread: float
    """Standard deviation of the log of measured over fitted seconds."""


def features(seen: DatasetSeen) -> Features:
    """Return the features of an observation."""
    on = seen.conditions
    return roofline.features(seen.work(), on.model, gpus.lookup(on.gpu), on.sequences)


def shipped(gpu: str) -> Fit:
    """Return the roofline, for a type of GPU without observations."""
    return Fit(roofline.SHIPPED, 0, SHIPPED_SPREAD if gpus.known(gpu) else UNKNOWN_SPREAD)


def of_conditions(conditions: Conditions) -> tuple[str, str]:
    """Return the engine and type of GPU, which have one fit."""
    return conditions.engine, gpus.name(conditions.gpu)


def fit(seen: Sequence[DatasetSeen], weights: Sequence[float]) -> Fit:
    """Fit coefficients to weighted observations of one engine on one type of GPU."""
    found = [features(one) for one in seen]
    pairs = list(zip(found, (one.gpu_seconds for one in seen), weights, strict=True))
    logs = sum(w * math.log(s / f.seconds(roofline.SHIPPED)) for f, s, w in pairs)
    scale = math.exp(logs / (sum(weights) + SCALE_WEIGHT))
    units = [unit * scale for unit in _UNITS]
    rows = [
        (w, [unit * part / s for unit, part in zip(units, f, strict=True)]) for f, s, w in pairs
    ]
    start = [ours / unit for ours, unit in zip(roofline.SHIPPED, _UNITS, strict=True)]
    solution = _least(rows, start)
    coefficients = Features(*(u * unit for u, unit in zip(solution, units, strict=True)))
    squares = sum(w * math.log(s / _positive(f, coefficients)) ** 2 for f, s, w in pairs)
    # Add the roofline as one observation: a single one that fits proves little.
    spread = math.sqrt((squares + SHIPPED_SPREAD**2) / (sum(weights) + 1))
    return Fit(coefficients, len(seen), spread)


def residual(seen: DatasetSeen, found: Fit) -> float:
    """Return the log of measured over fitted seconds."""
    return math.log(seen.gpu_seconds / _positive(features(seen), found.coefficients))


def _positive(found: Features, coefficients: Features) -> float:
    return max(1e-6, found.seconds(coefficients))


def _least(rows: Sequence[tuple[float, list[float]]], start: list[float]) -> list[float]:
    """Return u ≥ 0 that minimizes Σ weight × (row · u − 1)² + SHAPE_WEIGHT × |u − start|²."""
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
