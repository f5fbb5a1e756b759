"""A plan over time in a terminal: one line a row, none wider than the window.

Letters tell datasets apart without colours; dots and digits do the rest where only ASCII can be
shown.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from rich.cells import cell_len, set_cell_size
from rich.console import Console, ConsoleOptions, RenderResult
from rich.segment import Segment
from rich.style import Style

from coordinate_eval._format import plain
from coordinate_eval.coordinator.dry_run import gantt
from coordinate_eval.coordinator.dry_run.gantt import Activity, Phase
from coordinate_eval.coordinator.planning.simulate import Timeline

LEAST_ROWS = 8
MOST_ROWS = 64
"""Rows of trials where there is no window to fit."""

LEGEND_LINES = 4
"""Lines that name datasets, at most."""

TICK_COLUMNS = 10
"""Columns between two marks of the axis, at least."""

OTHERS = "+"
"""Stands for every dataset without a letter."""

_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
_COLORS = (75, 215, 114, 204, 141, 80, 179, 175, 110, 150)  # of 256: all light enough for black
_FAINT = Style(dim=True)
_PLAIN = Style()

_Piece = tuple[str, Style]


class _Glyphs(NamedTuple):
    phases: Mapping[Phase, str]
    bars: str
    more: str


_UNICODE = _Glyphs(
    {Phase.STAGE: "░", Phase.START: "▒", Phase.WAIT: "·"}, bars=" ▁▂▃▄▅▆▇█", more="…"
)
_ASCII = _Glyphs({Phase.STAGE: ".", Phase.START: ":", Phase.WAIT: "-"}, bars=" 12345678", more="~")


class Chart:
    """Renders a timeline; the row of metrics shows the part of `metric_cpus` in use."""

    def __init__(self, timeline: Timeline, metric_cpus: int) -> None:
        self._timeline, self._metric_cpus = timeline, metric_cpus
        self._end = timeline.end or 1.0

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Its lines, of which none wraps."""
        width = options.max_width
        glyphs = _ASCII if options.ascii_only else _UNICODE
        letters, legend = _legend(gantt.longest(self._timeline), width)
        metrics = bool(self._timeline.metrics)
        legend += _phases(glyphs, self._metric_cpus if metrics else 0, width)
        # The axis, the metrics and the prompt stand on the screen with the rows.
        window = console.height - len(legend) - 3 if console.is_terminal else MOST_ROWS
        rows = gantt.rows(self._timeline, max(LEAST_ROWS, window))
        labels = [*(plain(row.label) for row in rows), "metric CPUs"]
        left = 1 + min(max(map(cell_len, labels)), width // 3)
        columns = max(1, width - left)
        lines: list[list[_Piece]] = [[(" " * left + _axis(self._end, columns), _FAINT)]]
        for row, label in zip(rows, labels, strict=False):
            cells = gantt.cells(row, columns, self._end)
            lines.append(
                [(_fitted(label, left, glyphs), _PLAIN), *_painted(cells, letters, glyphs)]
            )
        if metrics:
            used = gantt.cores(self._timeline, columns, self._end)
            text = "".join(_bar(cores / self._metric_cpus, glyphs.bars) for cores in used)
            lines.append([(_fitted(labels[-1], left, glyphs), _PLAIN), (text, _PLAIN)])
        for line in [*lines, *legend]:
            yield from _cropped(line, width, ascii_only=options.ascii_only)
            yield Segment.line()


def _legend(
    found: Sequence[tuple[str, float]], width: int
) -> tuple[dict[str, str], list[list[_Piece]]]:
    """A letter for each of the longest datasets, as many as a few lines can name."""
    entry, a_line, count = _room([cell_len(_named("A", *each)) for each in found], width)
    lettered = found[:count]
    letters = {name: _LETTERS[i] for i, (name, _) in enumerate(lettered)}
    pieces = [
        (set_cell_size(_named(_LETTERS[i], *each), entry), _style(_LETTERS[i], ground=False))
        for i, each in enumerate(lettered)
    ]
    if rest := found[len(lettered) :]:
        share = sum(part for _, part in rest)
        pieces.append((_named(OTHERS, f"{len(rest)} others", share), _PLAIN))
    return letters, [pieces[i : i + a_line] for i in range(0, len(pieces), a_line)]


def _room(lengths: Sequence[int], width: int) -> tuple[int, int, int]:
    """Columns of an entry, entries on a line, and how many datasets get a letter."""
    for count in range(min(len(_LETTERS), len(lengths)), 1, -1):
        more = count < len(lengths)
        entry = max([*lengths[:count], 14 if more else 0]) + 2  # "+ 43 others 24%"
        a_line = max(1, (width + 2) // entry)
        if count + more <= a_line * LEGEND_LINES:
            return entry, a_line, count
    return width, 1, 1


def _named(letter: str, name: str, share: float) -> str:
    return f"{letter} {plain(name)} {share:.0%}"


def _phases(glyphs: _Glyphs, metric_cpus: int, width: int) -> list[list[_Piece]]:
    words = [f"{glyphs.phases[phase]} {phase.value}" for phase in Phase]
    words += [f"{glyphs.bars[-1]} {metric_cpus} cores"] if metric_cpus else []
    lines: list[str] = []
    for word in words:
        if lines and cell_len(lines[-1]) + 2 + cell_len(word) <= width:
            lines[-1] += f"  {word}"
        else:
            lines.append(word)
    return [[(line, _FAINT)] for line in lines]


def _painted(
    cells: Sequence[Activity | None], letters: Mapping[str, str], glyphs: _Glyphs
) -> Iterator[_Piece]:
    """Cells as text, alike neighbours in one piece."""
    begin = 0
    for i, what in enumerate(cells):
        if i + 1 < len(cells) and cells[i + 1] == what:
            continue
        if what is None:
            glyph, style = " ", _PLAIN
        elif isinstance(what, Phase):
            glyph, style = glyphs.phases[what], _FAINT
        else:
            glyph = letters.get(what, OTHERS)
            style = _style(glyph, ground=True)
        yield glyph * (i + 1 - begin), style
        begin = i + 1


def _style(letter: str, *, ground: bool) -> Style:
    if letter == OTHERS:
        return _PLAIN
    color = f"color({_COLORS[_LETTERS.index(letter) % len(_COLORS)]})"
    return Style(color="black", bgcolor=color) if ground else Style(color=color)


def _axis(end: float, columns: int) -> str:
    """Moments above the columns that they begin."""
    step = gantt.tick_seconds(end, columns // TICK_COLUMNS)
    text = ""
    for tick in range(int(end / step) + 1):
        column = round(tick * step / end * columns)
        mark = f"|{gantt.clock(tick * step)}"
        if column >= len(text) and column + len(mark) <= columns:
            text = text.ljust(column) + mark
    return text


def _bar(part: float, bars: str) -> str:
    """How full, in eighths; anything at all is at least one."""
    return bars[min(len(bars) - 1, math.ceil(part * (len(bars) - 1) - 1e-9))]


def _fitted(label: str, left: int, glyphs: _Glyphs) -> str:
    """A label in its column, and a space."""
    if cell_len(label) > left - 1:
        label = set_cell_size(label, left - 2) + glyphs.more
    return set_cell_size(label, left)


def _cropped(line: Sequence[_Piece], width: int, *, ascii_only: bool) -> Iterator[Segment]:
    for text, style in line:
        shown = text.encode("ascii", "replace").decode() if ascii_only else text
        if cell_len(shown) > width:
            shown = set_cell_size(shown, width)
        width -= cell_len(shown)
        if shown:
            yield Segment(shown, style)
