"""A plan for people: what would run where, for how long, and the exact scripts."""

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from coordinate_eval.coordinator.plan import Plan

MANY = 40
"""Rows of a table after which the rest is only counted."""


def render(plan: Plan, busy: Sequence[str] = ()) -> RenderableType:
    """The summary, the nodes and the datasets of a plan."""
    return Group(_summary(plan), Text(), _nodes(plan), Text(), _datasets(plan), *map(Text, busy))


def duration(seconds: float) -> str:
    """Seconds as people read them."""
    if seconds < 90:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02d} s" if minutes < 90 else f"{minutes / 60:.1f} h"


def size(count: float) -> str:
    """Bytes as people read them."""
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} GiB"


def _summary(plan: Plan) -> Table:
    estimate = plan.estimate
    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    checkpoint = plan.checkpoint
    table.add_row(
        "checkpoint",
        Text(
            f"{checkpoint.path}  ({size(checkpoint.bytes)}, {checkpoint.parameters:,} parameters)"
        ),
    )
    items = sum(d.items for d in plan.datasets)
    table.add_row("suite", f"{plan.suite.name}: {len(plan.datasets)} datasets, {items:,} items")
    gpus = sum(t.gpus for t in plan.trials)
    table.add_row(
        "trials",
        f"{len(plan.trials)} {plan.engine.name} engines on {gpus} GPUs of {len(plan.nodes)} nodes",
    )
    table.add_row("makespan", duration(estimate.makespan_seconds))
    ratio = estimate.makespan_seconds / estimate.lower_bound_seconds
    table.add_row(
        "lower bound", f"{duration(estimate.lower_bound_seconds)}  (the plan is {ratio:.2f} × it)"
    )
    table.add_row("GPU time", f"{estimate.gpu_hours:.2f} h, {estimate.gpu_idle_fraction:.0%} idle")
    return table


def _nodes(plan: Plan) -> Table:
    table = Table(title="nodes", title_justify="left")
    for column in ("node", "GPU"):
        table.add_column(column)
    for column in ("trials", "shards", "weights in", "first response", "last response"):
        table.add_column(column, justify="right")
    for node in plan.nodes[:MANY]:
        trials = [t for t in plan.trials if t.node == node.name]
        ready = trials[0].start_seconds + trials[0].setup_seconds
        ends = [ready + sum(s.gpu_seconds for s in t.shards) for t in trials]
        table.add_row(
            node.name,
            node.gpu_type,
            str(len(trials)),
            str(sum(len(t.shards) for t in trials)),
            duration(trials[0].start_seconds),
            duration(ready),
            duration(max(ends)),
        )
    if plan.nodes[MANY:]:
        table.add_row(f"and {len(plan.nodes[MANY:])} more")
    return table


def _datasets(plan: Plan) -> Table:
    table = Table(title="datasets, longest first", title_justify="left")
    table.add_column("dataset")
    for column in ("items", "shards", "GPU time", "metric CPU time"):
        table.add_column(column, justify="right")
    counts: dict[str, int] = {}
    for shard in (s for t in plan.trials for s in t.shards):
        counts[shard.dataset] = counts.get(shard.dataset, 0) + 1
    ordered = sorted(plan.datasets, key=lambda d: -d.gpu_seconds)
    for dataset in ordered[:MANY]:
        table.add_row(
            dataset.name,
            f"{dataset.items:,}",
            str(counts[dataset.name]),
            duration(dataset.gpu_seconds),
            duration(dataset.metric_cpu_seconds) if dataset.metric_cpu_seconds else "",
        )
    if ordered[MANY:]:
        table.add_row(f"and {len(ordered[MANY:])} more")
    return table
