"""Signal to noise of scores over a training: which datasets tell anything at its scale.

The signal is the rise of the smoothed curve from the first checkpoint to the last. The noise is the
standard deviation of a checkpoint's score around the line through its two neighbours, to which no
smooth rise adds (T. Gasser, L. Sroka and C. Jennen-Steinmetz, "Residual Variance and Residual
Pattern in Nonlinear Regression", 1986). It has two parts: the sampling error of the items, which is
known, and that of checkpoints. The ratio is that of D. Heineman et al., "Signal and Noise: A
Framework for Reducing Uncertainty in Language Model Evaluation", 2025, with the checkpoints of one
training in place of many models.

All functions are pure.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from coordinate_eval.coordinator.history.curve import LEAST, curve_of
from coordinate_eval.coordinator.history.rows import Row
from coordinate_eval.coordinator.history.series import Column

_ROUNDING = 1e-12  # of a value, which is no noise


class Noise(NamedTuple):
    """What the series of a column tells. A number is None if it cannot be known."""

    rise: float
    """From the first checkpoint to the last; positive: it got better."""
    noise: float
    sampling: float | None
    """The part of the noise that is of the items: the root of the mean square of their errors."""
    ratio: float | None
    """Rise over noise; None without noise."""
    checkpoints: int


def noise_of(column: Column, rows: Sequence[Row]) -> Noise | None:
    """Return the signal and noise of a column over the checkpoints of one training.

    Checkpoints count that have a step and a finite value, the last of each step. Return None where
    they are too few.
    """
    last = {
        row.step: (row, value.value)
        for row, value in zip(rows, column.values(rows), strict=True)
        if row.step is not None and value is not None and math.isfinite(value.value)
    }
    known = [last[step][0] for step in sorted(last)]
    curve = curve_of(column, known)
    if len(known) < LEAST or curve is None:
        return None
    steps = [float(row.step or 0) for row in known]
    values = [last[step][1] for step in sorted(last)]
    sign = 1 if known[-1].score(column.datasets[0]).higher_is_better else -1
    rise = sign * (curve.level[-1] - curve.level[0])
    noise = deviation(steps, values)
    errors = [column.error(row) for row in known]
    sampling = math.sqrt(sum(error**2 for error in errors) / len(errors)) if all(errors) else None
    return Noise(rise, noise, sampling, rise / noise if noise else None, len(known))


def deviation(steps: Sequence[float], values: Sequence[float]) -> float:
    """Return the standard deviation of values around a smooth curve, whatever that curve is."""
    x, y = np.asarray(steps), np.asarray(values)
    before = (x[2:] - x[1:-1]) / (x[2:] - x[:-2])
    after = 1 - before
    beside = before * y[:-2] + after * y[2:] - y[1:-1]
    found = math.sqrt(float(np.mean(beside**2 / (before**2 + after**2 + 1))))
    return found if found > _ROUNDING * float(np.abs(y).max()) else 0.0
