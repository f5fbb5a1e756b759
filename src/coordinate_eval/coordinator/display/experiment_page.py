"""The scores of trainings as one HTML page: answers first, then curves, changes and what it cost.

D3 and Observable Plot, in `libraries/`, draw the charts from data in the page. It loads nothing,
and runs no script but those whose hashes its policy names. Names come from paths, suites and
runs: in the page they are escaped, and in the data they are JSON without any `<`.
"""

import base64
import contextlib
import hashlib
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import PurePath
from typing import Any, NamedTuple

from coordinate_eval import __version__
from coordinate_eval._format import duration, plain, plural
from coordinate_eval.coordinator.display.drawing import source, template
from coordinate_eval.coordinator.history.alarms import Alarm
from coordinate_eval.coordinator.history.curve import SLOPE_STEPS, Curve, curve_of
from coordinate_eval.coordinator.history.rows import Row
from coordinate_eval.coordinator.history.series import (
    Best,
    Column,
    Series,
    aggregate_columns,
    best,
    mean_column,
)
from coordinate_eval.coordinator.run.claiming.decided import part_lines
from coordinate_eval.errors import UserError

MARK = '<meta name="generator" content="coordinate-eval training">'
"""Marks a page that another one may replace."""

MOST_CHECKPOINTS = 400
"""Checkpoints of a training that are drawn; of more, evenly many."""

_SURE = 1.96  # standard errors of a 95 % interval

_SCRIPTS = ("libraries/d3.min.js", "libraries/plot.umd.min.js", "experiment.js")


class Compared(NamedTuple):
    """The scores of two checkpoints, in words."""

    title: str
    heads: tuple[str, str]
    verdict: str
    """Of the mean; empty if it is not known."""
    told: str
    """The difference of the mean."""
    summary: str
    """In how many datasets the second is better and worse."""
    note: str
    """Advice on reading the differences."""
    rows: Sequence[tuple[str, str, str, str, str, str, str]]
    """Name, both scores, difference, interval, p, and the verdict."""


class Experiment(NamedTuple):
    """The content of the page."""

    found: Series
    """The trainings, and the baseline's if it is one."""
    baseline: str | None
    """The training that the others are drawn against."""
    alarms: Sequence[Alarm]
    compared: Sequence[Compared]
    notes: Sequence[str]


class _Answer(NamedTuple):
    """One of the answers that the page begins with."""

    question: str
    answer: str
    words: Sequence[str]
    tone: str = ""
    """`good` or `bad`."""


class _Column(NamedTuple):
    """A chart: its place in the page's data, and what is said beside it."""

    name: str
    now: str
    told: str


class _Cost(NamedTuple):
    name: str
    scores: int
    missing: int
    gpu_hours: str
    planned: str
    took: str


def render(shown: Experiment) -> str:
    """Return the page."""
    trainings = names_of(sorted(shown.found.rows, key=lambda row: row.training == shown.baseline))
    rows = {
        training: _thinned([row for row in shown.found.rows if row.training == training])
        for training in trainings
    }
    made = _Charts(shown, trainings, rows)
    overview, datasets, costs = (list(of()) for of in (made.overview, made.datasets, made.costs))
    data = {
        "trainings": [
            {"name": name, "baseline": training == shown.baseline}
            for training, name in trainings.items()
        ],
        "columns": made.data,
        "domain": _domain(rows),
        "alarms": [
            {"what": alarm.what, "step": alarm.row.step, "kind": alarm.kind}
            for alarm in shown.alarms
        ],
    }
    scripts = [source(name) for name in _SCRIPTS]
    own = [row for row in shown.found.rows if row.training != shown.baseline]
    names = {training: name for training, name in trainings.items() if training != shown.baseline}
    return template("experiment.html.j2").render(
        mark=MARK,
        version=__version__,
        hashes=" ".join(map(_hash, scripts)),
        scripts=scripts,
        data=_json(data),
        title=", ".join(names.values()),
        subtitle=_subtitle(shown, names, own),
        answers=[*_answers(shown, own, names)],
        alarms=[_alarm(alarm, names) for alarm in reversed(shown.alarms)],
        notes=[
            *shown.notes,
            *part_lines((row.name, row.decided) for row in own),
            *_thinned_words(shown.found.rows, rows),
        ],
        legend=_legend(shown, trainings),
        overview=overview,
        datasets=datasets,
        costs=costs,
        columns=made.told,
        comparisons=shown.compared,
        cost=_cost_words(own),
        checkpoints=[_cost(row, names) for row in sorted(own, key=lambda row: -row.created)],
    )


