"""Comparison of two checkpoints: agreement with published methods, and how often it errs

    python benchmarks/agreement.py

*Agreement*: `compare` and others' formulas on the same made-up items, 200 pairs of checkpoints for
each row; the largest difference of any pair. References are scipy, statsmodels where it is
installed (`pip install statsmodels`; else the formula is written out here), and the formulas that
the documentation and source of NeMo Evaluator (July 2026) and olmo-eval (June 2026) give. `compare`
adds one item, half won and half lost, to each standard error, so that items which all agree are no
certainty. The row *as shown* has it, the other ones do not.

*False*: of 1,000 pairs of checkpoints that are equally good, those that are called different at
5 %: by the p-value, and by an interval without zero. Items have a hardness that both checkpoints
share, and items of a passage share a part of it and of what differs. The exact test of few changed
items cannot reach 5 %: it errs less often.
"""

import argparse
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from rich.console import Console
from rich.table import Table
from scipy import stats

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from coordinate_eval.coordinator.comparison.paired import (
    Difference,
    Floats,
    Stratum,
    detectable,
    difference,
    mcnemar,
    significant,
    weighted_difference,
)

PAIRS = 200


class Pair(NamedTuple):
    """The scores of two checkpoints on the same items, and the passage of each item."""

    first: Floats
    second: Floats
    clusters: list[int]

    @property
    def gaps(self) -> Floats:
        """Return the differences by item."""
        return self.second - self.first

    @property
    def found(self) -> Difference:
        """Return what `compare` says of them."""
        return difference([Stratum(self.first, self.second, self.clusters, 1.0)])


def pair(draw: np.random.Generator, groups: int, size: int, gain: float, ease: float = 0.0) -> Pair:
    """Return rights and wrongs on `groups` passages of `size` items; `ease` makes them easier."""
    items = groups * size

    def shared() -> Floats:
        found: Floats = np.repeat(draw.normal(size=groups), size)
        return found

    hardness = 0.7 * shared() + 0.7 * draw.normal(size=items) + ease
    first, second = (
        (0.9 * hardness + 0.3 * draw.normal(size=items) + 0.3 * shared() + more > 0).astype(float)
        for more in (0.0, gain)
    )
    names = np.repeat(np.arange(groups), size).tolist() if size > 1 else []
    return Pair(first, second, names)


def plain_error(one: Pair) -> float:
    """Return the standard error of `compare` without its added item."""
    found = one.found
    return math.sqrt(max(0.0, found.stderr**2 - 1 / len(one.first) ** 2))


def robust_error(one: Pair) -> float:
    """Return the cluster-robust standard error of the mean difference, as statsmodels has it."""
    gaps, groups = one.gaps, np.asarray(one.clusters)
    try:
        import statsmodels.api as sm
    except ImportError:
        sums = np.bincount(groups, gaps - gaps.mean())
        count, items = len(sums), len(gaps)
        # of a regression on a constant: G / (G - 1) · (N - 1) / (N - 1)
        return math.sqrt(count / (count - 1) * float(sums @ sums)) / items
    fit = sm.OLS(gaps, np.ones(len(gaps))).fit(cov_type="cluster", cov_kwds={"groups": groups})
    return float(fit.bse[0])


def exact_p(one: Pair) -> float:
    """Return the exact p-value of McNemar's test, by statsmodels or scipy."""
    gained, lost = int((one.gaps > 0).sum()), int((one.gaps < 0).sum())
    try:
        from statsmodels.stats.contingency_tables import mcnemar as reference
    except ImportError:
        return float(stats.binomtest(gained, gained + lost).pvalue) if gained + lost else 1.0
    both = len(one.gaps) - gained - lost
    return float(reference([[both, gained], [lost, 0]], exact=True).pvalue)


def nemo_p(one: Pair) -> float:
    """Return NeMo's one-sided exact p-value of a regression, doubled as a two-sided test has it."""
    gained, lost = int((one.gaps > 0).sum()), int((one.gaps < 0).sum())
    if not gained + lost:
        return 1.0
    tail = stats.binomtest(max(gained, lost), gained + lost, alternative="greater").pvalue
    return min(1.0, 2 * float(tail))


def nemo_half(one: Pair) -> float:
    """Return half of NeMo's 95 % interval: 1.96 · sqrt((b + c - (b - c)² / n) / n²), of shares."""
    items = len(one.gaps)
    b, c = (one.gaps < 0).sum() / items, (one.gaps > 0).sum() / items
    return 1.96 * math.sqrt((b + c - (b - c) ** 2) / items)


def olmo_detectable(one: Pair) -> float:
    """Return olmo-eval's (z(0.975) + z(0.8)) · sqrt(Var(d) / n)."""
    both = stats.norm.ppf(0.975) + stats.norm.ppf(0.8)
    return float(both * math.sqrt(one.gaps.var(ddof=1) / len(one.gaps)))


