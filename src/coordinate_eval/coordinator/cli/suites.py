"""`coordinate-eval suites`: what there is to evaluate, and what it would take."""

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from coordinate_eval import _files
from coordinate_eval._format import duration
from coordinate_eval.coordinator.inputs import suite
from coordinate_eval.coordinator.planning.costs import conditions, dataset_cost, known_work
from coordinate_eval.errors import UserError
from coordinate_eval.priors import catalogue, gpus
from coordinate_eval.priors.predict import Priors
from coordinate_eval.priors.roofline import Conditions
from coordinate_eval.priors.shapes import DEFAULT_SIZE, llama_like, parameter_count
from coordinate_eval.records import Checkpoint, Dataset, EngineSettings, Suite

_SUMS = ("items", "gpu_seconds", "metric_cpu_seconds")


def list_shipped(*, as_json: bool) -> None:
    """Print the suites that come with the program."""
    rows = []
    for name in suite.shipped():
        wanted = suite.load(name)
        counts = [catalogue.items(d) or 0 for d in wanted.datasets]
        runs = sum(1 for d in wanted.datasets if d.task is not None)
        rows.append(
            {
                "suite": name,
                "datasets": len(counts),
                "with_task": runs,
                "items": sum(counts),
                "groups": _groups(wanted),
            }
        )
    if as_json:
        sys.stdout.write(_files.pretty(rows))
        return
    table = Table("suite")
    for column in ("datasets", "that can be run", "items"):
        table.add_column(column, justify="right")
    table.add_column("groups")
    for row in rows:
        numbers = (f"{row[key]:,}" for key in ("datasets", "with_task", "items"))
        table.add_row(str(row["suite"]), *numbers, ", ".join(row["groups"]))  # type: ignore[arg-type]  # a list here
    Console().print(table)


def model_of(model: str | None, checkpoint: Path | None) -> tuple[str, Checkpoint]:
    """The model to predict for, and what to call it.

    Raises:
        UserError: both are named, or the one that is cannot be used.
    """
    if checkpoint is None:
        name = model or DEFAULT_SIZE
        return name, llama_like(parameter_count(name))
    if model is not None:
        raise UserError("--model and --checkpoint both name the model: give one of them")
    from coordinate_eval.coordinator.inputs import checkpoint as checkpoints

    return str(checkpoint), checkpoints.inspect(checkpoint, config=None, tokenizer=None)


def show_suite(
    wanted: Suite, name: str, checkpoint: Checkpoint, gpu: str, degree: int, *, as_json: bool
) -> None:
    """Print the datasets of a suite with what each takes on one trial of `degree` GPUs."""
    described = describe(wanted, checkpoint, gpu, degree)
    described["model"] = {"name": name, **described["model"]}
    if as_json:
        sys.stdout.write(_files.pretty(described))
        return
    Console().print(_table(described))


def describe(wanted: Suite, checkpoint: Checkpoint, gpu: str, degree: int) -> dict[str, Any]:
    """A suite as one JSON document: its datasets, and sums by group and over all.

    Seconds are those of one trial, engine start apart, by the shipped priors (`priors show` has
    what was learned); null, and not in the sums, where nothing is known of a dataset before it is
    built.
    """
    on = conditions(checkpoint, EngineSettings(), gpu, degree)
    rows = [_row(dataset, on) for dataset in wanted.datasets]
    names = _groups(wanted) + [None] * any(d.group is None for d in wanted.datasets)
    groups = [{"group": n, **_sums(r for r in rows if r["group"] == n)} for n in names]
    return {
        "schema": "coordinate-eval/suite@1",
        "suite": wanted.name,
        "digest": wanted.digest,
        "model": {"parameters": checkpoint.parameters, "bytes": checkpoint.bytes},
        "gpu": gpu,
        "gpu_known": gpus.known(gpu),
        "gpus_per_trial": degree,
        "datasets": rows,
        "groups": groups,
        "total": _sums(rows),
    }


def _row(dataset: Dataset, on: Conditions) -> dict[str, Any]:
    entry = catalogue.find(dataset)
    work = known_work(dataset)
    cost = None if work is None else dataset_cost(dataset, work, on, Priors(), built=False)
    own = entry.num_fewshot if entry else None
    return {
        "group": dataset.group,
        "name": dataset.name,
        "task": dataset.task,
        "kind": entry.kind if entry else None,
        "num_fewshot": own if dataset.num_fewshot is None else dataset.num_fewshot,
        "limit": dataset.limit,
        "items": cost.items if cost else None,
        "gpu_seconds": cost.gpu_seconds if cost else None,
        "metric_cpu_seconds": cost.metric_cpu_seconds if cost else None,
    }


def _sums(rows: Iterable[dict[str, Any]]) -> dict[str, Any]:
    rows = list(rows)
    sums = {key: sum(row[key] for row in rows if row[key] is not None) for key in _SUMS}
    return {"datasets": len(rows), **sums}


def _groups(wanted: Suite) -> list[str]:
    return list(dict.fromkeys(d.group for d in wanted.datasets if d.group is not None))


def _table(described: dict[str, Any]) -> Table:
    degree, model = described["gpus_per_trial"], described["model"]
    known = "" if described["gpu_known"] else " (unknown: taken for an A100)"
    table = Table(
        title=escape(
            f"{described['suite']}: predicted for {model['name']}, {model['parameters']:,} "
            f"parameters, on one trial of {degree} × {described['gpu']}{known}"
        ),
        title_justify="left",
    )
    for column in ("dataset", "harness task", "kind"):
        table.add_column(column, overflow="fold")
    for column in ("few-shot", "items", "GPU time", "metric CPU"):
        table.add_column(column, justify="right", no_wrap=True)
    rows = described["datasets"]
    for group in described["groups"]:
        _sum_row(table, group["group"] or "no group", group)
        for row in (row for row in rows if row["group"] == group["group"]):
            shots = "" if row["num_fewshot"] is None else str(row["num_fewshot"])
            task = escape(row["task"]) if row["task"] else "[yellow]none: planned only"
            table.add_row(row["name"], task, row["kind"] or "", shots, *_numbers(row))
        table.add_section()
    _sum_row(table, "all", described["total"])
    if any(row["items"] is None for row in rows):
        table.caption = (
            "?: not known before it is built; `coordinate-eval CKPT --dry-run` builds it"
        )
    return table


def _sum_row(table: Table, name: str, sums: dict[str, Any]) -> None:
    table.add_row(f"{name}: {sums['datasets']}", "", "", "", *_numbers(sums), style="bold")


def _numbers(row: dict[str, Any]) -> list[str]:
    if row["items"] is None:
        return ["?", "?", "?"]
    metric = row["metric_cpu_seconds"]
    return [f"{row['items']:,}", duration(row["gpu_seconds"]), duration(metric) if metric else ""]
