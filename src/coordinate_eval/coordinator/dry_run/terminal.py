"""A plan for people, in a terminal: figures, time, nodes, datasets, and what could go wrong."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.table import Table
from rich.text import Text

from coordinate_eval._format import duration, plain
from coordinate_eval.coordinator.dry_run.chart import Chart
from coordinate_eval.coordinator.dry_run.risks import risks
from coordinate_eval.coordinator.dry_run.summary import Review, dataset_lines, node_lines, summary

MANY = 40
"""Rows of a table after which the rest is only counted."""

LEAST_NAME = 12
"""Characters of a name that a narrow window leaves of it."""


def render(review: Review) -> RenderableType:
    """Everything about a plan but its submissions."""
    parts: list[RenderableType] = [_summary(review)]
    if found := risks(review):
        parts += [Text(), Text("what could go wrong", style="italic"), _risks(found)]
    if review.plan.what_if:
        parts += [Text(), _what_if(review)]
    parts += [Text(), Text("what runs when", style="italic")]
    parts += [Chart(review.timeline, review.offer.metric_cpus)]
    parts += [Text(), _nodes(review), Text(), _datasets(review)]
    parts += [Text(plain(f"not used: {busy.name}: {busy.why}")) for busy in review.offer.busy]
    return Group(*parts)


def _summary(review: Review) -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for name, words in summary(review):
        table.add_row(name, Text(words))
    return table


def _risks(found: Sequence[str]) -> Table:
    table = Table.grid(padding=(0, 1))
    table.add_column(style="yellow", no_wrap=True)
    table.add_column(overflow="fold")
    for risk in found:
        table.add_row("!", Text(plain(risk)))
    return table


def _what_if(review: Review) -> Table:
    table = Table(title="what if there were", title_justify="left")
    for column in ("nodes", "GPUs", "makespan", "to bound", "GPU-hours", "idle"):
        table.add_column(column, justify="right", no_wrap=True)
    for size in review.plan.what_if:
        estimate = size.estimate
        table.add_row(
            str(size.nodes),
            str(size.gpus),
            duration(estimate.makespan_seconds),
            f"{estimate.makespan_seconds / estimate.lower_bound_seconds:.2f} ×",
            f"{estimate.gpu_hours:.2f}",
            f"{estimate.gpu_idle_fraction:.0%}",
        )
    return table


def _nodes(review: Review) -> RenderableType:
    return _Named(
        "nodes: weights in memory, first and last response",
        ("node", "trials", "shards", "weights", "first", "last"),
        [
            (
                line.name,
                str(line.trials),
                str(line.shards),
                duration(line.staged),
                duration(line.ready),
                duration(line.end),
            )
            for line in node_lines(review)
        ],
    )


def _datasets(review: Review) -> RenderableType:
    return _Named(
        "datasets, longest first",
        ("dataset", "items", "shards", "GPU time", "metric CPU"),
        [
            (
                plain(cost.name),
                f"{cost.items:,}",
                str(shards),
                duration(cost.gpu_seconds),
                duration(cost.metric_cpu_seconds) if cost.metric_cpu_seconds else "",
            )
            for cost, shards in dataset_lines(review)
        ],
    )


@dataclass(frozen=True)
class _Named:
    """A table whose rows begin with a name: a narrow window loses the last columns, never that."""

    title: str
    header: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """As many columns as fit whole, where names may be cut to `LEAST_NAME` characters."""
        shown = [self.header, *self.rows[:MANY]]
        widths = [max(map(cell_len, column)) for column in zip(*shown, strict=True)]
        # Of a table's width, each column takes its own and 3, and the last border 1.
        room = [options.max_width - 4]
        room += [room[0] - taken for taken in itertools.accumulate(w + 3 for w in widths[1:])]
        least = min(widths[0], LEAST_NAME)
        fitting = max(1, sum(1 for left in room if left >= least))
        name = max(1, min(widths[0], room[fitting - 1]))
        table = Table(title=self.title, title_justify="left")
        table.add_column(self.header[0], overflow="ellipsis", no_wrap=True, width=name)
        for column in self.header[1:fitting]:
            table.add_column(column, justify="right", no_wrap=True)
        for first, *rest in self.rows[:MANY]:
            table.add_row(Text(first), *rest[: fitting - 1])
        if self.rows[MANY:]:
            table.add_row(f"and {len(self.rows[MANY:])} more")
        yield table
