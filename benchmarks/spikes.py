"""Loss curves: onsets that are found, and false decisions to go back

    python -m benchmarks.spikes 100

Simulated curves of so many trainings of each kind. Their scale, noise, tails, schedule, and the
steps between two reports (1 to 100, averaged or not) are drawn at random. *Found* is the share
whose onset is found within 50 steps; *waited* the median of steps from the onset to the decision.
*False* are decisions before an onset, or on curves without one: healthy ones, with spikes that
pass soon or within some thousand steps, with steps repeated after a restart, with a learning rate
that rises again. Nothing was tuned on these trainings.

`--public DIR` reads logs of healthy trainings, where each decision is false. In 40 logs of 2024
with a line per step of github.com/KellerJordan/modded-nanogpt (257,734 steps) there was none.
"""

import argparse
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from benchmarks._loss_curves import RIGHT, WRONG, Curve, curve
from coordinate_eval.coordinator.training.points import Point
from coordinate_eval.coordinator.training.progress import all_points
from coordinate_eval.coordinator.training.spikes import Detector, Spike

NEAR = 50
"""Steps between an onset and what is found, at most."""


@dataclass
class Counts:
    """What was found on curves of a kind."""

    curves: int = 0
    steps: int = 0
    near: int = 0
    false: int = 0
    waited: list[float] = field(default_factory=list)


def decisions(points: list[Point]) -> list[Spike]:
    """Return each episode for which a training would go back, as it was when that was decided."""
    detector, found = Detector(), list[Spike]()
    was: int | None = None
    for point in points:
        detector.take([point])
        now = detector.open.decided if detector.open is not None else None
        if now is not None and now != was and detector.open is not None:
            found.append(detector.open)
        was = now
    return found


def measure(each: Curve, counts: Counts) -> None:
    """Add what is found on a curve."""
    found = decisions(each.points)
    counts.curves += 1
    counts.steps += each.steps
    if each.onset is None:
        counts.false += len(found)
        return
    counts.false += sum(spike.onset < each.onset - max(NEAR, each.every) for spike in found)
    right = [spike for spike in found if abs(spike.onset - each.onset) <= NEAR]
    counts.near += bool(right)
    if right and right[0].decided is not None:
        counts.waited.append(right[0].decided - each.onset)


def simulated(count: int) -> None:
    """Print a line for each kind of curve."""
    print(f"{'curves':<14}{'steps':>12}{'found':>9}{'waited':>9}{'false':>7}")
    rows = {kind: Counts() for kind in (*WRONG, *RIGHT)}
    for kind, counts in rows.items():
        for seed in range(count):
            measure(curve(kind, 10_000 + seed), counts)
        near = f"{counts.near / counts.curves:.1%}" if kind in WRONG else ""
        waited = f"{median(counts.waited):,.0f}" if counts.waited else ""
        print(
            f"{kind:<14}{counts.steps:>12,}{near:>9}{waited:>9}{counts.false:>7}",
            flush=True,
        )
    wrong = [rows[kind] for kind in WRONG]
    near_all = sum(each.near for each in wrong) / sum(each.curves for each in wrong)
    false, steps = (sum(getattr(each, n) for each in rows.values()) for n in ("false", "steps"))
    print(
        f"onset within {NEAR} steps: {near_all:.1%}; false decisions: {false} in {steps:,} steps, "
        f"{false / steps * 1e5:.2f} in 100,000"
    )


def public(folder: Path) -> None:
    """Print what is found in logs of trainings."""
    steps = trainings = found = 0
    for path in sorted(folder.iterdir()):
        points, _ = all_points([path])
        losses = [point for point in points if point.loss is not None]
        if len(losses) < 100:
            continue
        trainings += 1
        steps += max(point.step for point in losses)
        for spike in decisions(losses):
            found += 1
            print(f"{path.name}: {spike.kind} at {spike.onset:,}, decided at {spike.decided:,}")
    print(f"{trainings} trainings, {steps:,} steps, {found} decisions")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("count", nargs="?", type=int, default=200)
    parser.add_argument("--public", type=Path)
    asked = parser.parse_args()
    if asked.public is not None:
        public(asked.public)
    else:
        simulated(asked.count)
