"""A plan as one page of HTML that needs nothing else: for mails, chats and archives.

Values in, text out. Names come from clusters, suites and paths, so every one is escaped, and the
text is ASCII, so that no file's encoding can spoil it.
"""

from collections.abc import Iterator, Sequence
from functools import cache
from importlib.resources import files
from typing import NamedTuple

from jinja2 import Environment, StrictUndefined, Template

from coordinate_eval import __version__
from coordinate_eval._format import duration, plain
from coordinate_eval.coordinator.dry_run import gantt
from coordinate_eval.coordinator.dry_run.gantt import Part, Phase, Row
from coordinate_eval.coordinator.dry_run.risks import risks
from coordinate_eval.coordinator.dry_run.summary import Review, dataset_lines, node_lines, summary

MARK = '<meta name="generator" content="coordinate-eval plan">'
"""By which a page is known as one that may be replaced."""

MOST_ROWS = 128
COLUMNS = 480
"""Parts that a row of several trials is cut into, and the metrics' cores."""

COLORS = 12
"""Datasets with a colour of their own; the template has them."""

_LEFT, _WIDTH = 130.0, 1010.0
"""Pixels: where time 0 is, and how long the makespan is."""

_METRICS_HEIGHT = 56.0
_LETTER = 5.9
"""Pixels of a letter of a bar's name, about."""

_STYLES = {Phase.STAGE: "stage", Phase.START: "start", Phase.WAIT: "wait"}


class Bar(NamedTuple):
    """A rectangle, what it says within, and what it says when pointed at."""

    x: float
    y: float
    width: float
    style: str
    name: str
    title: str


class Drawing(NamedTuple):
    """The chart in pixels."""

    height: float
    row_height: float
    labels: list[tuple[float, str, str]]
    bars: list[Bar]
    ticks: list[tuple[float, str]]
    bound: float
    metrics: str
    """Points of the area of cores in use, '' without any; it lies below the rows."""
    most_cores: int


def render(review: Review) -> str:
    """The page.

    Its chart has a row for each trial, or for each node where there are more than `MOST_ROWS`.
    """
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
        nodes=node_lines(review),
        datasets=dataset_lines(review),
        longest=max(cost.gpu_seconds for cost in review.plan.datasets),
        left=_LEFT,
        right=_LEFT + _WIDTH,
        metrics_height=_METRICS_HEIGHT,
    )
    return text.encode("ascii", "xmlcharrefreplace").decode()


def _colors(review: Review) -> dict[str, str]:
    """A style for each of the longest datasets."""
    names = [name for name, _ in gantt.longest(review.timeline)]
    return {name: f"c{number}" for number, name in enumerate(names[:COLORS])}


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
    used = gantt.cores(drawn, COLUMNS, end) if drawn.metrics else []
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


def _bars(row: Row, y: float, scale: float, colors: dict[str, str], end: float) -> Iterator[Bar]:
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


def _exact(row: Row) -> Iterator[tuple[Part, str]]:
    """Every shard of one trial."""
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


def _mostly(row: Row, end: float) -> Iterator[tuple[Part, str]]:
    """What most trials of a row do."""
    for part in gantt.parts(row, COLUMNS, end):
        what = part.what.value if isinstance(part.what, Phase) else plain(part.what or "")
        yield part, f"most of {len(row.trials)} trials: {what}"


def _area(used: Sequence[float], metric_cpus: int) -> str:
    """Points of a polygon: cores in use over time, above a line at `_METRICS_HEIGHT`."""
    if not used:
        return ""
    width = _WIDTH / len(used)
    points = [(_LEFT, _METRICS_HEIGHT)]
    for column, cores in enumerate(used):
        y = _METRICS_HEIGHT * (1 - min(1.0, cores / metric_cpus))
        points += [(_LEFT + column * width, y), (_LEFT + (column + 1) * width, y)]
    points.append((_LEFT + _WIDTH, _METRICS_HEIGHT))
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in points)


def _visible(text: str) -> str:
    """A script as it can stand in a page: control characters are none that HTML may hold."""
    return "".join(
        c if c.isprintable() or c in "\n\t" else "\N{REPLACEMENT CHARACTER}" for c in text
    )


@cache
def _template() -> Template:
    source = files(__package__).joinpath("page.html.j2").read_text(encoding="utf-8")
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters |= {"duration": duration, "plain": plain, "visible": _visible}
    return environment.from_string(source)
