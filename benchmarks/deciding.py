"""Evaluate until it is decided.

Pairs of simulated checkpoints are compared on the base suite's shape, as `--until-decided` compares
them: a mean over 60 datasets, each with as many items as a look has. Right and wrong are drawn from
the hardness of each item, what the two checkpoints share of it, and noise of their own, so that
they differ in a tenth to a third of the items. One save is better than the other by a common gain
and by one of each dataset.

    python benchmarks/deciding.py
    python benchmarks/deciding.py --precision 0.01

With `--precision`, stages end with the sample that it asks, *full* is the fixed test on the sample,
and *of sample* is the part of its requests that was needed.

*full* is the fixed test on all items, which `compare` makes: its verdict on the mean, at 5 %.
*agrees* is the share of pairs that get the same verdict from both. *wrong side* counts better in
place of worse, and worse in place of better. A look at a part of the items that called its p-value
below 0.05 a difference, without the bounds, is shown as *naive*.
"""

import argparse
from collections import Counter
from typing import NamedTuple

import numpy as np

from coordinate_eval.coordinator.comparison import sequential
from coordinate_eval.coordinator.comparison.paired import (
    Difference,
    Stratum,
    detectable,
    difference,
    weighted_difference,
)
from coordinate_eval.coordinator.inputs.suites.suite import load, narrow
from coordinate_eval.priors import catalogue
from coordinate_eval.records import stages

GAINS = (0.0, 0.004, 0.008, 0.012, 0.016, 0.024)
"""Differences of the mean. The detectable one is that which the fixed test finds in 80 %."""

OWN_GAIN = 0.01
"""Standard deviation of what a dataset gains by itself, where there is a gain at all."""


class Shape(NamedTuple):
    """A dataset of the suite."""

    ends: list[int]
    """Items at the end of each stage."""
    requests: float
    """Requests of an item."""


class Outcome(NamedTuple):
    """The verdicts on a pair."""

    early: str
    full: str
    naive: bool
    requests: float
    """Those that were needed."""
    detectable: float
    """Difference that the fixed test on all items finds in 80 %."""


def shapes(precision: float | None = None) -> list[Shape]:
    """Return the datasets of the base suite whose scores are means over items, or their samples."""
    found = []
    for dataset in narrow(load("base"), precision=precision).datasets:
        entry, items = catalogue.find(dataset), catalogue.items(dataset)
        if entry is not None and items is not None and entry.kind != "judge":
            ends = stages(items, catalogue.count_tasks(dataset))
            found.append(Shape(ends, entry.requests_per_item))
    return found


def pair(draws: np.random.Generator, items: int, gain: float) -> tuple[np.ndarray, np.ndarray]:
    """Return which items two checkpoints have right; `gain` is the expected difference."""
    level, own = draws.normal(0, 0.7), draws.uniform(0.2, 0.6)
    hardness = level + draws.normal(0, 1, items)
    first, second = (hardness + draws.normal(0, own, items) for _ in range(2))
    spread = np.sqrt(1 + own**2)
    density = np.exp(-((level / spread) ** 2) / 2) / (spread * np.sqrt(2 * np.pi))
    return (first > 0).astype(float), (second > -gain / density).astype(float)


def verdict(value: float, *, found: bool) -> str:
    """Return the verdict on a difference."""
    return ("better" if value > 0 else "worse") if found else "no difference"


def outcome(draws: np.random.Generator, suite: list[Shape], gain: float) -> Outcome:
    """Draw a pair of checkpoints, and compare them until that is decided, and in full."""
    own = draws.normal(0, OWN_GAIN if gain else 0.0, len(suite))
    own -= own.mean()
    scores = [
        pair(draws, shape.ends[-1], gain + more) for shape, more in zip(suite, own, strict=True)
    ]
    looks = max(len(shape.ends) for shape in suite)
    shares: list[float] = []
    early, used, naive = "", 0.0, False
    for number in range(looks):
        counts = [shape.ends[min(number, len(shape.ends) - 1)] for shape in suite]
        parts = [
            difference([Stratum(a[:n], b[:n], [], 1.0)])
            for (a, b), n in zip(scores, counts, strict=True)
        ]
        mean = weighted_difference([(1 / len(parts), part) for part in parts])
        shares.append(_information(parts, counts, suite))
        told = sequential.look(mean.value, mean.stderr, sequential.deviations(mean.p), shares)
        naive = naive or mean.p < 0.05
        if told.decision and not early:
            early = verdict(mean.value, found=told.decision == "different")
            used = sum(n * shape.requests for n, shape in zip(counts, suite, strict=True))
    return Outcome(
        early, verdict(mean.value, found=mean.p < 0.05), naive, used, detectable(mean.stderr)
    )


def count_requests(suite: list[Shape]) -> float:
    """Return the requests of all items."""
    return sum(shape.ends[-1] * shape.requests for shape in suite)


def _information(parts: list[Difference], counts: list[int], suite: list[Shape]) -> float:
    now = sum(part.stderr**2 for part in parts)
    whole = sum(
        part.stderr**2 * n / shape.ends[-1]
        for part, n, shape in zip(parts, counts, suite, strict=True)
    )
    return whole / now


def main() -> None:
    """Print a line for each gain."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--pairs", type=int, default=40, help="of each gain; without one 15 times as many"
    )
    parser.add_argument(
        "--precision", type=float, help="standard error for which a sample of the items is asked"
    )
    args = parser.parse_args()
    most, suite = args.pairs, shapes(args.precision)
    every, asked = count_requests(shapes()), count_requests(suite)
    items = sum(shape.ends[-1] for shape in suite)
    of_all = f" with {asked / every:.1%} of the requests" if args.precision else ""
    print(f"{len(suite)} datasets, {items:,} items{of_all}")
    print(
        f"{'true gain':>9} {'pairs':>6} {'requests':>9} "
        f"{'of sample ' if args.precision else ''}{'called different':>17} "
        f"{'full':>6} {'naive':>6} {'agrees':>7} {'wrong side':>11}"
    )
    detectable: list[float] = []
    for row, gain in enumerate(GAINS):
        pairs = most * (1 if gain else 15)
        draws = np.random.default_rng(row)
        found = [outcome(draws, suite, gain) for _ in range(pairs)]
        used = float(np.mean([each.requests for each in found]))
        told = Counter(each.early for each in found)
        wrong = sum({each.early, each.full} == {"better", "worse"} for each in found)
        print(
            f"{gain:>9.3f} {pairs:>6} {used / every:>9.1%} "
            f"{f'{used / asked:>9.1%} ' if args.precision else ''}"
            f"{1 - told['no difference'] / pairs:>17.1%} "
            f"{np.mean([each.full != 'no difference' for each in found]):>6.1%} "
            f"{np.mean([each.naive for each in found]):>6.1%} "
            f"{np.mean([each.early == each.full for each in found]):>7.1%} {wrong:>11}"
        )
        detectable += [each.detectable for each in found]
    print(f"detectable at the last look: {np.mean(detectable):.4f}")


if __name__ == "__main__":
    main()
