"""A smooth curve through the scores of a training, and how much of it is certain.

The model is a local linear trend: a level, and a slope that wanders with the steps. A score is the
level, plus the noise of its items, which is known, plus the noise of its checkpoint, which is not.
How far the slope wanders and how large that noise is are not guessed: each pair on a grid is
tried and counts by its likelihood (J. Durbin and S. J. Koopman, "Time Series Analysis by State
Space Methods", 2012). A change point is a jump of the level that is far likelier than none, and a
score that is far likelier alone does not bend the curve (P. de Jong and J. Penzer, "Diagnosing
Shocks in Time Series", 1998).

Which datasets tell anything at the scale of a training is a matter of signal and noise. The signal
is the rise of the curve from the first checkpoint to the last. The noise is the standard deviation
of a checkpoint's score around the line through its two neighbours, to which no smooth rise adds (T.
Gasser, L. Sroka and C. Jennen-Steinmetz, "Residual Variance and Residual Pattern in Nonlinear
Regression", 1986). It has two parts: the sampling error of the items, which is known, and that of
checkpoints. The ratio is that of D. Heineman et al., "Signal and Noise: A Framework for Reducing
Uncertainty in Language Model Evaluation", 2025, with the checkpoints of one training in place of
many models.

All functions are pure.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from coordinate_eval.coordinator.history.rows import Row
from coordinate_eval.coordinator.history.series import Column

LEAST = 4
"""Fewest scores that have a curve."""

SLOPE_STEPS = 1000
"""Steps of which a slope is told in words."""

_SURE = 1.96  # standard errors of a 95 % interval
_FALSE_RATE = 0.01  # of curves without a change point that show one, about
_MOST_SHOCKS = 10
_ROUNDING = 1e-12  # of a value, which is no noise
_BESIDE = 2  # fewest scores before and after a change point
_VAGUE = 1e4  # variance of what nothing is known about; a curve's is about 1
_WANDERING = np.concatenate([[0.0], np.logspace(-2, 6, 15)])
"""Variances of the slope's walk from the first score to the last."""
_NOISES = np.concatenate([[0.0], np.logspace(-2, 0, 7)]) ** 2
"""Variances of the noise of checkpoints."""

Floats = npt.NDArray[np.float64]


class Point(NamedTuple):
    """A score of a checkpoint."""

    step: float
    value: float
    stderr: float
    """From its items; 0 if it is not known."""


class Change(NamedTuple):
    """A jump of the level, with the 95 % interval of its size."""

    step: float
    """The first checkpoint after it."""
    size: float
    low: float
    high: float

    def __str__(self) -> str:
        """Return it in words."""
        size = plus_minus(self.size, self.low, self.high, signed=True)
        return f"{size} at step {self.step:,.0f}"


class Curve(NamedTuple):
    """The level at each score, its 95 % band, and where it goes."""

    steps: Sequence[float]
    level: Sequence[float]
    low: Sequence[float]
    high: Sequence[float]
    slope: float
    """Change of the level a step, at the last score."""
    slope_low: float
    slope_high: float
    changes: Sequence[Change]
    alone: Sequence[float]
    """Steps of the scores that lie far from the curve and count for nothing in it."""

    @property
    def now(self) -> str:
        """Return the level at the last score, in words."""
        return plus_minus(self.level[-1], self.low[-1], self.high[-1])

    @property
    def goes(self) -> str:
        """Return the slope at the last score, in words."""
        each = (SLOPE_STEPS * x for x in (self.slope, self.slope_low, self.slope_high))
        return plus_minus(*each, signed=True)

    @property
    def jumps(self) -> list[str]:
        """Return its change points and what stands alone, in words."""
        alone = [f"step {step:,.0f} stands alone" for step in self.alone]
        return [*map(str, self.changes), *alone]


def plus_minus(value: float, low: float, high: float, *, signed: bool = False) -> str:
    """Return a value with half the width of its interval, both to two digits of the latter."""
    half = (high - low) / 2
    digits = 4 if half <= 0 else min(9, max(0, 1 - math.floor(math.log10(half))))
    return f"{value:{'+' if signed else '-'}z.{digits}f} ±{half:.{digits}f}"


