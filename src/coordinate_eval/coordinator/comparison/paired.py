"""Compare two lists of scores of the same items.

Two checkpoints answer the same items, so the difference of their scores has far less noise than the
scores have: only items that the two answer differently count. Items that share a passage are alike,
and count as one cluster (E. Miller, "Adding Error Bars to Evals", 2024, sections 2.2 and 4.2).

All functions are pure. Their random draws begin with a fixed seed, so the same items give the same
numbers.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

CONFIDENCE = 0.95
"""Level of all intervals. One less this is the share of false alarms."""

POWER = 0.8
"""Probability with which the minimal detectable difference is found."""

FLIPS = 10_000
"""Random flips for a p-value where not all can be counted: p = 0.01 is then within a tenth."""

MOST_FLIPPED = 100
"""Differing clusters above which the flips' sum is as good as normal."""

Floats = npt.NDArray[np.float64]


class Stratum(NamedTuple):
    """The items of one task, with the scores that two checkpoints have."""

    first: Floats
    second: Floats
    clusters: Sequence[int]
    """Number of each item's cluster among all strata; empty if each item is alone."""
    weight: float
    """Weight of the task's mean in the score of the dataset. The weights of a dataset sum to 1."""


class Difference(NamedTuple):
    """The second checkpoint's score less the first's."""

    value: float
    stderr: float
    """NaN if all items are one cluster."""
    low: float
    high: float
    """The interval of `CONFIDENCE`."""
    p: float
    """Probability of a difference at least so large between checkpoints that are equally good."""
    clusters: int
    """Independent clusters of items."""


def difference(strata: Sequence[Stratum]) -> Difference:
    """Return how the second checkpoint differs from the first, with its uncertainty.

    The standard error is that of a cluster-robust difference of means, stratified by task, plus
    one item that is half won and half lost (A. Agresti and Y. Min, "Simple improved confidence
    intervals for comparing matched proportions", 2005). So a few items that all agree give an
    interval with a width. Graded items are won or lost by the root mean square of their
    differences. The interval is Student's. The p-value is that of the sign-flip test over
    clusters. For right and wrong without clusters this is McNemar's exact test.

    Args:
        strata: one or more, each with at least one item.
    """
    value, spread, squares, differ = 0.0, 0.0, 0.0, 0
    names: list[npt.NDArray[np.int64]] = []
    weighted: list[Floats] = []
    apart: list[Floats] = []
    unnamed = 1 + max((max(s.clusters) for s in strata if len(s.clusters)), default=0)
    for stratum in strata:
        gaps = stratum.second - stratum.first
        mean = float(gaps.mean())
        value += stratum.weight * mean
        both = np.concatenate([stratum.first, stratum.second])
        spread = max(spread, float(both.max() - both.min()))
        squares += float(gaps @ gaps)
        differ += int(np.count_nonzero(gaps))
        each = stratum.weight / len(gaps)
        alone = np.arange(unnamed, unnamed + len(gaps))
        unnamed += len(gaps)
        names.append(np.asarray(stratum.clusters) if len(stratum.clusters) else alone)
        weighted.append(each * gaps)
        apart.append(each * (gaps - mean))
    _, places = np.unique(np.concatenate(names), return_inverse=True)
    sums: Floats = np.bincount(places, np.concatenate(weighted)).astype(np.float64)
    count = len(sums)
    if count < 2:
        return Difference(value, math.nan, math.nan, math.nan, 1.0, count)
    residuals = np.bincount(places, np.concatenate(apart))
    freedom = max(1, count - len(strata))
    scale = count / freedom
    agreed = (math.sqrt(squares / differ) if differ else spread or 1.0) * _typical(strata)
    stderr = math.sqrt(scale * float(residuals @ residuals) + agreed**2)
    reach, most = _student(freedom) * stderr, max(1.0, spread)
    low, high = max(-most, value - reach), min(most, value + reach)
    return Difference(value, stderr, low, high, sign_flip(sums), count)


def _typical(strata: Sequence[Stratum]) -> float:
    """Return the weight of one item, where tasks differ the root of its mean square."""
    squares = sum(stratum.weight**2 / len(stratum.first) for stratum in strata)
    return math.sqrt(squares / sum(len(stratum.first) for stratum in strata))


def weighted_difference(parts: Sequence[tuple[float, Difference]]) -> Difference:
    """Return the difference of a weighted mean over datasets, which are independent.

    The p-value is that of Student's test. Give only differences whose error is known.
    """
    from scipy.stats import t

    value = sum(factor * part.value for factor, part in parts)
    stderr = math.hypot(*(factor * part.stderr for factor, part in parts))
    clusters = sum(part.clusters for _, part in parts)
    freedom = max(1, clusters - len(parts))
    reach = _student(freedom) * stderr
    p = 2 * float(t.sf(abs(value) / stderr, freedom)) if stderr else 1.0
    return Difference(value, stderr, value - reach, value + reach, p, clusters)


def sign_flip(sums: Floats) -> float:
    """Return the two-sided p-value of the sum of `sums` if each could have had the other sign.

    Exact where all sums have one size, or are few. Otherwise from `FLIPS` random flips, or from
    the normal distribution where clusters are many, or where p is below what the flips can tell.
    """
    told = sums[sums != 0]
    count = len(told)
    if not count:
        return 1.0
    sizes = np.abs(told)
    if sizes.max() - sizes.min() <= 1e-9 * sizes.max():
        return mcnemar(int((told > 0).sum()), int((told < 0).sum()))
    observed = abs(float(told.sum())) * (1 - 1e-12)
    normal = math.erfc(observed / math.sqrt(2 * float(told @ told)))
    if count > MOST_FLIPPED:
        return normal
    if 1 << count <= FLIPS:
        flips = (np.arange(1 << count)[:, None] >> np.arange(count)) & 1
        return float((np.abs((1 - 2.0 * flips) @ told) >= observed).mean())
    flips = np.random.default_rng(0).integers(0, 2, (FLIPS, count), dtype=np.int8)
    extreme = int((np.abs((1 - 2.0 * flips) @ told) >= observed).sum())
    return (extreme + 1) / (FLIPS + 1) if extreme >= 10 else normal


def mcnemar(gained: int, lost: int) -> float:
    """Return the exact two-sided p-value of McNemar's test: a fair coin for each changed item."""
    from scipy.stats import binomtest

    return float(binomtest(gained, gained + lost).pvalue) if gained + lost else 1.0


def significant(values: Sequence[float], rate: float = 1 - CONFIDENCE) -> list[bool]:
    """Return which p-values are significant if `rate` of those found may be false.

    The rule of Y. Benjamini and Y. Hochberg, "Controlling the False Discovery Rate", 1995.
    """
    from scipy.stats import false_discovery_control

    return [p <= rate for p in false_discovery_control(values)] if values else []


def detectable(stderr: float) -> float:
    """Return the smallest difference that is found with probability `POWER`, given its error."""
    from scipy.stats import norm

    both = norm.ppf(1 - (1 - CONFIDENCE) / 2) + norm.ppf(POWER)
    return float(both) * stderr


def _student(freedom: int) -> float:
    from scipy.stats import t

    return float(t.ppf(1 - (1 - CONFIDENCE) / 2, freedom))
