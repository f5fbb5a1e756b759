"""Falls of a score that its past does not explain.

However a healthy training rises, its level does not fall: so a score is compared with the mean of a
few scores before it, and no jump, warm-up or saturation of these can raise a false alarm. While
scores rise, such a mean lags behind. There a score counts as fallen, too, if it is far below the
line through the scores before it, and also below their mean by more than noise.

Noise is measured by how far scores lie from the line through their two neighbours, as in
`curve.deviation`, so that no rise adds to it. At first the errors of the items stand for it.

All functions are pure. More is better in all values: turn those where less is.
"""

import math
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt
from numpy.lib.stride_tricks import sliding_window_view as windows

_LEVELS = (1, 2, 4)  # scores whose mean is the level before
_LINES = (8, 12)  # scores through which a line goes on
_TOGETHER = (1, 2)  # newest scores that are tested together
_GATE = 15  # times the rate at which a score is below the level, where the line says that it fell
_USUAL = 36  # newest scores that tell the noise
_PRIOR = 4  # scores that the errors of the items are worth
_CLIP = 3.0  # times the usual noise that a single score counts at most
_NORMAL = 1.4826  # standard deviation over median absolute deviation
_FREEDOM = 9  # most degrees of freedom of a test: checkpoints have heavier tails than items
_SURE = 5.0  # standard errors of a collapse, which needs no past to be sure
_SETTLED = 10  # scores after which a lower level is the level

Floats = npt.NDArray[np.float64]


class Fall(NamedTuple):
    """Scores that are worse than expected, one after another."""

    first: int
    last: int
    kind: Literal["collapse", "drop"]
    value: float
    """The score, or the mean of two, that has fallen."""
    expected: float


class _Verdict(NamedTuple):
    """The finding on each score."""

    collapsed: npt.NDArray[np.bool_]
    dropped: npt.NDArray[np.intp]
    """The number of newest scores that have dropped together; 0 where none has."""
    expected: Floats
    level: Floats


def falls(steps: Floats, values: Floats, errors: Floats, rate: float) -> list[Fall]:
    """Return the falls of a series, by step.

    Args:
        steps: of the checkpoints, ascending.
        values: finite; perplexities are negative.
        errors: standard errors of the values from their items; 0 if not known.
        rate: the probability that a fall begins at a healthy checkpoint, about.
    """
    with np.errstate(over="ignore", invalid="ignore"):  # a perplexity may be of any size
        return _falls(steps, values, errors, rate)


def _falls(steps: Floats, values: Floats, errors: Floats, rate: float) -> list[Fall]:
    found: list[Fall] = []
    kept, since = np.arange(len(values)), 0
    while len(kept) > 1:
        verdict = _judge(steps[kept], values[kept], errors[kept], rate)
        fallen = (verdict.collapsed | (verdict.dropped > 0)) & (kept >= since)
        if not fallen.any():
            break
        place = int(fallen.argmax())
        first = last = int(kept[place])
        collapsed = bool(verdict.collapsed[place])
        expected = float((verdict.level if collapsed else verdict.expected)[place])
        together = 1 if collapsed else int(verdict.dropped[place])
        value = float(values[kept[place - together + 1 : place + 1]].mean())
        halfway = (value + expected) / 2
        if together == 2 and values[kept[place - 1]] < halfway:
            first = int(kept[place - 1])
        longest = len(values) if collapsed else _SETTLED
        while last + 1 < len(values) and values[last + 1] < halfway and last - first < longest:
            last += 1
        found.append(Fall(first, last, "collapse" if collapsed else "drop", value, expected))
        since = last + 1
        if last - first < longest:
            kept = kept[(kept < first) | (kept > last)]
        else:
            kept = np.arange(first, len(values))
    return found