def names_of(rows: Sequence[Row]) -> dict[str, str]:
    """Return a short name for each training that no other one has."""
    trainings = list(dict.fromkeys(row.training for row in rows))
    short = [PurePath(training).name for training in trainings]
    return {
        training: training if short.count(name) > 1 or not name else name
        for training, name in zip(trainings, short, strict=True)
    }


class _Charts:
    """The charts, as data for the script and as words."""

    def __init__(
        self, shown: Experiment, trainings: Mapping[str, str], rows: Mapping[str, Sequence[Row]]
    ) -> None:
        self._found, self._names, self._rows = shown.found, trainings, rows
        self._baseline = shown.baseline
        self.data: list[dict[str, Any]] = []
        self.told: list[_Column] = []

    def overview(self) -> Iterator[tuple[str, list[int]]]:
        """Yield headings with the places of their charts: the mean, aggregates and groups."""
        found = self._found
        if (mean := mean_column(found, found.rows)) is not None:
            yield "", [self._add(mean, f"mean of {plural(len(mean.datasets), 'dataset')}")]
        if aggregates := aggregate_columns(found):
            of = [f"of {plural(len(each.datasets), 'dataset')}" for each in aggregates]
            yield "Aggregates", [self._add(*each) for each in zip(aggregates, of, strict=True)]
        means = []
        for group, members in self._groups().items():
            if group and len(members) > 1 and (of := _averaged(found, members)):
                means.append(self._add(Column(group, of, mean=True), f"mean of {len(of)}"))
        if means:
            yield "Groups", means

    def datasets(self) -> Iterator[tuple[str, list[int]]]:
        """Yield groups with the places of the charts of their datasets."""
        groups = self._groups()
        for group, members in sorted(groups.items(), key=lambda each: not each[0]):
            heading = group or ("Other datasets" if len(groups) > 1 else "")
            yield heading, [self._add(Column(n, [n], mean=False), "", group) for n in members]

    def _groups(self) -> dict[str, list[str]]:
        groups: dict[str, list[str]] = {}
        for name in self._found.datasets:
            groups.setdefault(self._found.groups.get(name, ""), []).append(name)
        return groups

    def _add(self, column: Column, of: str, group: str = "") -> int:
        drawn = []
        curves: list[Curve | None] = []
        for number, rows in enumerate(self._rows.values()):
            every = zip(rows, column.values(rows), strict=True)
            told = [(r, v.value) for r, v in every if r.step is not None and v is not None]
            known = [row for row, _ in told]
            curve = curve_of(column, known)
            curves.append(curve)
            drawn.append(_series(number, told, curve, [column.error(row) for row in known]))
        self._place(column.name, group, drawn, curves, of)
        return len(self.data) - 1

    def _place(
        self,
        name: str,
        group: str,
        drawn: list[dict[str, Any]],
        curves: Sequence[Curve | None],
        of: str,
    ) -> None:
        """Add a chart; the words are of the first training that has scores."""
        chief = next((one for one in drawn if one["steps"]), drawn[0])
        curve = curves[chief["training"]] if curves else None
        steps, values = chief["steps"], [each for each in chief["values"] if each is not None]
        told = f"{curve.goes} per {SLOPE_STEPS:,} steps" if curve else ""
        jumps = "; ".join(curve.jumps) if curve else ""
        summary = f"{plain(name)}: {plural(len(values), 'checkpoint')}"
        if values:
            summary += f" from step {min(steps):,} to {max(steps):,}, {values[0]:.4g} to "
            summary += f"{values[-1]:.4g}"
        words = [summary, *([f"smoothed now {curve.now}", told] if curve else []), jumps]
        self.data.append(
            {
                "name": name,
                "group": group,
                "series": drawn,
                "summary": ". ".join(filter(None, words)),
                "zero": False,
            }
        )
        now = curve.now if curve else f"{values[-1]:.4g}" if values else "no score"
        if len([training for training in self._names if training != self._baseline]) > 1:
            now = f"{list(self._names.values())[chief['training']]}: {now}"
        self.told.append(_Column(name, now, "; ".join(filter(None, [of, told, jumps]))))

    def costs(self) -> Iterator[int]:
        """Yield the places of charts of GPU hours, and of actual over planned time."""
        for name, of in (("GPU hours", _gpu_hours), ("time taken, over planned", _over_plan)):
            drawn = []
            for number, rows in enumerate(self._rows.values()):
                every = [(row, of(row)) for row in rows if row.step is not None]
                told = [(row, value) for row, value in every if value is not None]
                drawn.append(_series(number, told))
            if not any(one["steps"] for one in drawn):
                continue
            self._place(name, "", drawn, [], "")
            self.data[-1] |= {"zero": True, "dashed": True}
            yield len(self.data) - 1


