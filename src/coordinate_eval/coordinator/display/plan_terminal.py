"""A plan in a terminal: figures, risks, a chart over time, nodes and datasets.

In the chart, letters tell datasets apart where there are no colors. No line of it wraps.
"""

import itertools
import math
import textwrap
from collections.abc import Iterator, Mapping, Sequence

from rich.cells import cell_len, set_cell_size
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.segment import Segment
from rich.style import Style
from rich.table import Table as RichTable
from rich.text import Text

from coordinate_eval._format import plain
from coordinate_eval.coordinator.display import gantt
from coordinate_eval.coordinator.display.gantt import Activity, Phase
from coordinate_eval.coordinator.display.risks import risks
from coordinate_eval.coordinator.display.summary import (
    Review,
    Table,
    dataset_table,
    node_table,
    summary,
    what_if_table,
)
from coordinate_eval.coordinator.planning.simulate import Timeline

MANY = 40
"""Rows of a table; the others are counted."""

LEAST_NAME = 12
"""Characters of a name that a narrow window leaves."""

LEAST_ROWS, MOST_ROWS = 8, 64
"""Rows of the chart: at least, and at most where there is no window to fit."""

LEGEND_LINES = 4
"""Lines that name datasets, at most."""

TICK_COLUMNS = 10
"""Columns between two marks of the axis, at least."""

OTHERS = "+"
"""Stands for every dataset without a letter."""

_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
_COLORS = (75, 215, 114, 204, 141, 80, 179, 175, 110, 150)  # of 256: all light enough for black
_PHASES = {Phase.STAGE: "░", Phase.START: "▒", Phase.WAIT: "·"}
_BARS = " ▁▂▃▄▅▆▇█"
_ASCII = str.maketrans("░▒·▁▂▃▄▅▆▇█…", ".:-12345678~")
_FAINT = Style(dim=True)
_PLAIN = Style()

_Line = list[tuple[str, Style]]


def render(review: Review) -> RenderableType:
    """Return everything about a plan but its jobs."""
    parts: list[RenderableType] = [_grid(summary(review), "bold")]
    if found := risks(review):
        parts += [Text(), Text("what could go wrong", style="italic")]
        parts += [_grid([("!", plain(risk)) for risk in found], "yellow")]
    if review.plan.what_if:
        parts += [Text(), _table(what_if_table(review))]
    parts += [Text(), Text("what runs when", style="italic")]
    parts += [Chart(review.timeline, review.offer.metric_cpus)]
    parts += [Text(), _table(node_table(review)), Text(), _table(dataset_table(review))]
    parts += [Text(plain(f"not used: {busy.name}: {busy.why}")) for busy in review.offer.busy]
    return Group(*parts)


def _grid(rows: Sequence[tuple[str, str]], style: str) -> RichTable:
    grid = RichTable.grid(padding=(0, 2 if style == "bold" else 1))
    grid.add_column(style=style, no_wrap=True)
    grid.add_column(overflow="fold")
    for name, words in rows:
        grid.add_row(name, Text(words))
    return grid


def _table(table: Table) -> RichTable:
    shown = RichTable(title=table.title, title_justify="left")
    least = min(LEAST_NAME, max(len(row[0]) for row in table.rows))
    shown.add_column(table.header[0], overflow="ellipsis", min_width=least)
    for column in table.header[1:]:
        shown.add_column(column, justify="right", no_wrap=True)
    for name, *rest in table.rows[:MANY]:
        shown.add_row(Text(name), *rest)
    if more := len(table.rows[MANY:]):
        shown.add_row(f"and {more} more")
    return shown


