"""Stalls: scores that were rising and have stopped, though their trend says that they go on.

Scores of a healthy training rise ever more slowly: by a power law, or towards a ceiling, each
dataset at a pace of its own. In all of these, the factor by which the slope shrinks in a given time
comes ever closer to 1. So three spans of equally many checkpoints tell a stall: from the second to
the third the slope shrinks by no more than from the first to the second. Where it shrinks by far
more, to less than a quarter of that, scores have stopped. A curve that bends into its ceiling has
bent before, and is no stall. After a jump or a warm-up nothing is expected: the rise must not have
grown anywhere before.

All functions are pure. More is better in all values.
"""

from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from numpy.lib.stride_tricks import sliding_window_view as windows

_SPANS = (8, 12, 16, 20, 24, 32, 40)  # checkpoints of a span
_RISING = 3.0  # standard errors of a slope that is a rise
_SURE = 3.0  # standard errors by which a slope lies below the expected one
_GROWS = 0.5  # standard errors by which a slope may grow
_HALVED = 2**1.5  # error of the slope of half of a span
_LEFT = 0.25  # of the expected slope that is none
_LASTS = 0.8  # most of a checkpoint's noise that lasts to the next one
_CEILING = 0.95  # share above which scores have nowhere to rise
_NEWEST = 4  # scores whose mean tells that they rise again

Floats = npt.NDArray[np.float64]


class Stall(NamedTuple):
    """Scores that have stopped rising. Places are those of checkpoints."""

    told: int
    """The place at which it became clear."""
    first: int
    """The beginning of the span that does not rise."""
    last: int
    """The last one before scores rise again."""
    before: float
    """The slope of the span before it, a step."""
    now: float
    error: float
    """Standard error of the slope now."""


def stalls(steps: Floats, values: Floats) -> list[Stall]:
    """Return the stalls of a series of shares, by step.

    Args:
        steps: of the checkpoints, ascending.
        values: finite.
    """
    found: list[Stall] = []
    for stall in sorted(each for size in _SPANS for each in _of_size(steps, values, size)):
        if found and stall.first <= found[-1].last:
            continue
        told, first, last = stall.told, stall.first, stall.told
        level = values[first : told + 1].mean()
        risen = level + stall.before * (steps[told] - steps[first]) / 2
        while (
            last + 1 < len(values)
            and values[max(first, last + 2 - _NEWEST) : last + 2].mean() < risen
        ):
            last += 1
        found.append(stall._replace(last=last))
    return found


class _Slopes(NamedTuple):
    """The slope a step of each span, its standard error, and the middle of its steps."""

    slope: Floats
    error: Floats
    middle: Floats


def _of_size(steps: Floats, values: Floats, size: int) -> Iterator[Stall]:
    """Yield each three spans of so many checkpoints of which the third has stalled."""
    count = len(values) - 3 * size + 1
    if count < 1:
        return
    every = _slopes(steps, values, size)
    a, b, c = (_Slopes(*(of[n * size :][:count] for of in every)) for n in range(3))
    half = _slopes(steps, values, size // 2).slope
    halves = [half[n * size // 2 :][:count] for n in range(4)]
    halves.insert(0, np.concatenate([np.full(size // 2, np.inf), half])[:count])
    with np.errstate(divide="ignore", invalid="ignore"):
        shrinks = np.clip(b.slope / a.slope, 0, 1)
        shrinks = shrinks ** ((c.middle - b.middle) / (b.middle - a.middle))
        expected = b.slope * shrinks
        error = np.sqrt(c.error**2 + (2 * shrinks * b.error) ** 2 + (shrinks**2 * a.error) ** 2)
        stalled = (a.slope > _RISING * a.error) & (b.slope > _RISING * b.error)
        apart = _GROWS * np.hypot(a.error, b.error)
        stalled &= b.slope - a.slope < apart
        for early, late in pairwise((halves[0], halves[1], np.max(halves[2:], axis=0))):
            stalled &= late - early < _HALVED * apart
        stalled &= (expected - c.slope > _SURE * error) & (c.slope < _LEFT * expected)
    stalled &= windows(values, size)[2 * size :].mean(axis=1) < _CEILING
    for n in np.flatnonzero(stalled):
        told = int(n) + 3 * size - 1
        its = (float(b.slope[n]), float(c.slope[n]), float(c.error[n]))
        yield Stall(told, told - size + 1, told, *its)


def _slopes(steps: Floats, values: Floats, size: int) -> _Slopes:
    """Return the least squares slopes of the spans of so many checkpoints, by their beginnings."""
    x, y = windows(steps, size), windows(values, size)
    middle = x.mean(axis=1)
    apart = x - middle[:, None]
    spread = np.maximum((apart**2).sum(axis=1), np.finfo(float).tiny)
    level = y - y.mean(axis=1)[:, None]
    slope = (apart * level).sum(axis=1) / spread
    rest = level - slope[:, None] * apart
    return _Slopes(slope, np.sqrt(_lasting(rest) / spread), middle)


def _lasting(rest: Floats) -> Floats:
    """Return the variance of the noise of each span, as it adds up where a part of it lasts.

    This is that of autoregressive noise. Its correlation is estimated too low by about 4 / n from
    n residuals of a line.
    """
    size = rest.shape[1]
    squares = np.maximum((rest**2).sum(axis=1), np.finfo(float).tiny)
    lasts = (rest[:, 1:] * rest[:, :-1]).sum(axis=1) / squares + 4 / size
    lasts = np.clip(lasts, 0, _LASTS)
    found: Floats = squares / (size - 2) * (1 + lasts) / (1 - lasts)
    return found