def curve_of(column: Column, rows: Sequence[Row]) -> Curve | None:
    """Return the curve of a column over the checkpoints of one training that have a step."""
    points, share = [], True
    for row, value in zip(rows, column.values(rows), strict=True):
        if value is None or row.step is None:
            continue
        scores = [row.score(name) for name in column.datasets]
        share &= all(each.higher_is_better and 0 <= each.value <= 1 for each in scores)
        points.append(Point(row.step, value.value, column.error(row)))
    normalized = column.aggregate is not None and column.aggregate.offset
    return smooth(points, share=share and not normalized)


def smooth(points: Sequence[Point], *, share: bool = False) -> Curve | None:
    """Return the curve through scores; None if fewer than `LEAST` are numbers.

    Args:
        points: in any order. Several may have one step.
        share: values lie between 0 and 1, and so does the band.
    """
    usable = sorted(each for each in points if math.isfinite(each.value))
    steps = np.array([each.step for each in usable], dtype=float)
    if len(usable) < LEAST or steps[0] == steps[-1]:
        return None
    values = np.array([each.value for each in usable], dtype=float)
    errors = np.array([each.stderr for each in usable], dtype=float)
    middle = float(np.median(values))
    scale = max(float(np.std(values)), float(np.median(errors)), 1e-9 * abs(middle), 1e-12)
    span = float(steps[-1] - steps[0])
    model = _Model((values - middle) / scale, errors / scale, np.diff(steps) / span)
    jumps: list[int] = []
    alone: list[int] = []
    passed = model.run(jumps, alone)
    for _ in range(_MOST_SHOCKS):
        jump, single = _shock(passed, jumps, alone)
        if jump is None and single is None:
            break
        jumps += [jump] if jump is not None else []
        alone += [single] if single is not None else []
        passed = model.run(jumps, alone)
    likely = np.exp(passed.likelihood - passed.likelihood.max())

    def mixed(mean: Floats, variance: Floats, prior: Floats | float = 1.0) -> tuple[Floats, Floats]:
        """Return the mean over the grid, and the half width of its 95 % interval."""
        weights = prior * likely / (prior * likely).sum()
        center = mean @ weights
        spread = np.maximum(variance, 0) + (mean - center[..., None]) ** 2
        return center, _SURE * np.sqrt(spread @ weights)

    level, reach = mixed(passed.level, passed.level_variance)
    slope, slope_reach = mixed(passed.slope, passed.slope_variance, model.steady)
    least, most = (0.0, 1.0) if share else (-math.inf, math.inf)

    def told(scaled: Floats) -> list[float]:
        return [float(each) for each in np.clip(middle + scale * scaled, least, most)]

    changes = []
    for place in sorted(jumps):
        size, size_reach = mixed(
            _VAGUE * passed.push[place], _VAGUE - _VAGUE**2 * passed.push_variance[place]
        )
        size, size_reach = scale * size, scale * size_reach
        changes.append(
            Change(
                float(steps[place]), float(size), float(size - size_reach), float(size + size_reach)
            )
        )
    a_step = scale / span
    return Curve(
        steps=[float(each) for each in steps],
        level=told(level),
        low=told(level - reach),
        high=told(level + reach),
        slope=a_step * float(slope),
        slope_low=a_step * float(slope - slope_reach),
        slope_high=a_step * float(slope + slope_reach),
        changes=changes,
        alone=[float(steps[place]) for place in sorted(alone)],
    )


class _Passed(NamedTuple):
    """The results of a pass over the scores; the last axis of each array is the grid."""

    likelihood: Floats
    level: Floats
    level_variance: Floats
    slope: Floats
    slope_variance: Floats
    push: Floats
    """Pull of each score and all later scores at the level, and the variance of the pull."""
    push_variance: Floats
    pull: Floats
    """Pull of each score alone at the level, and the variance of the pull."""
    pull_variance: Floats


