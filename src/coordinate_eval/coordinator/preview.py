"""A plan for people, in a terminal: figures, time, nodes, datasets, and what could go wrong."""

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from coordinate_eval.coordinator.chart import Chart
from coordinate_eval.coordinator.review import Review, dataset_lines, node_lines, summary
from coordinate_eval.coordinator.words import duration, plain

MANY = 40
"""Rows of a table after which the rest is only counted."""


def render(review: Review) -> RenderableType:
    """Everything about a plan but its submissions."""
    parts: list[RenderableType] = [_summary(review)]
    if review.risks:
        parts += [Text(), Text("what could go wrong", style="italic"), _risks(review)]
    if review.plan.what_if:
        parts += [Text(), _what_if(review)]
    parts += [Text(), Text("what runs when", style="italic")]
    parts += [Chart(review.timeline, review.metric_cpus)]
    parts += [Text(), _nodes(review), Text(), _datasets(review)]
    parts += [Text(plain(f"not used: {busy.name}: {busy.why}")) for busy in review.busy]
    return Group(*parts)


def _summary(review: Review) -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for name, words in summary(review):
        table.add_row(name, Text(words))
    return table


def _risks(review: Review) -> Table:
    table = Table.grid(padding=(0, 1))
    table.add_column(style="yellow", no_wrap=True)
    table.add_column(overflow="fold")
    for risk in review.risks:
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


def _nodes(review: Review) -> Table:
    table = Table(title="nodes: weights in memory, first and last response", title_justify="left")
    table.add_column("node", overflow="ellipsis")
    for column in ("trials", "shards", "weights", "first", "last"):
        table.add_column(column, justify="right", no_wrap=True)
    lines = node_lines(review)
    for line in lines[:MANY]:
        table.add_row(
            Text(line.name),
            str(line.trials),
            str(line.shards),
            duration(line.staged),
            duration(line.ready),
            duration(line.end),
        )
    if lines[MANY:]:
        table.add_row(f"and {len(lines[MANY:])} more")
    return table


def _datasets(review: Review) -> Table:
    table = Table(title="datasets, longest first", title_justify="left")
    table.add_column("dataset", overflow="ellipsis")
    for column in ("items", "shards", "GPU time", "metric CPU"):
        table.add_column(column, justify="right", no_wrap=True)
    lines = dataset_lines(review)
    for cost, shards in lines[:MANY]:
        table.add_row(
            Text(plain(cost.name)),
            f"{cost.items:,}",
            str(shards),
            duration(cost.gpu_seconds),
            duration(cost.metric_cpu_seconds) if cost.metric_cpu_seconds else "",
        )
    if lines[MANY:]:
        table.add_row(f"and {len(lines[MANY:])} more")
    return table
