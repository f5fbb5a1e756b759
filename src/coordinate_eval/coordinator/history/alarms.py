"""Alarms: scores of a checkpoint that its training's past does not explain.

Alarms of one checkpoint, over all datasets, share one rate of false alarms.
"""

import math
from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple

import numpy as np

from coordinate_eval._format import plural
from coordinate_eval.coordinator.history.columns import error_of
from coordinate_eval.coordinator.history.falls import Floats, falls
from coordinate_eval.coordinator.history.rows import Row
from coordinate_eval.coordinator.history.series import Column, Series, mean_column
from coordinate_eval.coordinator.history.stalls import stalls

_OF_MEANS = 0.0003
"""Probability that a mean falls at a healthy checkpoint, about. There are two means."""

_OF_DATASETS = 0.0004
"""Probability that any dataset falls at a healthy checkpoint, about."""

_OWN_NOISE = 0.01  # of a dataset between two saves, beside that of its items
_SETTLED = 10  # checkpoints within which two means say the same
_NEWEST = 200  # checkpoints whose alarms are looked for

Kind = Literal["collapse", "drop", "stall", "not a number", "missing", "degenerate"]


class Alarm(NamedTuple):
    """A fact about a checkpoint that a person should look at."""

    kind: Kind
    what: str
    """The dataset, or `mean` for the mean over datasets."""
    row: Row
    words: str
    """The evidence."""
    good: Row | None
    """The last checkpoint before it without an alarm of this kind."""
    last: Row
    """The newest checkpoint that it is true of."""


def alarms(found: Series) -> list[Alarm]:
    """Return the alarms of one training's checkpoints, by step. Each is given where it began."""
    rows = [row for row in found.rows if row.step is not None][-_NEWEST:]
    raised = [*_falls(found, rows), *_said(rows)]
    places = {row.checkpoint: place for place, row in enumerate(rows)}
    return sorted(raised, key=lambda alarm: (places[alarm.row.checkpoint], alarm.what != "mean"))


def _falls(found: Series, rows: Sequence[Row]) -> Iterator[Alarm]:
    """Yield collapses and drops: of datasets and of their mean, each where it began.

    The mean is looked at twice: as it is, and with precise datasets counting for more. The first
    has more noise, and the second misses what happens to small datasets alone.
    """
    single = [_of_dataset(rows, name) for name in found.datasets]
    for curve in single:
        yield from _of_curve(curve, _OF_DATASETS / len(single))
    if (together := mean_column(found, rows)) is not None:
        places = {row.checkpoint: place for place, row in enumerate(rows)}
        said = -_SETTLED
        for weighted in (False, True):
            for alarm in _of_curve(_of_mean(rows, together, by_precision=weighted), _OF_MEANS):
                place = places[alarm.row.checkpoint]
                if abs(place - said) >= _SETTLED:
                    yield alarm
                    said = place
        yield from _stalls(_of_mean(rows, together))


class _Point(NamedTuple):
    row: Row
    value: float
    stderr: float | None


class _Curve(NamedTuple):
    """The values of a dataset or mean, by step."""

    what: str
    how: str
    """Words after a value."""
    sign: int
    """1 where more is better, else -1."""
    points: Sequence[_Point]


def _of_dataset(rows: Sequence[Row], name: str) -> _Curve:
    scores = [(row, row.score(name)) for row in rows if name in row.scores]
    sign = -1 if any(not score.higher_is_better for _, score in scores) else 1
    points = [_Point(r, s.value, error_of(s) or None) for r, s in scores if math.isfinite(s.value)]
    return _Curve(name, "", sign, points)


def _of_mean(rows: Sequence[Row], together: Column, *, by_precision: bool = False) -> _Curve:
    every = zip(rows, together.values(rows), strict=True)
    whole = [row for row, value in every if value is not None]
    weights = dict.fromkeys(together.datasets, 1.0)
    if by_precision:
        for name in weights:
            errors = sorted(error_of(row.score(name)) for row in whole)
            weights[name] = 1 / (errors[len(errors) // 2] ** 2 + _OWN_NOISE**2) if errors else 1.0
    total = sum(weights.values())
    points = []
    for row in whole:
        parts = [(weight / total, row.score(name)) for name, weight in weights.items()]
        value = sum(part * score.value for part, score in parts)
        error = math.hypot(*(part * error_of(score) for part, score in parts))
        points.append(_Point(row, value, error))
    how = " with precise datasets counting for more" if by_precision else ""
    return _Curve("mean", how, 1, points)


def _of_curve(curve: _Curve, rate: float) -> Iterator[Alarm]:
    """Yield the falls of a curve. `rate`: the probability that one begins by chance."""
    points = curve.points
    errors = np.array([point.stderr or 0.0 for point in points], dtype=float)
    errors[~np.isfinite(errors)] = 0.0
    for fall in falls(*_turned(curve), errors, rate):
        row, value, error = points[fall.first]
        shown = "" if error is None else f" ±{error:.4f}"
        expected = curve.sign * fall.expected
        words = f"{value:.4f}{shown}{curve.how}, and {expected:.4f} was expected"
        good = points[fall.first - 1].row
        yield Alarm(fall.kind, curve.what, row, words, good, points[fall.last].row)


def _stalls(curve: _Curve) -> Iterator[Alarm]:
    """Yield the stalls of a mean, each at the checkpoint where it became clear."""
    steps, values = _turned(curve)
    for stall in stalls(steps, values):
        told, first, last = (
            curve.points[place].row for place in (stall.told, stall.first, stall.last)
        )
        apart = (steps[stall.told] - steps[stall.first]) / (stall.told - stall.first)
        now, before, error = (apart * each for each in (stall.now, stall.before, stall.error))
        words = (
            f"it has risen by {now:.4f} ±{error:.4f} a checkpoint since {first.name}, and by "
            f"{before:.4f} before"
        )
        yield Alarm("stall", curve.what, told, words, first, last)


def _turned(curve: _Curve) -> tuple[Floats, Floats]:
    """Return the steps of a curve, and its values, turned so that more is better."""
    steps = np.array([point.row.step or 0 for point in curve.points], dtype=float)
    return steps, curve.sign * np.array([point.value for point in curve.points], dtype=float)


def _said(rows: Sequence[Row]) -> list[Alarm]:
    """Return what scores say of themselves: no numbers, none at all, degenerate answers."""
    found: list[Alarm] = []
    going_on: dict[tuple[Kind, str], int] = {}
    before: Row | None = None
    for row in rows:
        now: dict[tuple[Kind, str], str] = {}
        for name in row.scores:
            score = row.score(name)
            if not math.isfinite(score.value):
                now["not a number", name] = f"its {score.metric} is {score.value}"
        if row.missing and row.ended:
            shown = ", ".join(row.missing[:5])
            words = f"{plural(len(row.missing), 'score')} missing: {shown}"
            now["missing", row.missing[0]] = words
        for name, told in row.warnings.items():
            words = told.removeprefix(f"{name}: ").replace(f"; {name}: ", "; ")
            now["degenerate", name] = words
        for (kind, name), words in now.items():
            if (kind, name) in going_on:
                place = going_on[kind, name]
                found[place] = found[place]._replace(last=row)
            else:
                going_on[kind, name] = len(found)
                found.append(Alarm(kind, name, row, words, before, row))
        going_on = {key: place for key, place in going_on.items() if key in now}
        before = row
    return found