def bootstrap_error(one: Pair) -> float:
    """Return the standard error of the paired bootstrap, of infinitely many draws."""
    return float(np.sqrt(one.gaps.var() / len(one.gaps)))


class Row(NamedTuple):
    """A quantity that `compare` and a reference have."""

    reference: str
    ours: Callable[[Pair], float]
    theirs: Callable[[Pair], float]
    clustered: bool = False


ROWS: Mapping[str, Row] = {
    "p of right and wrong": Row(
        "exact McNemar, statsmodels", lambda one: one.found.p, exact_p, False,
    ),
    " the same": Row("exact McNemar, NeMo, both sides", lambda one: one.found.p, nemo_p, False),
    "standard error": Row(
        "paired t, scipy", plain_error, lambda one: float(stats.sem(one.gaps)), False,
    ),
    " as shown": Row(
        "paired t, scipy", lambda one: one.found.stderr, lambda one: float(stats.sem(one.gaps)),
        False,
    ),
    " the same ": Row("paired bootstrap", plain_error, bootstrap_error, False),
    "standard error, passages": Row("cluster-robust, statsmodels", plain_error, robust_error, True),
    "half of the interval": Row(
        "Wald's, NeMo",
        lambda one: float(stats.t.ppf(0.975, len(one.gaps) - 1)) * plain_error(one), nemo_half,
        False,
    ),
    "detectable difference": Row(
        "MDE80, olmo-eval", lambda one: detectable(plain_error(one)), olmo_detectable, False,
    ),
}  # fmt: skip


def largest(row: Row, pairs: Sequence[Pair]) -> tuple[float, float]:
    """Return the largest difference of a quantity from its reference, and as a part of its size."""
    both = [(row.ours(one), row.theirs(one)) for one in pairs]
    return max(abs(a - b) for a, b in both), max(abs(a - b) / b for a, b in both if b)


def agreement() -> Table:
    """Return the largest difference of each quantity from its reference."""
    draw = np.random.default_rng(0)
    alone = [pair(draw, 1000, 1, draw.uniform(-0.1, 0.1)) for _ in range(PAIRS)]
    passages = [pair(draw, 200, 5, draw.uniform(-0.1, 0.1)) for _ in range(PAIRS)]
    table = Table(
        "quantity", "reference", "largest difference", "of its size",
        title=f"agreement on {PAIRS} pairs of 1,000 items",
    )  # fmt: skip
    for name, row in ROWS.items():
        apart, part = largest(row, passages if row.clustered else alone)
        table.add_row(name.strip(), row.reference, f"{apart:.1e}", f"{part:.1e}")
    values = [[mcnemar(*draw.integers(0, 40, 2).tolist()) for _ in range(60)] for _ in range(PAIRS)]
    wrong = sum(
        a != (b <= 0.05)
        for row in values
        for a, b in zip(significant(row), stats.false_discovery_control(row), strict=True)
    )
    table.add_row("discoveries of 60", "Benjamini–Hochberg, scipy", f"{wrong} decisions", "")
    return table


KINDS: Mapping[str, tuple[int, int, float]] = {
    "1,000 items": (1000, 1, 0.0),
    "100 items": (100, 1, 0.0),
    "30 items": (30, 1, 0.0),
    "200 passages of 5 items": (200, 5, 0.0),
    "40 passages of 8 items": (40, 8, 0.0),
    "1,000 items, 97 % right": (1000, 1, 1.9),
    "100 items, 97 % right": (100, 1, 1.9),
}


def errs(count: int) -> Table:
    """Return how often equally good checkpoints are called different."""
    table = Table("dataset", "by p, %", "by interval, %", title=f"false, of {count:,} pairs")
    for name, shape in KINDS.items():
        draw = np.random.default_rng(1)
        found = [pair(draw, *shape[:2], 0.0, shape[2]).found for _ in range(count)]
        table.add_row(name, *_shares(found))
    draw = np.random.default_rng(1)
    means = []
    for _ in range(count):
        parts = [pair(draw, *shape[:2], 0.0, shape[2]).found for shape in KINDS.values()]
        means.append(weighted_difference([(1 / len(parts), part) for part in parts]))
    table.add_row("the mean of these seven", *_shares(means))
    return table


def _shares(found: Sequence[Difference]) -> tuple[str, str]:
    by_p = sum(each.p < 0.05 for each in found)
    by_interval = sum(not each.low <= 0 <= each.high for each in found)
    return f"{100 * by_p / len(found):.1f}", f"{100 * by_interval / len(found):.1f}"


def main() -> None:
    """Measure, and print two tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=1000, help="equally good checkpoints")
    asked = parser.parse_args()
    where = Console(width=100)
    where.print(agreement())
    where.print(errs(asked.pairs))


if __name__ == "__main__":
    main()
