"""Simulated trainings with known truth: their scores, and those without noise.

Each has checkpoints of 63 datasets with the numbers of items of the base suite's kind (100 to
14,042). Scores have three kinds of noise: that of their items, one of each dataset, and one that
all share; the last two last for some checkpoints (autoregressive).
"""

import math
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from coordinate_eval.coordinator.history.columns import Score
from coordinate_eval.coordinator.history.rows import Row
from coordinate_eval.coordinator.history.series import Series

DATASETS = [f"dataset_{number}" for number in range(63)]
ITEMS = (100, 164, 500, 1000, 1319, 2000, 5000, 14042)
CHECKPOINTS = 80

Floats = npt.NDArray[np.float64]


class Kind(NamedTuple):
    """How the scores of a training go, and their noise."""

    shape: str = "saturating"
    datasets: int = len(DATASETS)
    shared: float = 0.002
    """Standard deviation of the noise of checkpoints that all datasets share."""
    own: float = 0.004
    """That of each dataset."""
    last: float = 0.5
    """Correlation of either between one checkpoint and the next."""
    grows: float = 1.0
    """How many times as large both are at the end as at the beginning."""
    tails: float = math.inf
    """Degrees of freedom of the Student's distribution of both."""
    rise: float = 0.35
    """Most that a dataset gains."""
    irregular: bool = False
    """Steps between checkpoints vary by a factor of up to thirty."""


KINDS: Mapping[str, Kind] = {
    "saturating slowly": Kind(),
    "noise of items alone": Kind(shared=0.0, own=0.0),
    "power law": Kind("power law"),
    "rising fast": Kind(rise=0.6),
    "saturating at once": Kind("at once"),
    "warm-up": Kind("warm-up"),
    "steps up": Kind("steps"),
    "learning-rate decay": Kind("decay"),
    "noise that grows": Kind(grows=4.0, shared=0.001, own=0.004),
    "noise that is shared": Kind(shared=0.004, own=0.01),
    "heavy tails": Kind(tails=3.0),
    "irregular steps": Kind(irregular=True),
    "few datasets": Kind(datasets=4),
}


class Training(NamedTuple):
    """Scores of checkpoints × datasets."""

    steps: Floats
    truth: Floats
    values: Floats
    items: npt.NDArray[np.int64]

    @property
    def errors(self) -> Floats:
        """Return the standard errors of the scores."""
        spread = np.maximum(self.values * (1 - self.values), 1e-6)
        found: Floats = np.sqrt(spread / (self.items - 1))
        return found

    def series(self, upto: int | None = None) -> Series:
        """Return the history of the first checkpoints."""
        rows, errors = [], self.errors
        names = DATASETS[: len(self.items)]
        for step, values, of in list(zip(self.steps, self.values, errors, strict=True))[:upto]:
            scores = {
                name: Score(float(value), float(error), int(count), "acc", True, "")
                for name, value, error, count in zip(names, values, of, self.items, strict=True)
            }
            place = f"/t/step-{int(step)}"
            rows.append(Row("/t", int(step), place, [place], float(step), scores, [], None))
        return Series(rows, names, {}, [])


def training(
    draw: np.random.Generator,
    kind: Kind,
    *,
    checkpoints: int = CHECKPOINTS,
    drop_at: int | None = None,
    drop: float = 0.02,
    stall_at: int | None = None,
) -> Training:
    """Return a training.

    Args:
        drop_at: the checkpoint from which on all scores are lower by `drop`.
        stall_at: the checkpoint after which no score rises.
    """
    times: Floats = np.arange(checkpoints, dtype=float)
    if kind.irregular:
        times = np.cumsum(np.clip(draw.lognormal(0, 1, checkpoints), 0.2, 6))
    levels = _levels(draw, kind, times, stall_at)
    noise = _lasting(draw, kind, (checkpoints, 1), kind.shared)
    noise = noise + _lasting(draw, kind, levels.shape, kind.own)
    grown = np.linspace(1, kind.grows, checkpoints)[:, None]
    if drop_at is not None:
        levels = levels - drop * (np.arange(checkpoints) >= drop_at)[:, None]
    items = draw.choice(ITEMS, kind.datasets)
    values = draw.binomial(items, np.clip(levels + grown * noise, 0.001, 0.999)) / items
    return Training(np.round(1000 * times), levels, values, items)


def _levels(draw: np.random.Generator, kind: Kind, times: Floats, stall_at: int | None) -> Floats:
    """Return the scores without noise: checkpoints × datasets."""
    count = kind.datasets
    start, gain = draw.uniform(0.1, 0.4, count), draw.uniform(0.02, kind.rise, count)
    pace = draw.uniform(5, 60, count)
    middle = float(draw.uniform(0.2, 0.8) * times[-1])
    t = times if stall_at is None else np.minimum(times, times[stall_at])
    t = t[:, None]
    risen = 1 - np.exp(-t / pace)
    if kind.shape == "power law":
        start = start + 0.3
        risen = 1 - (1 + t / draw.uniform(1, 6)) ** -draw.uniform(0.2, 0.6)
    elif kind.shape == "at once":
        risen = 1 - np.exp(-t / draw.uniform(1, 4))
    elif kind.shape == "warm-up":
        risen = 1 / (1 + np.exp(-(t - 0.5 * middle) / draw.uniform(2, 6)))
    elif kind.shape == "steps":
        start = start + draw.uniform(0.02, 0.12, count) * (draw.random(count) < 0.7) * (t >= middle)
        risen = 0.3 * risen
    elif kind.shape == "decay":
        risen = 0.3 * risen + 0.2 * np.clip((t - middle) / draw.integers(1, 6), 0, 1)
    levels: Floats = start + gain * risen
    return levels


def _lasting(draw: np.random.Generator, kind: Kind, shape: tuple[int, int], size: float) -> Floats:
    """Return noise of this standard deviation, of which a part lasts to the next checkpoint."""
    if math.isinf(kind.tails):
        fresh = draw.normal(0, 1, shape)
    else:
        fresh = draw.standard_t(kind.tails, shape) / math.sqrt(kind.tails / (kind.tails - 2))
    fresh = size * fresh
    for place in range(1, shape[0]):
        fresh[place] = kind.last * fresh[place - 1] + math.sqrt(1 - kind.last**2) * fresh[place]
    return fresh
