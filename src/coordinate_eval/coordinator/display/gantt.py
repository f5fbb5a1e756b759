"""The chart of a plan, or of what a run made of it, over time: trials, and what each does when.

Terminals and pages draw the same rows, each in its own way.
"""

import itertools
from collections.abc import Iterator, Sequence
from enum import Enum
from typing import NamedTuple

from coordinate_eval._format import duration, plain
from coordinate_eval.coordinator.planning.simulate import ShardBar, Timeline, TrialBar

TICKS = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 43200, 86400)
"""Steps of an axis in seconds; beyond the last, multiples of it."""


class Phase(Enum):
    """An activity of a trial while no shard runs on it."""

    STAGE = "weights"
    START = "engine start"
    WAIT = "waits for its longest items"
    # Only what has happened has these.
    QUEUE = "queue"
    LOST = "lost to faults"


PLANNED = (Phase.STAGE, Phase.START, Phase.WAIT)
"""The phases of a plan."""


Activity = Phase | str
"""A phase, or the dataset whose shard runs."""


class Stretch(NamedTuple):
    """A time from `begin` to `end`, and what most of a row's trials do; None if they do nothing."""

    begin: float
    end: float
    what: Activity | None
    title: str = ""
    """More words about it, for people."""


class Lane(NamedTuple):
    """A trial, and what it does, in the order of time."""

    trial: str
    node: str
    stretches: Sequence[Stretch]


class ChartRow(NamedTuple):
    """Trials that are drawn as one row."""

    label: str
    lanes: Sequence[Lane]


def lanes(timeline: Timeline, begin: float = 0.0) -> list[Lane]:
    """Return the trials of a plan, which do something from `begin`, in seconds, to their ends."""
    return [
        Lane(
            bar.trial.id,
            bar.trial.node,
            [s._replace(begin=begin + s.begin, end=begin + s.end) for s in _segments(bar)],
        )
        for bar in timeline.trials
    ]


def rows(among: Sequence[Lane], most: int) -> list[ChartRow]:
    """Return at most this many rows: of single trials, else of nodes, else of several nodes."""
    nodes: dict[str, list[Lane]] = {}
    for lane in among:
        nodes.setdefault(lane.node, []).append(lane)
    if len(among) <= most:
        return [ChartRow(lane.trial, [lane]) for found in nodes.values() for lane in found]
    if len(nodes) <= most:
        return [ChartRow(f"{name} ×{len(found)}", found) for name, found in nodes.items()]
    names = list(nodes)
    groups = [names[len(names) * i // most : len(names) * (i + 1) // most] for i in range(most)]
    return [
        ChartRow(
            group[0] if len(group) == 1 else f"{group[0]} … {group[-1]}",
            [lane for name in group for lane in nodes[name]],
        )
        for group in groups
    ]


def stretches(row: ChartRow, columns: int, end: float) -> Iterator[Stretch]:
    """Yield what the row does, rounded to columns of equal time up to `end`."""
    width, column = end / columns, 0
    for what, alike in itertools.groupby(cells(row, columns, end)):
        begin, column = column, column + len(list(alike))
        yield Stretch(begin * width, column * width, what)


def cells(row: ChartRow, columns: int, end: float) -> list[Activity | None]:
    """Return what the row does for most of each column's time."""
    seconds: list[dict[Activity, float]] = [{} for _ in range(columns)]
    width = end / columns if end > 0 else 1.0
    for begin, stop, what, _ in (part for lane in row.lanes for part in lane.stretches):
        if what is not None:
            for column, inside in _spread(begin, stop, width, columns):
                seconds[column][what] = seconds[column].get(what, 0.0) + inside
    return [_most(found, width * len(row.lanes)) for found in seconds]


def _segments(bar: TrialBar) -> Iterator[Stretch]:
    """Yield what one trial of a plan does, from 0 to its end, without gaps."""
    yield Stretch(0.0, bar.trial.start_seconds, Phase.STAGE)
    yield Stretch(bar.trial.start_seconds, bar.ready, Phase.START)
    for shard in bar.shards:
        yield Stretch(shard.begin, shard.end, shard.shard.dataset, _title(shard))
    if bar.end > bar.idle_from:
        yield Stretch(bar.idle_from, bar.end, Phase.WAIT)


def _title(bar: ShardBar) -> str:
    shard, late = bar.shard, bar.complete - bar.end
    text = f"{plain(shard.dataset)}, items {shard.start:,}–{shard.stop:,}"
    took = f"{duration(bar.end - bar.begin)} of GPU time"
    return f"{text}\n{took}" + (f", complete {duration(late)} later" if late > 0 else "")


def cores(timeline: Timeline, columns: int, end: float) -> list[float]:
    """Return the mean number of cores that metric and score jobs use in each column."""
    width = end / columns if end > 0 else 1.0
    used = [0.0] * columns
    for bar in timeline.on_cores:
        for column, inside in _spread(bar.begin, bar.end, width, columns):
            used[column] += inside * bar.job.cpus / width
    return used


def longest(among: Sequence[Lane]) -> list[tuple[str, float]]:
    """Return the datasets and their parts of the GPU time, longest first."""
    seconds: dict[str, float] = {}
    for begin, end, what, _ in (part for lane in among for part in lane.stretches):
        if isinstance(what, str):
            seconds[what] = seconds.get(what, 0.0) + end - begin
    total = sum(seconds.values()) or 1.0
    return sorted(((n, s / total) for n, s in seconds.items()), key=lambda found: -found[1])


def tick_seconds(end: float, most: int) -> int:
    """Return the step between marks of an axis, so that at most this many follow 0."""
    for step in TICKS:
        if end / step <= max(1, most):
            return step
    return TICKS[-1] * (1 + int(end / TICKS[-1] / max(1, most)))


def clock(seconds: float) -> str:
    """Return a moment as an axis shows it: `45s`, `2:30` minutes, `1h05`."""
    minutes, rest = divmod(round(seconds), 60)
    if not minutes:
        return f"{rest}s" if rest else "0"
    return f"{minutes}:{rest:02d}" if minutes < 60 else f"{minutes // 60}h{minutes % 60:02d}"


def _spread(begin: float, end: float, width: float, columns: int) -> Iterator[tuple[int, float]]:
    """Yield the seconds between `begin` and `end` that lie in each column."""
    for column in range(min(columns - 1, int(begin / width)), columns):
        if column * width >= end:
            return
        inside = min(end, (column + 1) * width) - max(begin, column * width)
        if inside > 0:
            yield column, inside


def _most(found: dict[Activity, float], whole: float) -> Activity | None:
    """Return what takes most of a cell, None if nothing does."""
    if not found:
        return None
    what = max(found, key=lambda each: found[each])
    return what if found[what] >= whole - sum(found.values()) else None
