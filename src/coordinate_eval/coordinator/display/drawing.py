"""Charts of trials over time as rectangles in pixels, and the templates of the pages with them.

Names come from clusters, suites and paths, so each one is escaped.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import NamedTuple

from jinja2 import Environment, FunctionLoader, StrictUndefined, Template

from coordinate_eval import _files
from coordinate_eval._format import duration, plain, visible
from coordinate_eval.coordinator.display import gantt
from coordinate_eval.coordinator.display.gantt import ChartRow, Lane, Phase, Stretch
from coordinate_eval.errors import UserError

MOST_ROWS = 128
COLUMNS = 480
"""Columns in which a row of several trials, and one of the metrics' cores, is drawn."""

COLORS = 12
"""Datasets with a color of their own; the template has the colors."""

LEFT, WIDTH = 130.0, 1010.0
"""Pixels to the left of time 0, and from there to the end."""

_LETTER = 5.9
"""Width of a letter in a bar, in pixels, about."""

STYLES = {
    Phase.STAGE: "stage",
    Phase.START: "start",
    Phase.WAIT: "wait",
    Phase.QUEUE: "queue",
    Phase.LOST: "lost",
}


class Bar(NamedTuple):
    """A rectangle, the text in it, and the text shown when the pointer is on it."""

    x: float
    y: float
    width: float
    style: str
    name: str
    title: str


class Drawing(NamedTuple):
    """A chart, in pixels."""

    height: float
    row_height: float
    labels: list[tuple[float, str, str]]
    bars: list[Bar]
    ticks: list[tuple[float, str]]


def colors_of(lanes: Sequence[Lane]) -> dict[str, str]:
    """Give a style to each of the longest datasets."""
    names = [name for name, _ in gantt.longest(lanes)]
    return {name: f"c{number}" for number, name in enumerate(names[:COLORS])}


def draw(lanes: Sequence[Lane], end: float, colors: Mapping[str, str]) -> Drawing:
    """Draw trials from time 0 to `end`, in at most `MOST_ROWS` rows."""
    rows = gantt.rows(lanes, MOST_ROWS)
    height = 20.0 if len(rows) <= 40 else 13.0 if len(rows) <= 64 else 8.0
    scale = WIDTH / end
    bars: list[Bar] = []
    labels = []
    for number, row in enumerate(rows):
        y = number * height
        label = plain(row.label)
        labels.append((y, label if len(label) <= 20 else f"{label[:19]}…", label))
        bars += _bars(row, y, scale, colors, end)
    step = gantt.tick_seconds(end, 12)
    return Drawing(
        height=len(rows) * height,
        row_height=height,
        labels=labels,
        bars=bars,
        ticks=[
            (LEFT + tick * step * scale, gantt.clock(tick * step))
            for tick in range(int(end / step) + 1)
        ],
    )


def _bars(
    row: ChartRow, y: float, scale: float, colors: Mapping[str, str], end: float
) -> Iterator[Bar]:
    one = len(row.lanes) == 1
    for part, title in _exact(row) if one else _mostly(row, end):
        if part.what is None:
            continue
        known = isinstance(part.what, Phase)
        name = "" if isinstance(part.what, Phase) else plain(part.what)
        style = STYLES[part.what] if isinstance(part.what, Phase) else colors.get(part.what, "c")
        width = (part.end - part.begin) * scale
        fits = not known and len(name) * _LETTER + 6 <= width
        yield Bar(
            x=LEFT + part.begin * scale,
            y=y,
            width=max(width, 0.3),
            style=style,
            name=name if fits else "",
            title=f"{plain(row.label)}\n{title}\n{duration(part.begin)} – {duration(part.end)}",
        )


def _exact(row: ChartRow) -> Iterator[tuple[Stretch, str]]:
    """Yield all that one trial does, with its title."""
    (lane,) = row.lanes
    for part in lane.stretches:
        yield part, part.what.value if isinstance(part.what, Phase) else part.title


def _mostly(row: ChartRow, end: float) -> Iterator[tuple[Stretch, str]]:
    """Yield what most trials of a row do, with a title."""
    for part in gantt.stretches(row, COLUMNS, end):
        what = part.what.value if isinstance(part.what, Phase) else plain(part.what or "")
        yield part, f"most of {len(row.lanes)} trials: {what}"


def _finalized(value: object) -> object:
    """Return what a page shows of a value: control characters have no place in HTML."""
    return visible(value) if type(value) is str else value


def source(name: str) -> str:
    """Return the text of a file in this folder."""
    return files(__package__).joinpath(name).read_text(encoding="utf-8")


@cache
def template(name: str) -> Template:
    """Return the template of a page, whose text is made of the other templates here, too."""
    environment = Environment(
        autoescape=True,
        loader=FunctionLoader(source),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_finalized,
    )
    environment.filters |= {"duration": duration, "plain": plain}
    return environment.get_template(name)


def check_page(file: Path, mark: str, option: str) -> None:
    """Check that a page can be written to a file: it is not there, or is a page with this mark.

    Raises:
        UserError: something else is there. `option` names the file for people.
    """
    if file.is_dir():
        raise UserError(f"{option} {file} cannot be written: it is a folder")
    if above := next((each for each in file.parents if each.is_file()), None):
        raise UserError(f"{option} {file} cannot be written: {above} is a file")
    if not file.exists():
        return
    # Opening a pipe or a device may never return.
    if file.is_file():
        with file.open(errors="replace") as text:
            if mark in text.read(1000):
                return
    what = mark.partition('content="coordinate-eval ')[2].partition('"')[0]
    raise UserError(f"{option} {file} exists and is not the page of a {what}: choose another name")


def write_page(file: Path, page: str, mark: str, option: str) -> None:
    """Write a page, in place of an earlier one with this mark."""
    try:
        check_page(file, mark, option)
        _files.write(file.resolve(), page)
    except (OSError, RuntimeError) as error:  # RuntimeError: a circle of links
        words = getattr(error, "strerror", None) or error
        raise UserError(f"{option} {file} cannot be written: {words}") from error


def ascii_text(page: str) -> str:
    """Return a page in ASCII, so that any encoding shows it."""
    return page.encode("ascii", "xmlcharrefreplace").decode()