class Chart:
    """A timeline; its last row shows the part of `metric_cpus` that is in use."""

    def __init__(self, timeline: Timeline, metric_cpus: int) -> None:
        self._timeline, self._metric_cpus = timeline, metric_cpus
        self._lanes = gantt.lanes(timeline)
        self._end = timeline.end or 1.0

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield lines that fit the window."""
        width = options.max_width
        letters, legend = _legend(gantt.longest(self._lanes), width)
        metrics = bool(self._timeline.on_cores)
        legend += _phases(self._metric_cpus if metrics else 0, width)
        # The axis, the metrics and the prompt stand on the screen with the rows.
        window = console.height - len(legend) - 3 if console.is_terminal else MOST_ROWS
        rows = gantt.rows(self._lanes, max(LEAST_ROWS, window))
        labels = [*(plain(row.label) for row in rows), "metric CPUs"]
        left = 1 + min(max(map(cell_len, labels)), width // 3)
        columns = max(1, width - left)
        lines: list[_Line] = [[(" " * left + _axis(self._end, columns), _FAINT)]]
        for row, label in zip(rows, labels, strict=False):
            cells = gantt.cells(row, columns, self._end)
            lines.append([(_fitted(label, left), _PLAIN), *_painted(cells, letters)])
        if metrics:
            used = gantt.cores(self._timeline, columns, self._end)
            text = "".join(_bar(cores / self._metric_cpus) for cores in used)
            lines.append([(_fitted(labels[-1], left) + text, _PLAIN)])
        for line in [*lines, *legend]:
            yield from _cropped(line, width, ascii_only=options.ascii_only)
            yield Segment.line()


def _legend(found: Sequence[tuple[str, float]], width: int) -> tuple[dict[str, str], list[_Line]]:
    """Give letters to the longest datasets, as many as `LEGEND_LINES` lines can name."""
    named = [f"{plain(name)} {share:.0%}" for name, share in found]
    for count in range(min(len(found), len(_LETTERS)), 0, -1):
        # A letter before each name and two spaces after it; the last is like "+ 43 others 24%".
        column = max(13, *map(cell_len, named[:count])) + 4
        each_line = max(1, (width + 2) // column)
        if count + (count < len(found)) <= each_line * LEGEND_LINES:
            break
    letters = {name: _LETTERS[i] for i, (name, _) in enumerate(found[:count])}
    entries = [
        (set_cell_size(f"{letter} {words}", column), _style(letter, ground=False))
        for letter, words in zip(letters.values(), named, strict=False)
    ]
    if rest := found[count:]:
        entries.append((f"{OTHERS} {len(rest)} others {sum(s for _, s in rest):.0%}", _PLAIN))
    return letters, [entries[i : i + each_line] for i in range(0, len(entries), each_line)]


def _phases(metric_cpus: int, width: int) -> list[_Line]:
    words = [f"{glyph} {phase.value}" for phase, glyph in _PHASES.items()]
    words += [f"{_BARS[-1]} {metric_cpus} cores"] if metric_cpus else []
    whole = [word.replace(" ", "\N{NO-BREAK SPACE}") for word in words]  # no break within one
    lines = textwrap.wrap("  ".join(whole), width)
    return [[(line.replace("\N{NO-BREAK SPACE}", " "), _FAINT)] for line in lines]


def _painted(
    cells: Sequence[Activity | None], letters: Mapping[str, str]
) -> Iterator[tuple[str, Style]]:
    """Yield cells as text, equal neighbors in one piece."""
    for what, alike in itertools.groupby(cells):
        if what is None:
            glyph, style = " ", _PLAIN
        elif isinstance(what, Phase):
            glyph, style = _PHASES[what], _FAINT
        else:
            glyph = letters.get(what, OTHERS)
            style = _style(glyph, ground=True)
        yield glyph * len(list(alike)), style


def _style(letter: str, *, ground: bool) -> Style:
    if letter == OTHERS:
        return _PLAIN
    color = f"color({_COLORS[_LETTERS.index(letter) % len(_COLORS)]})"
    return Style(color="black", bgcolor=color) if ground else Style(color=color)


def _axis(end: float, columns: int) -> str:
    """Return the axis, with each moment above the column that it begins."""
    step = gantt.tick_seconds(end, columns // TICK_COLUMNS)
    text = ""
    for tick in range(int(end / step) + 1):
        column = round(tick * step / end * columns)
        mark = f"|{gantt.clock(tick * step)}"
        if column >= len(text) and column + len(mark) <= columns:
            text = text.ljust(column) + mark
    return text


def _bar(part: float) -> str:
    """Return a bar in eighths, rounded up."""
    return _BARS[min(len(_BARS) - 1, math.ceil(part * (len(_BARS) - 1) - 1e-9))]


def _fitted(label: str, left: int) -> str:
    """Cut or fill a label to the width of its column, which ends with a space."""
    if cell_len(label) > left - 1:
        label = set_cell_size(label, left - 2) + "…"
    return set_cell_size(label, left)


def _cropped(line: _Line, width: int, *, ascii_only: bool) -> Iterator[Segment]:
    """Cut a line at the width of the window."""
    for text, style in line:
        shown = text
        if ascii_only:
            shown = text.translate(_ASCII).encode("ascii", "replace").decode()
        if cell_len(shown) > width:
            shown = set_cell_size(shown, width)
        width -= cell_len(shown)
        if shown:
            yield Segment(shown, style)
