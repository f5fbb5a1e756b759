"""Alarms: scores of a checkpoint that its training's past does not explain.

A score is compared with earlier scores. These tell what to expect, and their scatter tells how far
off that may be. Alarms of one checkpoint, over all datasets, share one rate of false alarms.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from coordinate_eval._format import plural
from coordinate_eval.coordinator.history.columns import error_of
from coordinate_eval.coordinator.history.rows import Row
from coordinate_eval.coordinator.history.series import Column, Series, mean_column

FALSE_RATE = 0.006
"""Most checkpoints of a healthy training with a false alarm, as a share."""

_LEVEL = 4  # newest scores whose mean is the level now
_TREND = 12  # newest scores through which a line goes on
_SCATTER = 24  # newest errors of that line, which tell its usual error
_OF_TAILS = 12  # of them, as many count for a dataset alone: its errors have heavier tails
_TOGETHER = (1, 2)  # newest scores that are tested together
_SPREAD = 1.4826  # of a normal distribution, over its median absolute deviation
_OWN_NOISE = 0.01  # of a dataset between two saves, beside that of its items
_SURE = 5.0  # standard errors of a collapse, which needs no past to be sure
_SETTLED = 10  # checkpoints after which a lower level is the level
_NEWEST = 200  # checkpoints whose alarms are looked for

Kind = Literal["collapse", "drop", "not a number", "missing", "degenerate"]


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


@dataclass
class _Fall:
    """Scores that are worse than expected, one after another."""

    place: int
    kind: Kind
    expected: float
    last: int


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
    means: list[_Curve] = []
    if (together := mean_column(found, rows)) is not None:
        means = [_of_mean(rows, together), _of_mean(rows, together, by_precision=True)]
    shared = FALSE_RATE / (2 if means else 1)
    for curves in (single, means):
        last: dict[str, int] = {}
        for curve in curves:
            for fall in _scan(
                curve, shared / len(curves), _SCATTER if curves is means else _OF_TAILS
            ):
                row, value, error = curve.points[fall.place]
                place = rows.index(row)
                if abs(place - last.get(curve.what, -_SETTLED)) < _SETTLED and curves is means:
                    continue  # the other mean says the same
                last[curve.what] = place
                shown = "" if error is None else f" ±{error:.4f}"
                words = f"{value:.4f}{shown}{curve.how}, and {fall.expected:.4f} was expected"
                good = curve.points[fall.place - 1].row
                until = curve.points[fall.last].row
                yield Alarm(fall.kind, curve.what, row, words, good, until)


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


def _scan(curve: _Curve, rate: float, most: int) -> list[_Fall]:
    """Return the falls of a curve.

    Args:
        rate: the probability that one begins by chance.
        most: errors that tell the usual one as if they were normal, at most.
    """
    from scipy.special import stdtr

    past: list[tuple[float, float]] = []  # values, turned so that more is better; errors
    errors: dict[int, list[float]] = {newest: [] for newest in _TOGETHER}  # of predictions
    falls: list[_Fall] = []
    fallen = 0

    def fell(place: int, kind: Kind, expected: float) -> None:
        if fallen:
            falls[-1].last = place
        else:
            falls.append(_Fall(place, kind, curve.sign * expected, place))

    steps: list[int] = []  # of the past
    for place, point in enumerate(curve.points):
        step = point.row.step or 0
        now, noise = curve.sign * point.value, point.stderr or 0.0
        level, level_noise = _level(past) if past else (now, noise)
        if _is_collapse(now, level, math.hypot(noise, level_noise), curve.sign):
            fell(place, "collapse", level)
            fallen += 1
            continue
        found: dict[int, float] = {}
        dropped: float | None = None
        for newest in _TOGETHER:
            before = [each for each, _ in past[: len(past) + 1 - newest]]
            if len(before) < _LEVEL:
                continue
            first = max(0, len(before) - _TREND)
            then = sum([*steps[len(before) :], step]) / newest
            line = _line(steps[first : len(before)], before[first:], then)
            together = [now, *(each for each, _ in past[len(before) :])]
            found[newest] = sum(together) / newest - line
            # While scores rise fast, a line overshoots: a score that rises has not dropped.
            if len(errors[newest]) >= _LEVEL and now < past[-1][0]:
                scale = _usual(errors[newest][-_SCATTER:])
                freedom = min(len(errors[newest]), most) - 1
                if scale and stdtr(freedom, found[newest] / scale) < rate / len(_TOGETHER):
                    dropped = line
        if dropped is not None:
            fell(place, "drop", dropped)
            fallen += 1
            if fallen < _SETTLED:
                continue
            past.clear()
            steps.clear()
        fallen = 0
        for newest, error in found.items():
            errors[newest].append(error)
        past.append((now, noise))
        steps.append(step)
    return falls


def _is_collapse(now: float, expected: float, noise: float, sign: int) -> bool:
    """Return whether a score is far from anything that a training does between two saves.

    A share is less than half of what is expected, a perplexity more than three times that.
    """
    if sign > 0:
        return 0 < expected <= 1 and now < expected / 2 and expected - now > _SURE * (noise or 0.02)
    return expected < 0 and now < 3 * expected and expected - now > _SURE * noise


def _level(past: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Return the mean of the newest scores, and its standard error."""
    newest = past[-_LEVEL:]
    return (
        sum(value for value, _ in newest) / len(newest),
        math.hypot(*(error for _, error in newest)) / len(newest),
    )


def _line(steps: Sequence[int], values: Sequence[float], at: float) -> float:
    """Return where the line through the values at these steps is at another step."""
    middle, mean = sum(steps) / len(steps), sum(values) / len(values)
    spread = sum((step - middle) ** 2 for step in steps)
    if not spread:
        return mean
    slope = sum((s - middle) * (v - mean) for s, v in zip(steps, values, strict=True)) / spread
    return mean + slope * (at - middle)


def _usual(errors: Sequence[float]) -> float:
    """Return the root mean square of errors, in which outliers count as three usual ones."""
    sizes = sorted(map(abs, errors))
    most = 3 * _SPREAD * sizes[len(sizes) // 2]
    return math.sqrt(sum(min(size, most) ** 2 for size in sizes) / len(sizes))


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
