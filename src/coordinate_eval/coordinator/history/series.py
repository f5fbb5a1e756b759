"""Series of scores over the checkpoints of a training: which runs count, columns, the best one."""

import itertools
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import NamedTuple

from coordinate_eval._format import plural
from coordinate_eval.coordinator.history.columns import (
    error_of,
    in_columns,
    picker,
)
from coordinate_eval.coordinator.history.measured import Measured
from coordinate_eval.coordinator.history.rows import Row, by_columns, rows_of
from coordinate_eval.coordinator.inputs.checkpoints import remote
from coordinate_eval.coordinator.inputs.checkpoints.saved import name_before_step
from coordinate_eval.coordinator.report.main_metric import Member, why_unlike
from coordinate_eval.errors import UserError
from coordinate_eval.records import Aggregate

_MEAN = re.compile(r"\s*mean\s*\((.*)\)\s*", re.DOTALL)
_SURE = 1.96  # standard errors of a difference beyond which chance is an unlikely explanation


class Value(NamedTuple):
    """One checkpoint's entry in a column."""

    value: float
    stderr: float | None
    datasets: int


class Series(NamedTuple):
    """The checkpoints of one or more trainings, by training and step."""

    rows: Sequence[Row]
    datasets: Sequence[str]
    groups: Mapping[str, str]
    notes: Sequence[str]
    """Checkpoints and scores that are left out, in words."""
    aggregates: Mapping[str, Aggregate] = {}
    """Those that the suites define; of two of one name, that of the newest run."""


class Column(NamedTuple):
    """A dataset, the mean of several, or an aggregate of a suite."""

    name: str
    datasets: Sequence[str]
    mean: bool
    aggregate: Aggregate | None = None

    def values(self, rows: Sequence[Row]) -> list[Value | None]:
        """Return the values for checkpoints; None unless all datasets of the column are there."""
        found: list[Value | None] = [None] * len(rows)
        count = len(self.datasets)
        for columns, places in by_columns(rows):
            if not count or not columns.keys() >= set(self.datasets):
                continue
            pick = picker(columns, [line for _, line in places])
            its = [columns[name] for name in self.datasets]
            values = zip(*(pick(each.values) for each in its), strict=True)
            known = [each.stderrs for each in its if each.stderrs is not None]
            errors: Iterable[Sequence[float] | None] = [None] * len(places)
            if len(known) == count:
                errors = zip(*map(pick, known), strict=True)
            for (place, _), value, error in zip(places, values, errors, strict=True):
                found[place] = Value(*self._together(value, error), count)
        return found

    def value(self, row: Row) -> Value | None:
        """Return the value for a checkpoint; None unless all datasets of the column are there."""
        return self.values([row])[0]

    def _together(
        self, values: Sequence[float], errors: Sequence[float] | None
    ) -> tuple[float, float | None]:
        if self.aggregate is not None:
            return self.aggregate.of(values, errors)
        error = None if errors is None else math.hypot(*errors) / len(errors)
        return sum(values) / len(values), error

    def error(self, row: Row) -> float:
        """Return the standard error of its value for a checkpoint, from those of the items."""
        errors = [error_of(row.score(name)) for name in self.datasets]
        if self.aggregate is None:
            return math.hypot(*errors) / len(errors)
        return math.hypot(
            *(f * e for f, e in zip(self.aggregate.factors.values(), errors, strict=True))
        )

    def known_error(self, row: Row) -> float | None:
        """Return its standard error for a checkpoint; None unless those of all scores are known.

        All right or all wrong is no certainty, see `item_error`.
        """
        scores = [row.score(name) for name in self.datasets]
        if any(each.stderr is None and not error_of(each) for each in scores):
            return None
        return self.error(row)