class _Model:
    """Scores whose steps go from 0 to 1, and whose values vary by about 1."""

    def __init__(self, values: Floats, errors: Floats, gaps: Floats) -> None:
        self._values, self._gaps = values, gaps
        wandering, noise = np.meshgrid(_WANDERING, _NOISES)
        self._wandering = wandering.ravel()
        # Where a slope may have gone anywhere since the last score but one, none would be known.
        self.steady = np.maximum(self._wandering, _WANDERING[1]) ** -0.3
        # Without any noise, two scores of one step would be a contradiction.
        self._noise = noise.ravel() + np.maximum(errors, 1e-4)[:, None] ** 2

    def run(self, jumps: Sequence[int], alone: Sequence[int]) -> _Passed:
        """Filter the scores forward and smooth them backward.

        Args:
            jumps: scores before which the level jumps.
            alone: scores that count for nothing.
        """
        count, width = len(self._values), len(self._wandering)
        kept = np.empty((count, 8, width))  # level, slope, their covariance, what the score adds
        likelihood = np.zeros(width)
        level, slope = np.zeros(width), np.zeros(width)
        ll, ls, ss = np.full(width, _VAGUE), np.zeros(width), np.full(width, _VAGUE)
        for place, value in enumerate(self._values):
            if place:
                gap, walk = self._gaps[place - 1], self._wandering
                level = level + gap * slope
                ll = ll + 2 * gap * ls + gap**2 * ss + walk * gap**3 / 3
                ls = ls + gap * ss + walk * gap**2 / 2
                ss = ss + walk * gap
                if place in jumps:
                    ll = ll + _VAGUE
            noise = self._noise[place] + (_VAGUE if place in alone else 0.0)
            error, variance = value - level, ll + noise
            kept[place] = level, slope, ll, ls, ss, error, variance, ll / variance
            likelihood -= 0.5 * (np.log(variance) + error**2 / variance)
            level, slope = level + ll / variance * error, slope + ls / variance * error
            ss = ss - ls**2 / variance
            ls = ls * (1 - ll / variance)
            ll = ll * (1 - ll / variance)
        end_slope, end_variance = slope, ss
        r0, r1 = np.zeros(width), np.zeros(width)
        n00, n01, n11 = np.zeros(width), np.zeros(width), np.zeros(width)
        out = np.empty((6, count, width))
        for place in range(count - 1, -1, -1):
            level, _, ll, ls, _, error, variance, gain = kept[place]
            gap = self._gaps[place] if place < count - 1 else 0.0
            own, other = 1 - gain, ls / variance
            r1 = gap * r0 + r1
            n11 = n11 + 2 * gap * n01 + gap**2 * n00
            n01 = n01 + gap * n00
            pull = error / variance - gain * r0 - other * r1
            pulls = 1 / variance + gain**2 * n00 + 2 * gain * other * n01 + other**2 * n11
            r0 = error / variance + own * r0 - other * r1
            n00 = 1 / variance + own**2 * n00 - 2 * own * other * n01 + other**2 * n11
            n01 = own * n01 - other * n11
            smoothed = level + ll * r0 + ls * r1
            uncertain = ll - (ll**2 * n00 + 2 * ll * ls * n01 + ls**2 * n11)
            out[:, place] = smoothed, uncertain, r0, n00, pull, pulls
        return _Passed(likelihood, out[0], out[1], end_slope, end_variance, *out[2:])


def _shock(
    passed: _Passed, jumps: Sequence[int], alone: Sequence[int]
) -> tuple[int | None, int | None]:
    """Return what makes the scores far likelier: a jump before a score, or a score left out."""
    from scipy.special import chdtri

    count = len(passed.level)

    def ratio(push: Floats, variance: Floats) -> Floats:
        gain = (passed.likelihood + 0.5 * push**2 / variance).max(axis=1)
        found: Floats = 2 * (gain - passed.likelihood.max())
        return found

    jump, single = (
        ratio(passed.push, passed.push_variance),
        ratio(passed.pull, passed.pull_variance),
    )
    jump[:_BESIDE] = jump[count - _BESIDE + 1 :] = 0.0
    for place in (*jumps, *alone):
        jump[max(0, place - _BESIDE + 1) : place + _BESIDE] = 0.0
        single[place] = 0.0
    best, only = int(jump.argmax()), int(single.argmax())
    if max(jump[best], single[only]) <= chdtri(1, _FALSE_RATE / (2 * count)):
        return None, None
    return (best, None) if jump[best] >= single[only] else (None, only)


class Noise(NamedTuple):
    """The trend of a column's series. A number is None if it cannot be known."""

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