def noise(steps: Floats, values: Floats, errors: Floats) -> tuple[Floats, Floats]:
    """Return the standard deviation of noise that is known before each score, and its freedom."""
    count = len(values)
    span = steps[2:] - steps[:-2]
    after = np.divide(steps[1:-1] - steps[:-2], span, out=np.full(count - 2, 0.5), where=span > 0)
    before = 1 - after
    apart = np.abs(before * values[:-2] + after * values[2:] - values[1:-1])
    apart /= np.sqrt(before**2 + after**2 + 1)
    # Before score n the neighbours of score n - 2 are known.
    known = windows(np.concatenate([np.full(_USUAL, math.nan), apart]), _USUAL)
    known = np.concatenate([known[:1], known[:1], known])[:count]
    number = np.count_nonzero(~np.isnan(known), axis=1)
    ordered = np.sort(known, axis=1)
    middle = ordered[np.arange(count), np.maximum(number - 1, 0) // 2]
    most = _CLIP * np.fmax(_NORMAL * middle, errors)
    squares = np.nansum(np.minimum(known, most[:, None]) ** 2, axis=1)
    variance = (_PRIOR * errors**2 + squares) / (_PRIOR + number)
    return np.sqrt(variance), np.minimum(_PRIOR + number - 1, _FREEDOM).astype(float)


def _judge(steps: Floats, values: Floats, errors: Floats, rate: float) -> _Verdict:
    from scipy.special import stdtr

    count = len(values)
    level, uncertain = _level(values, errors)
    verdict = _Verdict(
        _collapsed(values, errors, level, uncertain), np.zeros(count, np.intp), level.copy(), level
    )
    if count <= max(_LEVELS):
        return verdict
    scale, freedom = noise(steps, values, errors)
    scale = np.where(scale > 0, scale, math.inf)
    for newest in _TOGETHER:
        # Of the scores from `least` on: the newest together, and the place where their past ends.
        least = max(_LEVELS) + newest - 1
        now = windows(values, newest)[least - newest + 1 :].mean(axis=1)
        ends = np.arange(least, count) + 1 - newest
        below, expected = np.full(len(now), -math.inf), np.zeros(len(now))
        for size in _LEVELS:
            before = windows(values, size)[ends - size].mean(axis=1)
            far = (before - now) / math.sqrt(1 / size + 1 / newest)
            expected = np.where(far > below, before, expected)
            below = np.maximum(far, below)
        own, free = scale[least:], freedom[least:]
        chance = stdtr(free, -below / own)
        dropped = chance < rate
        at = windows(steps, newest)[least - newest + 1 :].mean(axis=1)
        for size in _LINES:
            if not (there := ends >= size).any():
                continue
            past = ends[there] - size
            line, spread = _line(windows(steps, size)[past], windows(values, size)[past], at[there])
            far = (line - now[there]) / np.sqrt(1 / newest + spread)
            fell = stdtr(free[there], -far / own[there]) < rate
            fell &= (chance[there] < _GATE * rate) & ~dropped[there]
            expected[there] = np.where(fell, line, expected[there])
            dropped[there] |= fell
        new = dropped & (verdict.dropped[least:] == 0)
        verdict.dropped[least:][new] = newest
        verdict.expected[least:][new] = expected[new]
    return verdict


def _level(values: Floats, errors: Floats) -> tuple[Floats, Floats]:
    """Return the mean of the four scores before each one, or of fewer, and its standard error.

    The first score has none, and is its own.
    """
    level, uncertain = values.copy(), errors.copy()
    size = max(_LEVELS)
    for place in range(1, min(size, len(values))):
        level[place] = values[:place].mean()
        uncertain[place] = math.sqrt(float(errors[:place] @ errors[:place])) / place
    if len(values) > size:
        level[size:] = windows(values, size)[:-1].mean(axis=1)
        uncertain[size:] = np.sqrt((windows(errors, size)[:-1] ** 2).sum(axis=1)) / size
    return level, uncertain


def _collapsed(
    values: Floats, errors: Floats, level: Floats, uncertain: Floats
) -> npt.NDArray[np.bool_]:
    """Return which scores are far from anything that a training does between two saves.

    A share is less than half of what is expected, a perplexity more than three times that.
    """
    noise = np.hypot(errors, uncertain)
    share = (level > 0) & (level <= 1) & (values < level / 2)
    share &= level - values > _SURE * np.where(noise > 0, noise, 0.02)
    found: npt.NDArray[np.bool_] = share | (
        (level < 0) & (values < 3 * level) & (level - values > _SURE * noise)
    )
    return found


def _line(steps: Floats, values: Floats, at: Floats) -> tuple[Floats, Floats]:
    """Return where the line through each row's scores is at another step, and its variance.

    The variance is in units of that of a score.
    """
    middle, mean = steps.mean(axis=1), values.mean(axis=1)
    apart = steps - middle[:, None]
    spread = (apart**2).sum(axis=1)
    slope = (apart * (values - mean[:, None])).sum(axis=1)
    reach = at - middle
    flat = spread <= 0
    spread = np.where(flat, 1.0, spread)
    reach = np.where(flat, 0.0, reach)
    return mean + slope / spread * reach, 1 / values.shape[1] + reach**2 / spread