def series(
    measured: Iterable[Measured], trainings: Sequence[str] = (), suite: str | None = None
) -> Series:
    """Return the series that runs have measured.

    A checkpoint whose path was written again, as after a rollback, counts as it was evaluated last.
    Of each dataset only the scores of one way of asking count: that of the newest run which has it.

    Args:
        trainings: folders of checkpoints, or the last parts of their paths; all if empty.
        suite: the name of the suite of the runs that count; any if None.

    Raises:
        UserError: a training has no run.
    """
    chosen, notes = _apart([each for each in measured if suite in (None, each.suite)])
    if not chosen and suite is not None:
        raise UserError(f"no run of a suite {suite!r}")
    if trainings:
        chosen = _chosen(chosen, trainings)
    chosen.sort(key=lambda each: each.created)
    latest = {each.checkpoint: each.identity for each in chosen}
    current = [each for each in chosen if latest[each.checkpoint] == each.identity]
    if replaced := len(chosen) - len(current):
        notes.append(
            f"{plural(replaced, 'run')} of checkpoints that were written again since are left out"
        )
    groups: dict[str, str] = {}
    aggregates: dict[str, Aggregate] = {}
    for each in current:
        aggregates |= each.aggregates
        groups |= each.groups
    rows, unlike = rows_of(current)
    notes += [
        f"{name}: {plural(count, 'score')} left out, asked otherwise than in its newest run"
        for name, count in sorted(unlike.items())
    ]
    rows.sort(key=lambda r: (r.training, r.step is None, r.step or 0, r.created, r.checkpoint))
    datasets: dict[str, None] = {}
    for row in rows:
        its = in_columns(row.scores).columns
        if not (its.keys() <= datasets.keys() and datasets.keys() >= set(row.missing)):
            datasets |= dict.fromkeys((*its, *row.missing))
    made = Series(rows, list(datasets), groups, notes, aggregates)
    return made._replace(notes=[*notes, *_changed(made), *_without(made)])


def _apart(measured: Sequence[Measured]) -> tuple[list[Measured], list[str]]:
    """Return runs with trainings told apart that share a folder, and which these are, in words.

    Two checkpoints of one step whose names differ before it, such as `big-step-100` and
    `small-step-100`, are of two trainings.
    """
    of_step: dict[tuple[str, int | None], set[str]] = {}
    for each in measured:
        if not each.average:
            of_step.setdefault((each.training, each.step), set()).add(each.checkpoint)
    shared: dict[str, set[str]] = {}
    for (training, step), paths in of_step.items():
        names = {name_before_step(each, training, step) for each in paths if len(paths) > 1}
        if len(names - {""}) > 1:
            shared.setdefault(training, set()).update(names - {""})
    apart = []
    for each in measured:
        names = set() if each.average else shared.get(each.training, set())
        if names and (name := name_before_step(each.checkpoint, each.training, each.step)):
            names.add(name)
            each = each.model_copy(update={"training": f"{each.training}/{name}*"})
        apart.append(each)
    return apart, [
        f"{training} has checkpoints of several trainings, by their names: "
        f"{', '.join(f'{name}*' for name in sorted(names)[:5])}"
        for training, names in sorted(shared.items())
    ]


def _changed(found: Series) -> Iterator[str]:
    """Yield which datasets have other numbers of items in some checkpoints, and since when."""
    whole = sorted((row for row in found.rows if not row.decided), key=lambda row: row.created)
    counts: dict[str, set[int]] = {}
    for columns, places in by_columns(whole):
        pick = picker(columns, [line for _, line in places])
        for name, each in columns.items():
            counts.setdefault(name, set()).update(pick(each.items))
    for name in (name for name, its in counts.items() if len(its) > 1):
        first: dict[int, Row] = {}
        for row in whole:
            if name in row.scores:
                first.setdefault(row.score(name).items, row)
        before, *after = first
        since = ", ".join(f"{count:,} since {first[count].name}" for count in after[:3])
        yield (
            f"{name} has changed: {plural(before, 'item')}, {since}. Scores before and after may "
            "differ for that alone"
        )