def _gpu_hours(row: Row) -> float | None:
    return None if row.gpu_seconds is None else row.gpu_seconds / 3600


def _over_plan(row: Row) -> float | None:
    """Return the time of a run over what its plan said."""
    if not row.planned_seconds or row.seconds is None:
        return None
    return row.seconds / row.planned_seconds


def _series(
    training: int,
    told: Sequence[tuple[Row, float]],
    curve: Curve | None = None,
    errors: Sequence[float] = (),
) -> dict[str, Any]:
    """Return the points of a training; smoothed ones are null where a value is no number."""
    finite = [math.isfinite(value) for _, value in told]
    made: dict[str, Any] = {
        "training": training,
        "steps": [row.step for row, _ in told],
        "values": [_short(value) for _, value in told],
        "errors": [_short(error) for error in errors or [0.0] * len(told)],
        "changes": [] if curve is None else [change._asdict() for change in curve.changes],
    }
    if curve is not None:
        for name in ("level", "low", "high"):
            smoothed = iter(getattr(curve, name))
            made[name] = [_short(next(smoothed)) if yes else None for yes in finite]
    return made


def _averaged(found: Series, members: Sequence[str]) -> list[str]:
    """Return the members whose mean says something."""
    mean = mean_column(found._replace(datasets=members), found.rows)
    return list(mean.datasets) if mean is not None else []


def _short(value: float) -> float | None:
    return float(f"{value:.5g}") if math.isfinite(value) else None


