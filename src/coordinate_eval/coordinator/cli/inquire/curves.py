"""Curves of scores in the terminal: sparklines, where they go, and where they jump."""

import shutil
from collections.abc import Iterator, Sequence
from pathlib import PurePath
from typing import Any

from rich.table import Table

from coordinate_eval._format import bars, plural, sparkline
from coordinate_eval.coordinator.cli.inquire.history import by_training, load
from coordinate_eval.coordinator.cli.output import new_table
from coordinate_eval.coordinator.history.curve import (
    LEAST,
    SLOPE_STEPS,
    Curve,
    Noise,
    curve_of,
    noise_of,
)
from coordinate_eval.coordinator.history.rows import Row
from coordinate_eval.coordinator.history.series import Column, Series, mean_column, series
from coordinate_eval.coordinator.inputs.checkpoints import remote
from coordinate_eval.coordinator.inputs.settings import Settings
from coordinate_eval.errors import CoordinateError


def curve_lines(settings: Settings, folder: str) -> list[str]:
    """Return the means of the latest checkpoints of each training in a folder, as the screen fits.

    A training is left out where fewer than three have one, and all if the history cannot be read.
    """
    try:
        known, _ = load(settings)
        found = series(each for each in known if remote.is_below(each.training, folder))
    except (CoordinateError, OSError):
        return []
    trainings = dict(by_training(known, found))
    told: list[tuple[str, list[float]]] = []
    for training, its in trainings.items():
        if (mean := mean_column(its, its.rows)) is None:
            continue
        values = mean.values([row for row in its.rows if row.step is not None])
        means = [each.value for each in values if each is not None]
        if len(means) >= 3:
            name = PurePath(training).name
            name = name if len(name) <= 24 else f"…{name[-23:]}"
            whose = f"{name}: " if len(trainings) > 1 else ""
            told.append((f"{whose}mean of {plural(len(mean.datasets), 'dataset')}", means))
    width = max((len(label) for label, _ in told), default=0)
    room = shutil.get_terminal_size().columns - width - len("    0.0000 → 0.0000")
    most = min(60, max(8, room))
    return [f"{label:<{width}}  {sparkline(means[-most:])}" for label, means in told]


def curves(found: Series, columns: Sequence[Column]) -> dict[str, dict[str, Any]]:
    """Return the curve of each column in each training; null where checkpoints are too few."""
    told: dict[str, dict[str, Any]] = {}
    for training, column, _, curve in _each(found, columns):
        told.setdefault(training, {})[column.name] = None if curve is None else _document(curve)
    return told


def _document(curve: Curve) -> dict[str, Any]:
    return {**curve._asdict(), "changes": [change._asdict() for change in curve.changes]}


def curves_table(found: Series, columns: Sequence[Column]) -> Table:
    """Return a row for each column: its level now, its slope, and its change points."""
    several = len({row.training for row in found.rows}) > 1
    heads = ["training"] * several + ["=scores", ">smoothed, now", f">per {SLOPE_STEPS:,} steps"]
    table = new_table(*heads, "change points", "=")
    for training, column, rows, curve in _each(found, columns):
        name = f"{column.name} ({len(column.datasets)})" if column.mean else column.name
        first = [training] * several
        values = [None if each is None else each.value for each in column.values(rows)]
        drawn, _ = bars(values, 20)
        if curve is None:
            table.add_row(*first, name, "", "", "too few checkpoints", drawn)
            continue
        jumps = "; ".join(curve.jumps)
        table.add_row(*first, name, curve.now, curve.goes, jumps, drawn)
    return table


def noise(found: Series, columns: Sequence[Column]) -> dict[str, list[dict[str, Any]]]:
    """Return the signal and noise of each column in each training, the clearest first."""
    return {
        training: [
            {"name": column.name, "datasets": list(column.datasets), **each._asdict()}
            for column, each in _noises(found, columns, training)
        ]
        for training in dict.fromkeys(row.training for row in found.rows)
    }


def noise_table(found: Series, columns: Sequence[Column]) -> Table:
    """Return a row for each column: its rise, its noise, and the rise over the noise."""
    trainings = dict.fromkeys(row.training for row in found.rows)
    heads = ["training"] * (len(trainings) > 1) + ["=scores"]
    table = new_table(*heads, ">rise", ">noise", ">of it sampling", ">rise / noise")
    few = 0
    for training in trainings:
        told = list(_noises(found, columns, training))
        few += len(columns) - len(told)
        for column, each in told:
            first = [training] if len(trainings) > 1 else []
            name = f"{column.name} ({len(column.datasets)})" if column.mean else column.name
            sampling = "" if each.sampling is None else f"{each.sampling:.4f}"
            ratio = "" if each.ratio is None else f"{each.ratio:.1f}"
            table.add_row(*first, name, f"{each.rise:+.4f}", f"{each.noise:.4f}", sampling, ratio)
    if few:
        table.caption = f"{plural(few, 'column')} with fewer than {LEAST} scores left out"
    return table


def _noises(
    found: Series, columns: Sequence[Column], training: str
) -> Iterator[tuple[Column, Noise]]:
    rows = [row for row in found.rows if row.training == training]
    told = [(column, each) for column in columns if (each := noise_of(column, rows)) is not None]
    yield from sorted(told, key=lambda pair: (pair[1].ratio is None, -(pair[1].ratio or 0.0)))


def _each(
    found: Series, columns: Sequence[Column]
) -> Iterator[tuple[str, Column, list[Row], Curve | None]]:
    for training in dict.fromkeys(row.training for row in found.rows):
        rows = [row for row in found.rows if row.training == training and row.step is not None]
        for column in columns:
            yield training, column, rows, curve_of(column, rows)