def _chosen(measured: Sequence[Measured], trainings: Sequence[str]) -> list[Measured]:
    known = sorted({each.training for each in measured})
    wanted: set[str] = set()
    for name in trainings:
        its = [each for each in known if _is_of(each, name)]
        if not its:
            shown = "".join(f"\n  {each}" for each in known[:20])
            raise UserError(
                f"no run of a checkpoint in {name!r}. There are runs of:{shown or ' none'}"
            )
        wanted.update(its)
    return [each for each in measured if each.training in wanted]


def _without(found: Series) -> Iterator[str]:
    """Yield which aggregates cannot be told of which checkpoints, and why."""
    for name, aggregate in found.aggregates.items():
        if why := _why_unlike(found, aggregate.factors):
            yield f"{name} is left out: {why}"
            continue
        lacking: dict[str, None] = {}
        without = 0
        for columns, places in by_columns(found.rows):
            if missing := aggregate.missing(columns):
                lacking |= dict.fromkeys(missing)
                without += len(places)
        if lacking:
            shown = ", ".join(list(lacking)[:5])
            yield f"{name} is not known of {plural(without, 'checkpoint')}, without {shown}"


def _is_of(folder: str, name: str) -> bool:
    """Return whether a training is named: its folder or one above, or the end of their paths."""
    training, given = remote.located(folder), remote.located(name)
    if given.is_absolute() or given.exists():
        absolute = given.absolute()
        return training.is_relative_to(absolute) or training.is_relative_to(given.resolve())
    count = len(given.parts)
    ends = (training, *training.parents)
    return any(each.parts[-count:] == given.parts for each in ends)


def column(text: str, found: Series) -> Column:
    """Return the column that a text names: a dataset, a group, or `mean(…)` of names and patterns.

    `mean` alone is that over all datasets that every complete checkpoint has, and that are shares.

    Raises:
        UserError: the text names nothing that is there, or the mean of unlike things.
    """
    match = _MEAN.fullmatch(text)
    if match is None and text in found.datasets:
        return Column(text, [text], mean=False)
    if match is None and text in found.aggregates:
        return _checked(_of_suite(text, found.aggregates[text]), found)
    if text == "mean" and (everything := mean_column(found, found.rows)) is not None:
        return everything
    if text == "mean":
        raise UserError(
            "fewer than two datasets have scores that can be averaged: name a dataset or a group"
        )
    members = [each.strip() for each in match[1].split(",")] if match else [text]
    chosen: list[str] = []
    for pattern in members:
        fitting = [
            name
            for name in found.datasets
            if fnmatchcase(name, pattern) or found.groups.get(name) == pattern
        ]
        if not fitting:
            groups = sorted(set(found.groups.values()))
            known = ", ".join([*found.aggregates, *groups, *found.datasets][:40])
            raise UserError(f"{text!r}: no dataset or group {pattern!r}. There are {known}")
        chosen += [name for name in fitting if name not in chosen]
    return _checked(Column(text, chosen, mean=True), found)


def _of_suite(name: str, aggregate: Aggregate) -> Column:
    return Column(name, list(aggregate.factors), mean=True, aggregate=aggregate)


def _checked(column: Column, found: Series) -> Column:
    """Return a mean that says something.

    Raises:
        UserError: of some of its datasets more is better, and of others less, or their metrics are
            unlike.
    """
    if why := _why_unlike(found, column.datasets):
        higher = [name for name in column.datasets if _direction(found, name)]
        lower = [name for name in column.datasets if name not in higher]
        if higher and lower:
            why = f"of {lower[0]} less is better, and of others more, such as {higher[0]}"
        raise UserError(f"{column.name!r}: {why}: their mean says nothing. Leave it out")
    return column


def _why_unlike(found: Series, datasets: Iterable[str]) -> str:
    """Return why a mean of these datasets would say nothing, by their newest scores."""
    newest = {}
    for name in datasets:
        scored = (row.score(name) for row in reversed(found.rows) if name in row.scores)
        for score in itertools.islice(scored, 1):
            newest[name] = Member(score.metric, score.value, score.higher_is_better)
    return why_unlike(newest)


