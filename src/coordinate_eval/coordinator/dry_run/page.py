"""A plan as one HTML page that needs no other file, to send or to keep.

Names come from clusters, suites and paths, so each one is escaped. The text is ASCII, so that any
encoding shows it.
"""

from collections.abc import Iterator, Sequence
from functools import cache
from importlib.resources import files
from typing import NamedTuple

from jinja2 import Environment, StrictUndefined, Template

from coordinate_eval import __version__
from coordinate_eval._format import duration, plain, visible
from coordinate_eval.coordinator.dry_run import gantt
from coordinate_eval.coordinator.dry_run.gantt import ChartRow, Phase, Stretch
from coordinate_eval.coordinator.dry_run.risks import risks
from coordinate_eval.coordinator.dry_run.summary import (
    Review,
    dataset_table,
    node_table,
    summary,
    what_if_table,
)

MARK = '<meta name="generator" content="coordinate-eval plan">'
"""Marks a page that another one may replace."""

MOST_ROWS = 128
COLUMNS = 480
"""Columns of a row of several trials, and of the metrics' cores."""

COLORS = 12
"""Datasets with a color of their own; the template has the colors."""

_LEFT, _WIDTH = 130.0, 1010.0
"""Pixels to the left of time 0, and of the makespan."""

_METRICS_HEIGHT = 56.0
_LETTER = 5.9
"""Width of a letter in a bar, in pixels, about."""

_STYLES = {Phase.STAGE: "stage", Phase.START: "start", Phase.WAIT: "wait"}


class Bar(NamedTuple):
    """A rectangle, the text in it, and the text shown when the pointer is on it."""

    x: float
    y: float
    width: float
    style: str
    name: str
    title: str


class Drawing(NamedTuple):
    """The chart, in pixels."""

    height: float
    row_height: float
    labels: list[tuple[float, str, str]]
    bars: list[Bar]
    ticks: list[tuple[float, str]]
    bound: float
    metrics: str
    """Points of the area of cores in use, below the rows; empty without metrics."""
    most_cores: int


def render(review: Review) -> str:
    """Return the page. Its chart has at most `MOST_ROWS` rows."""
    colors = _colors(review)
    text = _template().render(
        mark=MARK,
        version=__version__,
        plan=review.plan,
        review=review,
        risks=risks(review),
        summary=summary(review),
        drawing=_draw(review, colors),
        colors=colors,
        phases=[(_STYLES[phase], phase.value) for phase in Phase],
        nodes=node_table(review),
        datasets=dataset_table(review),
        shares=_shares(review, colors),
        what_if=what_if_table(review),
        left=_LEFT,
        right=_LEFT + _WIDTH,
        metrics_height=_METRICS_HEIGHT,
    )
    return text.encode("ascii", "xmlcharrefreplace").decode()


def _colors(review: Review) -> dict[str, str]:
    """Give a style to each of the longest datasets."""
    names = [name for name, _ in gantt.longest(review.timeline)]
    return {name: f"c{number}" for number, name in enumerate(names[:COLORS])}


def _shares(review: Review, colors: dict[str, str]) -> list[tuple[str, float]]:
    """Return each dataset's style, and its GPU time in percent of the longest one's."""
    ordered = sorted(review.plan.datasets, key=lambda cost: -cost.gpu_seconds)
    longest = ordered[0].gpu_seconds
    return [(colors.get(c.name, "c"), 100 * c.gpu_seconds / longest) for c in ordered]


def _draw(review: Review, colors: dict[str, str]) -> Drawing:
    drawn = review.timeline
    end = drawn.end or 1.0
    rows = gantt.rows(drawn, MOST_ROWS)
    height = 20.0 if len(rows) <= 40 else 13.0 if len(rows) <= 64 else 8.0
    scale = _WIDTH / end
    bars: list[Bar] = []
    labels = []
    for number, row in enumerate(rows):
        y = number * height
        label = plain(row.label)
        labels.append((y, label if len(label) <= 20 else f"{label[:19]}…", label))
        bars += _bars(row, y, scale, colors, end)
    step = gantt.tick_seconds(end, 12)
    used = gantt.cores(drawn, COLUMNS, end) if drawn.on_cores else []
    return Drawing(
        height=len(rows) * height,
        row_height=height,
        labels=labels,
        bars=bars,
        ticks=[
            (_LEFT + tick * step * scale, gantt.clock(tick * step))
            for tick in range(int(end / step) + 1)
        ],
        bound=_LEFT + min(end, review.plan.estimate.lower_bound_seconds) * scale,
        metrics=_area(used, review.offer.metric_cpus),
        most_cores=max((step.cores for step in drawn.cores()), default=0),
    )


def _bars(
    row: ChartRow, y: float, scale: float, colors: dict[str, str], end: float
) -> Iterator[Bar]:
    one = len(row.trials) == 1
    for part, title in _exact(row) if one else _mostly(row, end):
        if part.what is None:
            continue
        known = isinstance(part.what, Phase)
        name = "" if isinstance(part.what, Phase) else plain(part.what)
        style = _STYLES[part.what] if isinstance(part.what, Phase) else colors.get(part.what, "c")
        width = (part.end - part.begin) * scale
        fits = not known and len(name) * _LETTER + 6 <= width
        yield Bar(
            x=_LEFT + part.begin * scale,
            y=y,
            width=max(width, 0.3),
            style=style,
            name=name if fits else "",
            title=f"{plain(row.label)}\n{title}\n{duration(part.begin)} – {duration(part.end)}",
        )


def _exact(row: ChartRow) -> Iterator[tuple[Stretch, str]]:
    """Yield every shard of one trial, with its title."""
    (bar,) = row.trials
    shards = iter(bar.shards)
    for part in gantt.segments(bar):
        if isinstance(part.what, Phase):
            yield part, part.what.value
            continue
        found = next(shards)
        shard = found.shard
        text = f"{plain(shard.dataset)}, items {shard.start:,}–{shard.stop:,}"
        took = f"{duration(found.end - found.begin)} of GPU time"
        late = found.complete - found.end
        yield part, f"{text}\n{took}" + (f", complete {duration(late)} later" if late > 0 else "")


def _mostly(row: ChartRow, end: float) -> Iterator[tuple[Stretch, str]]:
    """Yield what most trials of a row do, with a title."""
    for part in gantt.stretches(row, COLUMNS, end):
        what = part.what.value if isinstance(part.what, Phase) else plain(part.what or "")
        yield part, f"most of {len(row.trials)} trials: {what}"


def _area(used: Sequence[float], metric_cpus: int) -> str:
    """Return the points of a polygon: cores in use, above a line at `_METRICS_HEIGHT`."""
    if not used:
        return ""
    width = _WIDTH / len(used)
    points = [(_LEFT, _METRICS_HEIGHT)]
    for column, cores in enumerate(used):
        y = _METRICS_HEIGHT * (1 - min(1.0, cores / metric_cpus))
        points += [(_LEFT + column * width, y), (_LEFT + (column + 1) * width, y)]
    points.append((_LEFT + _WIDTH, _METRICS_HEIGHT))
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in points)


def _finalized(value: object) -> object:
    """Return what the page shows of a value: control characters have no place in HTML."""
    return visible(value) if type(value) is str else value


@cache
def _template() -> Template:
    source = files(__package__).joinpath("page.html.j2").read_text(encoding="utf-8")
    environment = Environment(
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_finalized,
    )
    environment.filters |= {"duration": duration, "plain": plain}
    return environment.from_string(source)
