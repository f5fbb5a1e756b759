"""A plan drawn over time: rows of trials, cut into columns of equal time. Pure.

What is drawn where is decided here, for terminals and pages alike; how it looks is theirs.
"""

from collections.abc import Iterator, Sequence
from enum import Enum
from typing import NamedTuple

from coordinate_eval.coordinator.planning.simulate import Timeline, TrialBar

TICKS = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 43200, 86400)
"""Seconds that an axis may count in; beyond the last, multiples of it."""


class Phase(Enum):
    """What a trial does when no shard runs on it."""

    STAGE = "weights"
    START = "engine start"
    WAIT = "waits for its longest items"


Activity = Phase | str
"""A phase, or the dataset whose shard runs."""


class Row(NamedTuple):
    """Trials that are drawn as one."""

    label: str
    trials: Sequence[TrialBar]


class Part(NamedTuple):
    """From `begin` to `end` a row mostly does this; None where most of its trials have ended."""

    begin: float
    end: float
    what: Activity | None


def rows(timeline: Timeline, most: int) -> list[Row]:
    """One row a trial; where these are more than `most`, one a node, or one for several nodes."""
    nodes: dict[str, list[TrialBar]] = {}
    for bar in timeline.trials:
        nodes.setdefault(bar.trial.node, []).append(bar)
    if len(timeline.trials) <= most:
        return [Row(bar.trial.id, [bar]) for bars in nodes.values() for bar in bars]
    if len(nodes) <= most:
        return [Row(f"{name} ×{len(bars)}", bars) for name, bars in nodes.items()]
    names = list(nodes)
    groups = [names[len(names) * i // most : len(names) * (i + 1) // most] for i in range(most)]
    return [
        Row(
            group[0] if len(group) == 1 else f"{group[0]} … {group[-1]}",
            [bar for name in group for bar in nodes[name]],
        )
        for group in groups
    ]


def parts(row: Row, columns: int, end: float) -> list[Part]:
    """What the row does in each of so many columns up to `end`, alike neighbours as one."""
    found: list[Part] = []
    width = end / columns
    for column, what in enumerate(cells(row, columns, end)):
        if found and found[-1].what == what:
            found[-1] = found[-1]._replace(end=(column + 1) * width)
        else:
            found.append(Part(column * width, (column + 1) * width, what))
    return found


def cells(row: Row, columns: int, end: float) -> list[Activity | None]:
    """What the row does for most of each column's time."""
    seconds: list[dict[Activity, float]] = [{} for _ in range(columns)]
    width = end / columns if end > 0 else 1.0
    for bar in row.trials:
        for part in segments(bar):
            assert part.what is not None
            for column, inside in _spread(part.begin, part.end, width, columns):
                seconds[column][part.what] = seconds[column].get(part.what, 0.0) + inside
    return [_most(found, width * len(row.trials)) for found in seconds]


def segments(bar: TrialBar) -> Iterator[Part]:
    """What one trial does, from 0 to its end, without gaps."""
    yield Part(0.0, bar.trial.start_seconds, Phase.STAGE)
    yield Part(bar.trial.start_seconds, bar.ready, Phase.START)
    for shard in bar.shards:
        yield Part(shard.begin, shard.end, shard.shard.dataset)
    if bar.end > bar.idle_from:
        yield Part(bar.idle_from, bar.end, Phase.WAIT)


def cores(timeline: Timeline, columns: int, end: float) -> list[float]:
    """Mean number of cores that metric jobs use in each column."""
    width = end / columns if end > 0 else 1.0
    used = [0.0] * columns
    for bar in timeline.metrics:
        for column, inside in _spread(bar.begin, bar.end, width, columns):
            used[column] += inside * bar.job.cpus / width
    return used


def longest(timeline: Timeline) -> list[tuple[str, float]]:
    """Datasets by their GPU time, longest first, with the part of all that each takes."""
    seconds: dict[str, float] = {}
    for bar in timeline.trials:
        for shard in bar.shards:
            name = shard.shard.dataset
            seconds[name] = seconds.get(name, 0.0) + shard.end - shard.begin
    total = sum(seconds.values()) or 1.0
    return sorted(((n, s / total) for n, s in seconds.items()), key=lambda found: -found[1])


def tick_seconds(end: float, most: int) -> int:
    """How far apart the marks of an axis are, so that there are at most so many after 0."""
    for step in TICKS:
        if end / step <= max(1, most):
            return step
    return TICKS[-1] * (1 + int(end / TICKS[-1] / max(1, most)))


def clock(seconds: float) -> str:
    """A moment on an axis: `45s`, `2:30` minutes, `1h05`."""
    minutes, rest = divmod(round(seconds), 60)
    if not minutes:
        return f"{rest}s" if rest else "0"
    return f"{minutes}:{rest:02d}" if minutes < 60 else f"{minutes // 60}h{minutes % 60:02d}"


def _spread(begin: float, end: float, width: float, columns: int) -> Iterator[tuple[int, float]]:
    """The seconds of a stretch of time that lie in each column, where any do."""
    for column in range(min(columns - 1, int(begin / width)), columns):
        if column * width >= end:
            return
        inside = min(end, (column + 1) * width) - max(begin, column * width)
        if inside > 0:
            yield column, inside


def _most(found: dict[Activity, float], whole: float) -> Activity | None:
    """What takes most of a cell, where nothing is one of the candidates."""
    if not found:
        return None
    what = max(found, key=lambda each: found[each])
    return what if found[what] >= whole - sum(found.values()) else None