def default_columns(found: Series) -> list[Column]:
    """Return a column for each dataset where they are few, else for each group; and the means."""
    few = 8
    averaged = _averaged(found)
    if len(found.datasets) <= few:
        chosen = [Column(name, [name], mean=False) for name in found.datasets]
    else:
        groups: dict[str, list[str]] = {}
        for name in averaged:
            groups.setdefault(found.groups.get(name, ""), []).append(name)
        chosen = [Column(group, its, mean=True) for group, its in groups.items() if group]
    mean = [Column("mean", averaged, mean=True)] if len(averaged) > 1 else []
    return [*chosen, *aggregate_columns(found), *mean]


def every_column(found: Series) -> list[Column]:
    """Return a column for each dataset, each aggregate, and the mean."""
    mean = mean_column(found, found.rows)
    single = [Column(name, [name], mean=False) for name in found.datasets]
    return [*single, *aggregate_columns(found), *([mean] if mean is not None else [])]


def aggregate_columns(found: Series) -> list[Column]:
    """Return the aggregates that say something."""
    every = [_of_suite(name, each) for name, each in found.aggregates.items()]
    return [each for each in every if not _why_unlike(found, each.datasets)]


def mean_column(found: Series, rows: Sequence[Row]) -> Column | None:
    """Return the mean over all datasets that it can be taken of; None of fewer than two."""
    members = _averaged(found._replace(rows=rows))
    return Column("mean", members, mean=True) if len(members) > 1 else None


def _averaged(found: Series) -> list[str]:
    """Return the datasets whose mean says something.

    These are shares from 0 to 1, where more is better. A dataset that only some of the complete
    checkpoints have would make their means unlike, and is left out.
    """
    names = set(found.datasets)
    whole = [row for row in found.rows if not row.missing]
    for columns, _ in by_columns(whole):
        names &= columns.keys()
    for columns, places in by_columns(whole or found.rows):
        pick = picker(columns, [line for _, line in places])
        for name in names & columns.keys():
            values = pick(columns[name].values)
            if not all(map(math.isfinite, values)) or min(values) < 0 or max(values) > 1:
                names.discard(name)
    return [name for name in found.datasets if name in names and _direction(found, name)]


def _direction(found: Series, name: str) -> bool:
    """Return whether more is better, as the newest score of a dataset says."""
    scored = (row.score(name) for row in reversed(found.rows) if name in row.scores)
    return next((score.higher_is_better for score in scored), True)


class Best(NamedTuple):
    """The best checkpoint by a column, and those that may be as good."""

    row: Row
    value: Value
    close: Sequence[tuple[Row, Value]]
    """Checkpoints whose difference from the best may be chance, the better ones first."""
    without: Sequence[Row]
    """Checkpoints that lack a score of the column."""


def best(found: Series, by: Column) -> Best:
    """Return the checkpoint with the best value in a column.

    Raises:
        UserError: no checkpoint has a value.
    """
    every = by.values(found.rows)
    values = [(row, v) for row, v in zip(found.rows, every, strict=True) if v is not None]
    if not values:
        raise UserError(f"no checkpoint has all scores of {by.name!r}")
    sign = 1 if _direction(found, by.datasets[0]) else -1
    values.sort(key=lambda pair: -sign * pair[1].value)
    row, value = values[0]

    def is_close(other: Row, its: Value) -> bool:
        errors = [v.stderr or by.known_error(r) for r, v in ((row, value), (other, its))]
        known = [each for each in errors if each is not None]
        least = _SURE * math.hypot(*known) if len(known) == len(errors) else 0.0
        return abs(value.value - its.value) <= least

    close = [(other, its) for other, its in values[1:] if is_close(other, its)]
    without = [r for r, its in zip(found.rows, every, strict=True) if its is None]
    return Best(row, value, close, without)
