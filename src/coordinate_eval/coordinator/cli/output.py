"""Output to the terminal: as tables, without the warnings of other libraries."""

import contextlib
import csv
import io
import logging
import math
import os
import sys
import time
import warnings
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Literal, Self

from pydantic_core import PydanticSerializationError, to_json
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType
from rich.errors import MarkupError
from rich.markup import escape
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from coordinate_eval import _files
from coordinate_eval._format import plain, visible, visible_json
from coordinate_eval.coordinator.cli.streams import printable_output
from coordinate_eval.errors import CoordinateError, UserError

PIPE_WIDTH = 160
"""Characters of a line in a pipe or a file, where no window cuts it."""

QUIET_SECONDS = 30.0
"""Off a terminal, an unchanged line is printed again only after this many seconds."""

QUIET_VARIABLES = {
    "TRANSFORMERS_VERBOSITY": "error",
    "DATASETS_VERBOSITY": "error",
    "HF_HUB_VERBOSITY": "error",
    "LMEVAL_LOG_LEVEL": "ERROR",
}
"""Read by these libraries when they are imported, the last by the processes that build prompts. One
that the user has set stays as it is."""


class SafeConsole(Console):
    """A console on which no text steers the terminal, whoever chose it."""

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterator[Segment]:
        """Yield segments whose text is printable, but those of the console's own sequences."""
        for segment in super().render(renderable, options):
            text = segment.text if segment.control else visible(segment.text)
            yield Segment(text, segment.style, segment.control)

    def render_str(self, text: str, **options: Any) -> Text:  # noqa: ANN401 - as rich has it
        """Return text with its markup, or as it is if that is malformed."""
        try:
            return super().render_str(text, **options)
        except MarkupError:
            return Text(text)


def console(*, stderr: bool = False, width: int | None = None) -> Console:
    """Return a console for this process's output, or for its errors."""
    # The stream as it is now: libraries are given another one, see `quiet_libraries`.
    return SafeConsole(file=sys.stderr if stderr else sys.stdout, width=width)


def table_console() -> Console:
    """Return a console for tables: as wide as the terminal, and wide in a pipe or a file."""
    found = console()
    if found.is_terminal or "COLUMNS" in os.environ:
        return found
    return console(width=PIPE_WIDTH)


def out(text: str, style: str | None = None) -> None:
    """Print a line on stdout as it is, however long it is."""
    console().print(text, style=style, markup=False, highlight=False, soft_wrap=True)


def say(text: str) -> None:
    """Write a line, or several, to stderr."""
    sys.stderr.write(f"{visible(text)}\n")


def write_json(value: object) -> None:
    """Write a value as JSON to stdout. What is infinite or not a number becomes null."""
    try:
        text = to_json(value, indent=1, inf_nan_mode="null").decode() + "\n"
    except PydanticSerializationError:  # a path may have bytes that are no text
        text = _files.pretty(_finite(value))
    sys.stdout.write(visible_json(text))


