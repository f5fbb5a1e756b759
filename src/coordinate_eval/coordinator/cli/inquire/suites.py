"""`coordinate-eval suites`: list the datasets of a suite and predict what each takes."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer
from rich.table import Table

from coordinate_eval._format import duration, plural
from coordinate_eval.coordinator.cli.options import common
from coordinate_eval.coordinator.cli.options.parsing import option
from coordinate_eval.coordinator.cli.output import new_table, say, table_console, write_json
from coordinate_eval.coordinator.inputs.suites import suite_yaml
from coordinate_eval.coordinator.inputs.suites.suite import load, shipped
from coordinate_eval.coordinator.planning.costs import conditions, dataset_cost
from coordinate_eval.errors import UserError
from coordinate_eval.priors import catalogue, gpus
from coordinate_eval.priors.predict import Priors
from coordinate_eval.priors.roofline import Conditions
from coordinate_eval.priors.shapes import DEFAULT_SIZE, llama_like, parameter_count
from coordinate_eval.records import Checkpoint, Dataset, EngineSettings, Suite

_HEADINGS = ("dataset", "harness task", "kind", "few-\nshot", "items", "GPU time", "metric\nCPU")

_PLANNED_ONLY = "*"

_SUMS = ("items", "gpu_seconds", "metric_cpu_seconds")


_Suite = Annotated[
    str | None,
    typer.Argument(
        metavar="SUITE", help="A shipped suite's name, or a suite file.", show_default="list all"
    ),
]
_Size = Annotated[
    str | None,
    option("--model SIZE", "Predict for a model with this many parameters: 350m.", shown="7b"),
]
_Checkpoint = Annotated[
    Path | None, option("--checkpoint CKPT", "Predict for this checkpoint instead.")
]
_Gpu = Annotated[str, option("--gpu NAME", "Type of the GPUs.")]
_TensorParallel = Annotated[int, option("--tp N", "GPUs of one trial.", min=1, max=1024)]


def suites_command(
    suite: _Suite = None,
    model: _Size = None,
    checkpoint: _Checkpoint = None,
    gpu: _Gpu = "h200",
    tp: _TensorParallel = 1,
    as_json: common.Json = False,
) -> None:
    """List the shipped suites, or the datasets of one and what they take."""
    if suite is None:
        if model is not None or checkpoint is not None:
            raise typer.BadParameter("name a suite to predict for", param_hint="SUITE")
        _list_shipped(as_json=as_json)
        return
    wanted = load(suite)
    name, described = _model_of(model, checkpoint)
    document = _describe(wanted, described, gpu, tp)
    document["model"] = {"name": name, **document["model"]}
    if as_json:
        write_json(document)
    else:
        console = table_console()
        console.print(_table(document, console.width))


def _list_shipped(*, as_json: bool) -> None:
    """Print the suites that come with the program."""
    rows = []
    for name in shipped():
        wanted = load(name)
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
        write_json(rows)
        return
    table = new_table("suite", ">datasets", ">that can be run", ">items", "groups")
    for row in rows:
        numbers = (f"{row[key]:,}" for key in ("datasets", "with_task", "items"))
        table.add_row(str(row["suite"]), *numbers, ", ".join(row["groups"]))  # type: ignore[arg-type]  # a list here
    table_console().print(table)
    say(f"their tasks and rubrics, to be included in yours, are in {suite_yaml.shipped_folder()}")


def _model_of(model: str | None, checkpoint: Path | None) -> tuple[str, Checkpoint]:
    """Return the model to predict for, and its name for people."""
    if checkpoint is None:
        name = model or DEFAULT_SIZE
        return name, llama_like(parameter_count(name))
    if model is not None:
        raise UserError("--model and --checkpoint both name the model: give one of them")
    from coordinate_eval.coordinator.inputs.checkpoints import checkpoint as checkpoints

    return str(checkpoint), checkpoints.inspect(checkpoint, config=None, tokenizer=None)


def _describe(wanted: Suite, checkpoint: Checkpoint, gpu: str, degree: int) -> dict[str, Any]:
    """Return a suite as one JSON document: its datasets, and sums by group and over all.

    Seconds are those of one trial without the start of its engine, predicted by the shipped priors
    (`priors show` uses what finished runs took). They are null, and not in the sums, if nothing is
    known of a dataset before it is built.
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
        "aggregates": {name: each.model_dump() for name, each in wanted.aggregates.items()},
        "total": _sums(rows),
    }