def _thinned(rows: Sequence[Row]) -> list[Row]:
    """Return at most so many rows that are drawn, the newest among them."""
    step = -(-len(rows) // MOST_CHECKPOINTS) or 1
    return list(reversed(rows[::-1][::step]))


def _thinned_words(every: Sequence[Row], rows: Mapping[str, Sequence[Row]]) -> list[str]:
    drawn = sum(map(len, rows.values()))
    if drawn == len(every):
        return []
    return [f"charts show {drawn:,} of {len(every):,} checkpoints, evenly chosen"]


def _domain(rows: Mapping[str, Sequence[Row]]) -> list[int]:
    steps = [row.step for each in rows.values() for row in each if row.step is not None]
    return (
        [min(steps), max(steps)]
        if steps and min(steps) < max(steps)
        else [0, 1 + max(steps, default=0)]
    )


def _subtitle(shown: Experiment, names: Mapping[str, str], own: Sequence[Row]) -> str:
    steps = [row.step for row in own if row.step is not None]
    hours = sum(row.gpu_seconds or 0.0 for row in own) / 3600
    facts = [
        ", ".join(names),
        plural(len(own), "checkpoint") + (f" to step {max(steps):,}" if steps else ""),
        plural(len(shown.found.datasets), "dataset"),
        *([f"{hours:,.1f} GPU hours"] if hours else []),
        *([f"against {shown.baseline}"] if shown.baseline is not None else []),
    ]
    return " · ".join(facts)


def _answers(shown: Experiment, own: Sequence[Row], names: Mapping[str, str]) -> Iterator[_Answer]:
    """Yield whether the newest is better, which checkpoint is the best, and what is wrong."""
    for each in shown.compared:
        tone = {"better": "good", "worse": "bad"}.get(each.verdict, "")
        answer = each.verdict.capitalize() or "Not known"
        yield _Answer(each.title, answer, [each.told, each.summary], tone)
    if not shown.compared:
        yield _Answer("The last checkpoint against the one before", "One checkpoint so far", [])
    found = shown.found._replace(rows=own)
    by = mean_column(found, own)
    if by is None and len(found.datasets) == 1:
        by = Column(found.datasets[0], found.datasets, mean=False)
    if by is not None:
        with contextlib.suppress(UserError):  # no checkpoint has it
            yield _best(best(found, by), by, names)
    newest = {row.training: row for row in own if row.step is not None}.values()
    now = [alarm for alarm in reversed(shown.alarms) if alarm.last in newest]
    past = []
    if earlier := [alarm for alarm in shown.alarms if alarm not in now]:
        past.append(f"{plural(len(earlier), 'earlier alarm')}, {_alarm(earlier[-1], names)[0]}")
    question = "Is something wrong?"
    if not now:
        yield _Answer(question, "No alarm now", past, "good")
        return
    kinds = dict.fromkeys(f"{alarm.kind}: {alarm.what}" for alarm in now[:3])
    answer = "; ".join(kinds)
    more = [f"and {len(now) - 3:,} more"] if len(now) > 3 else []
    since = [f"{_named(alarm.row, names)}: {_alarm(alarm, names)[1]}" for alarm in now[:1]]
    yield _Answer(question, answer[0].upper() + answer[1:], [*since, *more, *past], "bad")


def _best(found: Best, by: Column, names: Mapping[str, str]) -> _Answer:
    """Return the best checkpoint, and how many may be as good."""
    of = f" of {len(by.datasets)} datasets" if by.mean else ""
    words = [f"{by.name}{of} {found.value.value:.4f}"]
    if error := by.known_error(found.row):
        words[0] += f" ±{_SURE * error:.4f}"
    if found.close:
        last = max((row for row, _ in found.close), key=lambda row: row.created)
        newer = last.created > found.row.created
        newest = f"the newest is {_named(last, names)}" if newer else "it is the newest of them"
        words.append(f"{plural(len(found.close), 'other')} may be as good; {newest}")
    return _Answer("Best checkpoint", _named(found.row, names), words)


def _named(row: Row, names: Mapping[str, str]) -> str:
    return f"{names.get(row.training, '')}, {row.name}" if len(names) > 1 else row.name


def _legend(shown: Experiment, trainings: Mapping[str, str]) -> list[tuple[str, str]]:
    if len(trainings) < 2:
        return []
    return [
        (
            "var(--faint)" if training == shown.baseline else f"var(--line{number % 8})",
            f"{name} (baseline)" if training == shown.baseline else name,
        )
        for number, (training, name) in enumerate(trainings.items())
    ]


def _alarm(alarm: Alarm, names: Mapping[str, str]) -> tuple[str, str]:
    """Return where an alarm is and what it is about, and its evidence."""
    until = "" if alarm.last == alarm.row else f", until {alarm.last.name}"
    good = f"; the last good one is {alarm.good.name}" if alarm.good else ""
    what = f"{_named(alarm.row, names)}: {alarm.what}: {alarm.kind}"
    return what, f"{alarm.words}{until}{good}"


def _cost(row: Row, names: Mapping[str, str]) -> _Cost:
    return _Cost(
        name=_named(row, names),
        scores=len(row.scores),
        missing=len(row.missing),
        gpu_hours="" if (hours := _gpu_hours(row)) is None else f"{hours:.2f}",
        planned="" if row.planned_seconds is None else duration(row.planned_seconds),
        took="" if row.seconds is None else duration(row.seconds),
    )


def _cost_words(own: Sequence[Row]) -> str:
    known = [row.gpu_seconds for row in own if row.gpu_seconds is not None]
    if not known:
        return "No GPU time is known of these checkpoints."
    hours = sum(known) / 3600
    words = f"{hours:,.1f} GPU hours, {hours / len(known):,.2f} for each checkpoint on average."
    both = [row.seconds / row.planned_seconds for row in own if row.seconds and row.planned_seconds]
    if both:
        middle = sorted(both)[len(both) // 2]
        words += f" From the plan to the last score runs took {middle:.2f} times the planned time "
        words += f"(median of {len(both):,})."
    return words


def _json(value: object) -> str:
    """Return JSON that ends no script element and opens no comment."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _hash(script: str) -> str:
    digest = hashlib.sha256(script.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"