def _finite(value: object) -> object:
    if isinstance(value, dict):
        return {name: _finite(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


@contextlib.contextmanager
def quiet_libraries(*, verbose: bool) -> Iterator[None]:
    """Hide the warnings of libraries in a block, unless `verbose`. Errors are shown.

    The evaluation harness warns of each task that leaves a default to it. These warnings say
    nothing about the run, and every command that builds requests would repeat them. The
    environment is restored after the block, so that the logs of jobs have all warnings.
    """
    if verbose:
        with printable_output():
            yield
        return
    added = {name: value for name, value in QUIET_VARIABLES.items() if name not in os.environ}
    os.environ.update(added)
    # What is logged without any handler goes to the last resort, which prints warnings.
    last = logging.lastResort
    level = last.level if last is not None else logging.WARNING
    harness = logging.getLogger("lm_eval")
    harness_level = harness.level
    try:
        if last is not None:
            last.setLevel(logging.ERROR)
        harness.setLevel(logging.ERROR)
        with warnings.catch_warnings():
            if not sys.warnoptions:
                warnings.simplefilter("ignore")
            with printable_output():
                yield
    finally:
        harness.setLevel(harness_level)
        if last is not None:
            last.setLevel(level)
        for name in added:
            os.environ.pop(name, None)


def framed(columns: Sequence[Sequence[str]], heads: int = 1) -> str:
    """Return columns of cells, the first ones their heads, in the frame of the other tables.

    rich takes twenty times as long to draw ten thousand lines.
    """
    widths = [*map(_width_of, columns)]

    def line(left: str, middle: str, right: str, fill: str) -> str:
        return left + middle.join(fill * (width + 2) for width in widths) + right

    def cell(text: str, width: int) -> str:
        return " " * (1 + width - cell_len(text)) + text + " "

    padded = [[cell(t, width) for t in c] for c, width in zip(columns, widths, strict=True)]
    rows = list(zip(*padded, strict=True))
    lines = [line("┏", "┳", "┓", "━"), *(f"┃{'┃'.join(cells)}┃" for cells in rows[:heads])]
    lines += [line("┡", "╇", "┩", "━"), *(f"│{'│'.join(cells)}│" for cells in rows[heads:])]
    return "\n".join([*lines, line("└", "┴", "┘", "─"), ""])


def print_in_parts(
    first: Sequence[Sequence[str]], others: Sequence[Sequence[str]], heads: int = 1
) -> None:
    """Print columns of cells as tables that fit the terminal, each with the first columns."""
    first, others = ([[*map(plain, column)] for column in each] for each in (first, others))
    room = table_console().width
    begin = 1 + sum(_width_of(column) + 3 for column in first)
    parts: list[list[Sequence[str]]] = []
    used = room
    for column in others:
        needed = _width_of(column) + 3
        if used + needed > room:
            parts.append([*first])
            used = begin
        parts[-1].append(column)
        used += needed
    for part in parts:
        sys.stdout.write(visible(framed(part, heads)))


def _width_of(cells: Sequence[str]) -> int:
    """Return the columns of a terminal that the widest of some texts takes."""
    return max(map(cell_len, cells))


def write_csv(rows: Iterable[Iterable[object]]) -> None:
    """Write rows of comma-separated values to stdout. None is an empty cell."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    sys.stdout.write(visible(text.getvalue()))


class Ticker:
    """A line that changes in place on a terminal, and elsewhere a line for each change."""

    def __init__(self, console: Console, first: str) -> None:
        self._console = console
        self._status = console.status(escape(first)) if console.is_terminal else None
        self._last, self._when = "", 0.0

    def __enter__(self) -> Self:
        if self._status is not None:
            self._status.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._status is not None:
            self._status.stop()

    def update(self, what: str, more: str = "") -> None:
        """Show a line in place of the last; off a terminal only if `what` is new, or it is time."""
        if self._status is not None:
            self._status.update(escape(what + more))
        elif what != self._last or time.monotonic() - self._when > QUIET_SECONDS:
            self._console.print(what + more, markup=False, highlight=False, soft_wrap=True)
            self._last, self._when = what, time.monotonic()


@contextlib.contextmanager
def errors_are_no_verdict() -> Iterator[None]:
    """Let errors in the block end with 2, where 1 is a verdict."""
    try:
        yield
    except CoordinateError as error:
        raise UserError(str(error)) from error


class _Table(Table):
    """A table whose texts are shown as they are: what has a style is a `Text`."""

    def add_row(self, *cells: Any, **more: Any) -> None:  # noqa: ANN401 - rich's own
        super().add_row(*(Text(c) if isinstance(c, str) else c for c in cells), **more)


def new_table(*heads: str, title: str | None = None) -> Table:
    """Return an empty table, whose texts are folded where the terminal is narrow.

    A head that begins with ">" is of numbers, one with "=" of texts: neither is folded.
    """
    made = _Table(title=title and escape(title), title_justify="left")
    for head in heads:
        whole = head[:1] in (">", "=")
        justify: Literal["left", "right"] = "right" if head[:1] == ">" else "left"
        made.add_column(escape(head[whole:]), justify=justify, no_wrap=whole, overflow="fold")
    return made


def differences(found: dict[str, Any]) -> Table | Text:
    """Return `rescored` of a `results.json` for people: what has changed since the run before."""
    notes = [f"{name}: {why}" for name, why in found["judges"].items()]
    if not found["changed"] and not found["not_scored_before"]:
        return Text("\n".join([f"no score has changed since {found['dir']}", *notes]))
    heads = ("task", "metric", ">before", ">now", ">difference")
    shown = new_table(*heads, title=f"changed since {found['dir']}")
    for tasks in found["changed"].values():
        for task, values in tasks.items():
            for metric, value in values.items():
                old, new = value["before"], value["now"]
                cells = ["" if each is None else f"{each:.4f}" for each in (old, new)]
                difference = "" if old is None or new is None else f"{new - old:+.4f}"
                shown.add_row(task, metric.removesuffix(",none"), *cells, difference)
    for name in found["not_scored_before"]:
        shown.add_row(name, "", "", "not scored before", "")
    shown.caption, shown.caption_justify = escape("\n".join(notes)) or None, "left"
    return shown


def first_signal_table(known: dict[str, Any]) -> Table:
    """Return `known`, the content of a `first-signal.json`, as a table for people."""
    heads = ("task", "metric", ">score", ">95 % interval", ">items")
    shown = new_table(*heads, title="first signal: from some of the items only")
    for name, dataset in known["datasets"].items():
        items = f"{dataset['items']} of {dataset['of_items']}"
        if dataset["of_tasks"] > 1:
            items += f", {dataset['tasks']} of {dataset['of_tasks']} tasks"
        estimates = dataset["estimates"]
        own = {name: estimates[name]} if name in estimates else estimates
        for task, values in own.items():
            for number, (metric, found) in enumerate(values.items()):
                between = (
                    "" if found["low"] is None else f"{found['low']:.4f} … {found['high']:.4f}"
                )
                shown.add_row(
                    "" if number else task,
                    metric.removesuffix(",none"),
                    f"{found['value']:.4f}",
                    between,
                    "" if number else items,
                )
            items = ""
    for name in known["pending"]:
        shown.add_row(name, Text("pending", "yellow"), "", "", "")
    for name, why in known["without"].items():
        shown.add_row(name, Text(why.splitlines()[-1], "yellow"), "", "", "")
    return shown