def _row(dataset: Dataset, on: Conditions) -> dict[str, Any]:
    entry = catalogue.find(dataset)
    work = catalogue.known_work(dataset)
    cost = None if work is None else dataset_cost(dataset, work, on, Priors(), built=False)
    own = entry.num_fewshot if entry else None
    return {
        "group": dataset.group,
        "name": dataset.name,
        "task": dataset.task,
        "kind": entry.kind if entry else None,
        "num_fewshot": own if dataset.num_fewshot is None else dataset.num_fewshot,
        "limit": dataset.limit,
        "sample": dataset.sample,
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


def _table(described: dict[str, Any], width: int) -> Table:
    """Return the datasets by group. Names stay whole: a narrow window has fewer columns."""
    degree, model = described["gpus_per_trial"], described["model"]
    known = "" if described["gpu_known"] else " (unknown: taken for an A100)"
    rows = _lines(described)
    optional = [n for n in (1, 2) if _width(rows, (0, *range(1, n + 1), 3, 4, 5, 6)) <= width]
    shown = (0, *range(1, max(optional, default=0) + 1), 3, 4, 5, 6)
    table = new_table(
        *(("=" if number < 3 else ">") + _HEADINGS[number] for number in shown),
        title=f"{described['suite']}: predicted for {model['name']}, {model['parameters']:,} "
        f"parameters, on one trial of {degree} × {described['gpu']}{known}",
    )
    for row in rows:
        table.add_row(*(row.cells[n] for n in shown), style=row.style)
        if row.last:
            table.add_section()
    notes = [
        f"aggregate {name}: of {plural(len(each['factors']), 'dataset')}"
        for name, each in described["aggregates"].items()
    ]
    if any(row["task"] is None for row in described["datasets"]):
        notes.append(f"{_PLANNED_ONLY}: planned only, because it has no harness task")
    if any(row["items"] is None for row in described["datasets"]):
        notes.append("?: not known before it is built; `coordinate-eval CKPT --dry-run` builds it")
    table.caption = "\n".join(notes) or None
    return table


class _Line(NamedTuple):
    """A row of the table: the cells of all columns, shown or not."""

    cells: list[str]
    style: str = ""
    last: bool = False


def _lines(described: dict[str, Any]) -> list[_Line]:
    lines = []
    for group in described["groups"]:
        lines.append(_sum_line(group["group"] or "no group", group))
        for row in (row for row in described["datasets"] if row["group"] == group["group"]):
            shots = "" if row["num_fewshot"] is None else str(row["num_fewshot"])
            name = row["name"] + ("" if row["task"] else _PLANNED_ONLY)
            cells = [name, row["task"] or "none", row["kind"] or "", shots, *_numbers(row)]
            lines.append(_Line(cells))
        lines[-1] = lines[-1]._replace(last=True)
    return [*lines, _sum_line("all", described["total"])]


def _sum_line(name: str, sums: dict[str, Any]) -> _Line:
    return _Line([f"{name}: {sums['datasets']}", "", "", "", *_numbers(sums)], "bold")


def _width(lines: Sequence[_Line], columns: Sequence[int]) -> int:
    """Return the characters that a table of these columns takes, borders included."""
    cells = [*(line.cells for line in lines), list(_HEADINGS)]
    return 1 + sum(
        3 + max(len(part) for row in cells for part in row[n].split("\n")) for n in columns
    )


def _numbers(row: dict[str, Any]) -> list[str]:
    if row["items"] is None:
        return ["?", "?", "?"]
    metric = row["metric_cpu_seconds"]
    return [f"{row['items']:,}", duration(row["gpu_seconds"]), duration(metric) if metric else ""]
