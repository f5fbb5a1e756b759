"""Simulated loss curves, with what is wrong with each and since when."""

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass

from coordinate_eval.coordinator.training.points import Point

WRONG = ("explosion", "climb", "jump", "not a number", "slow jump")
"""Kinds that a training has to go back for."""

RIGHT = ("healthy", "spikes", "slow spikes", "restart", "new rate")
"""Kinds that a training goes on from: without anything, with spikes that pass (halved in 2 to 55
steps, the slow ones in 35 to 700), with steps that are repeated after a restart, with a learning
rate that rises again."""


@dataclass(frozen=True)
class Curve:
    """Reports of a simulated training.

    Args:
        kind: of `WRONG` or `RIGHT`.
        points: its reports.
        steps: that it made.
        onset: the first step that went wrong; None if none did.
        every: steps between two reports.
    """

    kind: str
    points: list[Point]
    steps: int
    onset: int | None
    every: int


def curve(kind: str, seed: int, steps: int = 4000) -> Curve:
    """Return a curve whose scale, noise, schedule and logging are drawn at random."""
    draw = random.Random(f"{kind} {seed}")  # noqa: S311 - a simulation
    every = draw.choice([1, 1, 5, 10, 10, 20, 50, 100])
    steps *= max(1, every // 10)
    averaged = draw.random() < 0.5
    scale = 10 ** draw.uniform(-2, 2)
    onset = draw.randrange(steps // 3, steps - max(1000, 20 * every)) if kind in WRONG else None
    base = list(_base(draw, steps, kind))
    bad = list(_wrong(draw, kind, steps, onset))
    heavy, size = draw.random() < 0.4, 10 ** draw.uniform(-2.5, -1)
    reports: list[Point] = []
    norm = draw.uniform(0.1, 2) if draw.random() < 0.5 else None
    sums: list[float] = []
    for step in range(1, steps + 1):
        noise = draw.gauss(0, size)
        if heavy:
            noise /= math.sqrt(max(1e-3, sum(draw.gauss(0, 1) ** 2 for _ in range(3)) / 3))
        value = base[step - 1] + bad[step - 1]
        sums.append(scale * (value + noise * min(value, 10) / 3))
        if step % every == 0:
            loss = sum(sums) / len(sums) if averaged else sums[-1]
            sums = []
            wrong = bad[step - 1] if math.isfinite(bad[step - 1]) else 100.0
            g = None if norm is None else norm * math.exp(draw.gauss(0, 0.2)) * (1 + 3 * wrong)
            reports.append(Point(step, loss, g))
    if kind == "restart":
        at = draw.randrange(len(reports) // 2, len(reports))
        back = max(0, at - draw.randrange(3, 60))
        reports = reports[:at] + reports[back:]
    return Curve(kind, reports, steps, onset, every)


def _base(draw: random.Random, steps: int, kind: str) -> Iterator[float]:
    """Yield the loss of a healthy training: it falls fast, then slowly, then with the rate."""
    start, end = draw.uniform(8, 12), draw.uniform(1.5, 3)
    power, warm = draw.uniform(0.2, 0.6), draw.randrange(5, 200)
    decay, gain = draw.uniform(0.7, 1.0), draw.uniform(0, 0.3)
    again = draw.uniform(0.5, 0.8) if kind == "new rate" else 2.0
    for step in range(1, steps + 1):
        share = step / steps
        value = end + (start - end) * (1 + step / warm) ** -power
        if share > decay:
            value -= gain * (share - decay) / (1 - decay)
        if share > again:
            value *= 1 + 0.01 * math.exp(-(share - again) * 5)
        yield value


def _wrong(draw: random.Random, kind: str, steps: int, onset: int | None) -> Iterator[float]:
    """Yield what is added to the loss of each step."""
    size = draw.uniform(0.3, 3)
    time = draw.uniform(10, 100)
    spikes = [
        (
            draw.randrange(300, steps),
            draw.uniform(0.2, 5),
            draw.randrange(1, 20),
            draw.uniform(3, 80),
        )
        for _ in range(draw.randrange(1, 6) if kind == "spikes" else 0)
    ]
    if kind == "slow spikes":
        at = draw.randrange(steps // 3, steps // 2)
        spikes = [(at, draw.uniform(0.2, 5), draw.randrange(1, 20), 10 ** draw.uniform(1.7, 3))]
    for step in range(1, steps + 1):
        added = 0.0
        for at, high, rise, fall in spikes:
            if step >= at:
                up = min(1.0, (step - at + 1) / rise)
                added += high * up * math.exp(-max(0, step - at - rise) / fall)
        if onset is not None and step >= onset:
            since = step - onset + 1
            if kind == "not a number":
                added = math.nan
            elif kind == "explosion":
                added = min(20.0, 0.05 * math.exp(min(50.0, since / time * 4)))
            elif kind == "climb":
                added = min(8.0, size * since / time)
            elif kind == "jump":
                added = size
            elif kind == "slow jump":
                added = size * (1 - math.exp(-since / time))
        yield added
