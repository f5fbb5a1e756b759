"""Alarms of simulated trainings with known truth

    python benchmarks/alarms.py

Each training has 80 checkpoints of 63 datasets with 100 to 14,042 items. Scores have the noise of
their items, one of each dataset (standard deviation 0.004), and one that all share (0.002). Half
of the last two lasts to the next checkpoint (autoregressive, 0.5). Kinds are named by what differs
from that: *noise that grows* is four times as large at the end, *noise that is shared* is 0.004
and 0.01 of each dataset, *heavy tails* are Student's with three degrees of freedom.

*False*: checkpoints of healthy trainings at which an alarm of any kind and dataset begins.
*Drop found*: of drops of all datasets by two points, those that the mean has an alarm for when
nothing later is known than the checkpoint after it. *Oracle*: what a test with 0.3 % of false
alarms finds that knows the curve, and the size and shape of the noise.

*Stall found*: of trainings in which no score rises any more from a checkpoint between the 25th and
the 60th on, those of which that is told within 20 checkpoints. *Points* is the median of how much
the mean would have risen in these 20: where it is little, nothing has stopped.
"""

import argparse
import math
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks._trainings import CHECKPOINTS, KINDS, Floats, Kind, Training, training
from coordinate_eval.coordinator.history.alarms import alarms

ORACLE = 0.003
"""False alarms of the oracle, as a share of checkpoints."""

PATIENCE = 20
"""Checkpoints within which a stall is to be found."""


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trainings", type=int, default=100, help="simulated, of each kind")
    parser.add_argument("--points", type=float, default=2.0, help="size of the drops")
    asked = parser.parse_args()
    table = Table(
        "training", "false, %", "stalls of these", f"drop of {asked.points:g} points found, %",
        "oracle, %", "stall found, %", "points",
        title=f"alarms of {asked.trainings} trainings of each kind",
    )  # fmt: skip
    for name, kind in KINDS.items():
        table.add_row(name, *_figures(kind, asked.trainings, asked.points / 100))
    Console(width=100).print(table)


def _figures(kind: Kind, count: int, drop: float) -> Sequence[str]:
    """Return the figures of a kind: what is false, what is found, and what could be."""
    draw = np.random.default_rng(0)
    healthy = [training(draw, kind) for _ in range(count)]
    told = [alarms(each.series()) for each in healthy]
    false = sum(len({alarm.row.step for alarm in each}) for each in told)
    stalls = sum(alarm.kind == "stall" for each in told for alarm in each)
    bounds = _bounds(np.concatenate([_apart(kind, each) for each in healthy], axis=1))
    drops = [_drop(draw, kind, drop, bounds) for _ in range(count)]
    found, oracle = (sum(each) for each in zip(*drops, strict=True))
    stopped = [_stall(draw, kind) for _ in range(count)]
    rest = 100 * float(np.median([risen for _, risen in stopped]))
    share = 100 / count
    return (
        f"{share * false / CHECKPOINTS:.2f}",
        f"{share * stalls / CHECKPOINTS:.2f}",
        f"{share * found:.0f}",
        f"{share * oracle:.0f}",
        f"{share * sum(said for said, _ in stopped):.0f}",
        f"{rest:.1f}",
    )


def _drop(draw: np.random.Generator, kind: Kind, drop: float, bounds: Floats) -> tuple[bool, bool]:
    """Return whether a drop is found in time, and whether the oracle finds it."""
    at = int(draw.integers(15, CHECKPOINTS - 5))
    fallen = training(draw, kind, drop_at=at, drop=drop)
    known = fallen.series(at + 2)
    begun = {row.step for row in known.rows[at:]}
    told = alarms(known)
    found = any(a.kind == "drop" and a.what == "mean" and a.row.step in begun for a in told)
    apart = _apart(kind, fallen) - drop / _size(kind, fallen)[at]
    oracle = (apart[0, at : at + 2] < bounds[0]).any() or apart[1, at + 1] < bounds[1]
    return found, bool(oracle)


def _stall(draw: np.random.Generator, kind: Kind) -> tuple[bool, float]:
    """Return whether a stall is found in time, and how much the mean would have risen."""
    at = int(draw.integers(24, CHECKPOINTS - PATIENCE))
    state = draw.bit_generator.state
    stopped = training(draw, kind, stall_at=at)
    draw.bit_generator.state = state
    healthy = training(draw, kind).truth.mean(axis=1)
    begun = {row.step for row in stopped.series().rows[at + 1 :]}
    told = alarms(stopped.series(at + 1 + PATIENCE))
    found = any(alarm.kind == "stall" and alarm.row.step in begun for alarm in told)
    return found, float(healthy[at + PATIENCE] - healthy[at])


def _size(kind: Kind, found: Training) -> Floats:
    """Return the standard deviation of the mean's noise at each checkpoint."""
    datasets = found.values.shape[1]
    grown = np.linspace(1, kind.grows, len(found.values))
    size = grown * math.hypot(kind.shared, kind.own / math.sqrt(datasets))
    known: Floats = np.hypot(size, np.sqrt((found.errors**2).sum(axis=1)) / datasets)
    return known


def _apart(kind: Kind, found: Training) -> Floats:
    """Return how far the mean is from its truth, alone and with the one before, in such units."""
    apart = (found.values.mean(axis=1) - found.truth.mean(axis=1)) / _size(kind, found)
    return np.stack([apart, (apart + np.roll(apart, 1)) / 2])


def _bounds(apart: Floats) -> Floats:
    """Return the bounds below which a mean lies, or two together, by chance in so many cases."""
    found: Floats = np.quantile(apart, ORACLE / 2, axis=1)
    return found


if __name__ == "__main__":
    main()
