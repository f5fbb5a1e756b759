"""`coordinate-eval scores`: a table of checkpoints and datasets, one main metric each.

See `report/main_metric.py` for the choice of the main metric.
"""

import sys
from collections.abc import Iterator, Sequence
from pathlib import PurePath
from typing import Annotated, Any

import typer

from coordinate_eval import _owner
from coordinate_eval._format import plural, visible
from coordinate_eval.coordinator.cli.inquire.runs import Found, find, find_all, readable_rows
from coordinate_eval.coordinator.cli.options import common
from coordinate_eval.coordinator.cli.options.parsing import output_option
from coordinate_eval.coordinator.cli.output import (
    out,
    print_in_parts,
    say,
    write_csv,
    write_json,
)
from coordinate_eval.coordinator.inputs.checkpoints import remote
from coordinate_eval.coordinator.inputs.checkpoints.saved import step_of
from coordinate_eval.coordinator.inputs.layers import load as load_settings
from coordinate_eval.coordinator.inputs.settings import Settings
from coordinate_eval.coordinator.report import state
from coordinate_eval.coordinator.report.formats import lm_eval_results, model_card
from coordinate_eval.coordinator.report.main_metric import Score, main_score
from coordinate_eval.coordinator.report.results import (
    aggregate_scores,
    collect_results,
    judged,
    judged_differently,
    read_dataset,
    read_results,
    with_distinct_names,
)
from coordinate_eval.coordinator.report.warnings import warnings
from coordinate_eval.coordinator.run.claiming.decided import part_lines, why_stopped
from coordinate_eval.coordinator.run.paths import RunDir
from coordinate_eval.coordinator.run.records import Run, read_run
from coordinate_eval.errors import UserError
from coordinate_eval.records import Suite

_OF_ONE_RUN = ("lm_eval", "model-card")

FORMATS = ("table", "csv", "json", "markdown", *_OF_ONE_RUN)
"""Formats for printing scores."""

INCOMPLETE = "*"
"""Marks a run without all of its results."""


_Runs = Annotated[
    list[str] | None,
    typer.Argument(metavar="RUN", help="Directories or ids of runs.", show_default="all runs"),
]
_Format = Annotated[
    str | None,
    output_option(
        "--output-format NAME",
        "table, csv, json or markdown; of one run also lm_eval, the harness's results file, "
        "and model-card, a table in Markdown.",
        shown="table",
    ),
]
_Csv = Annotated[bool, output_option("--csv", "Print comma-separated values.")]
_Markdown = Annotated[bool, output_option("--markdown", "Print a Markdown table.")]


def scores_command(
    run: _Runs = None,
    metric: common.Metric = None,
    output_format: _Format = None,
    as_csv: _Csv = False,
    as_json: common.Json = False,
    as_markdown: _Markdown = False,
    checkpoints: common.InFolder = None,
    suite: common.OfSuite = None,
    settings_file: common.SettingsFile = None,
) -> None:
    """Show a table of scores: a row for each run, by training step; a column for each dataset.

    A column has the dataset's main metric: `acc_norm` if the task has it, else the first metric of
    its configuration of which more is better, else its first one. A group without a score of its
    own has the mean over its tasks.
    """
    flags = (("csv", as_csv), ("json", as_json), ("markdown", as_markdown))
    asked = [name for name, on in flags if on] + ([output_format] if output_format else [])
    if len(asked) > 1:
        raise UserError(f"{asked[0]} and {asked[1]} are two formats: give one of them")
    form = asked[0] if asked else "table"
    if form not in FORMATS:
        raise UserError(f"--output-format {form}: it must be one of {', '.join(FORMATS)}")
    settings, _ = load_settings({}, settings_file)
    if run and (checkpoints or suite):
        raise UserError("--checkpoints and --suite choose among all runs: name no RUN")
    if form in _OF_ONE_RUN:
        _show_one(run or [], settings, metric, form)
        return
    problems: list[str] = []
    if run:
        with _owner.for_show():
            found = [(each, read_run(each)) for each in _named(run, settings)]
            rows = [_row(run_dir, of, metric) for run_dir, of in found]
    else:
        found, problems = find_all(settings, checkpoints, suite)
        rows = readable_rows(found, lambda run_dir, of: _row(run_dir, of, metric), problems)
    _show_table(found, rows, problems, settings, metric, form)


def _show_table(
    found: Sequence[Found],
    rows: list[dict[str, Any]],
    problems: list[str],
    settings: Settings,
    metric: str | None,
    form: str,
) -> None:
    """Print a row for each run, and a column for each dataset.

    Scores of different judges say nothing about each other: they are not shown together.
    """
    rows.sort(key=lambda r: (r["training"], r["step"] is None, r["step"] or 0, r["created"]))
    datasets = list(dict.fromkeys(d.name for _, run in found for d in run.suite.datasets))
    unlike = {name: why for name in datasets if (why := _judged_differently(rows, name))}
    for name, why in unlike.items():
        problems.append(f"dataset {name} is not shown: {why}")
        for row in rows:
            row["scores"].pop(name, None)
    scored = [name for name in datasets if any(name in row["scores"] for row in rows)]
    if unlike and not scored:
        raise UserError("\n".join(problems))
    if metric is not None and rows and not scored:
        raise UserError(f"no dataset of these runs has a score with metric {metric!r}")
    suites = {str(run_dir.root): run.suite for run_dir, run in found if metric is None}
    for row in rows:
        row["aggregates"] = _aggregates(row, suites.get(row["dir"]))
    aggregates = list(dict.fromkeys(name for row in rows for name in row["aggregates"]))
    problems += _not_known(rows, aggregates)
    scored += [n for n in aggregates if any(_score(row, n) is not None for row in rows)]
    if form == "json":
        document = {
            "schema": "coordinate-eval/score-table@1", "datasets": datasets, "rows": rows,
        }  # fmt: skip
        write_json(document)
    elif form == "csv":
        write_csv(_csv(rows, [*datasets, *aggregates]))
    elif form == "markdown":
        sys.stdout.write(visible(_markdown(rows, scored)))
    else:
        _print(rows, scored, settings)
    for problem in problems:
        say(problem)


def _show_one(names: Sequence[str], settings: Settings, metric: str | None, form: str) -> None:
    if len(names) != 1:
        raise UserError(f"the format {form} is of one run: name it")
    if metric is not None:
        raise UserError(f"the format {form} has its own metrics: leave out --metric")
    with _owner.for_show():
        run_dir = find(names[0], settings)
        run = read_run(run_dir)
        ended = read_results(run_dir) or {}
        results = {**collect_results(run_dir, run), "seconds": ended.get("seconds", "")}
        read = (read_dataset(run_dir, dataset.name) for dataset in run.suite.datasets)
        scored = with_distinct_names([found for found in read if found is not None])
    if not scored:
        raise UserError(f"run {run.id} has no scores yet")
    if form == "lm_eval":
        write_json(lm_eval_results(run, results, scored))
    else:
        sys.stdout.write(visible(model_card(run, results, scored)))


def _named(names: Sequence[str], settings: Settings) -> list[RunDir]:
    found = [find(name, settings) for name in names]
    return list({run_dir.root: run_dir for run_dir in found}.values())


def _row(run_dir: RunDir, run: Run, metric: str | None) -> dict[str, Any]:
    read = ((d.name, read_dataset(run_dir, d.name)) for d in run.suite.datasets)
    found = {name: results for name, results in read if results is not None}
    scores = {name: main_score(results, metric) for name, results in found.items()}
    return {
        "step": step_of(run.checkpoint.path) if run.step is None else run.step,
        "run": run.id,
        "dir": str(run_dir.root),
        "checkpoint": run.checkpoint.path,
        "training": str(remote.located(run.checkpoint.path).parent),
        "suite": run.suite.name,
        "created": run.created,
        "complete": state.is_complete(run_dir),
        "decided": why_stopped(run_dir),
        "scores": {name: score._asdict() for name, score in scores.items() if score is not None},
        "judges": {name: judged(results) for name, results in found.items() if results.judge},
        "warnings": [line for results in found.values() for line in warnings(results)],
        "results": found,
    }


def _aggregates(row: dict[str, Any], suite: Suite | None) -> dict[str, dict[str, Any]]:
    scores = {name: Score(**score) for name, score in row["scores"].items()}
    results = row.pop("results")
    found = aggregate_scores(suite.aggregates, scores, results) if suite is not None else {}
    return {name: each.model_dump() for name, each in found.items()}


def _not_known(rows: Sequence[dict[str, Any]], aggregates: Sequence[str]) -> Iterator[str]:
    """Yield which aggregates cannot be told of which runs, and why."""
    for name in aggregates:
        there = (row["aggregates"][name] for row in rows if name in row["aggregates"])
        if why := next((each["why_not"] for each in there if each["why_not"]), ""):
            yield f"{name} is left out: {why}"
            continue
        lacking = [row["aggregates"][name]["missing"] for row in rows if name in row["aggregates"]]
        if any(lacking):
            shown = ", ".join(list(dict.fromkeys(n for each in lacking for n in each))[:5])
            count = sum(1 for each in lacking if each)
            yield f"{name} is not known of {plural(count, 'run')}, without {shown}"


def _score(row: dict[str, Any], name: str) -> dict[str, Any] | None:
    """Return the score of a dataset or aggregate, None if it is not known."""
    found: dict[str, Any] | None = row["scores"].get(name) or row["aggregates"].get(name)
    return found if found is not None and found["value"] is not None else None


def _judged_differently(rows: Sequence[dict[str, Any]], dataset: str) -> str:
    there = (row for row in rows if dataset in row["judges"] and dataset in row["scores"])
    return judged_differently((row["run"], row["judges"][dataset]) for row in there)


def _csv(rows: Sequence[dict[str, Any]], datasets: Sequence[str]) -> Iterator[list[object]]:
    yield ["step", "checkpoint", "run", "complete", "decided", *datasets]
    for row in rows:
        values = ((_score(row, name) or {"value": None})["value"] for name in datasets)
        complete = str(row["complete"]).lower()
        yield [row["step"], row["checkpoint"], row["run"], complete, row["decided"], *values]


def _markdown(rows: Sequence[dict[str, Any]], datasets: Sequence[str]) -> str:
    trainings = _trainings(rows)
    first = ["training"] * bool(trainings)
    headings = (filter(None, (name, _metric(rows, name))) for name in datasets)
    scores = ["step", *map("<br>".join, headings)]
    lines = [first + scores, ["---"] * len(first) + ["---:"] * len(scores)]
    for row in rows:
        of = [trainings[row["training"]]] if trainings else []
        lines.append([*of, _label(row, rows), *(_cell(row, name) for name in datasets)])
    text = "".join(
        "| " + " | ".join(c.replace("|", "\\|") for c in line) + " |\n" for line in lines
    )
    for line in part_lines((_label(row, rows), row["decided"]) for row in rows):
        text += f"\n{line}\n".replace("*", "\\*")
    if not all(row["complete"] or row["decided"] for row in rows):
        text += f"\n\\{INCOMPLETE} not all results are there\n"
    return text


def _print(rows: Sequence[dict[str, Any]], datasets: Sequence[str], settings: Settings) -> None:
    if not rows or not datasets:
        out("no scores yet" if rows else f"no runs under {settings.runs_dir}")
        return
    first = [["", "step", *(_label(row, rows) for row in rows)]]
    if trainings := _trainings(rows):
        first.insert(0, ["", "training", *(trainings[row["training"]] for row in rows)])
    columns = (
        [name, _metric(rows, name), *(_cell(row, name) for row in rows)] for name in datasets
    )
    print_in_parts(first, list(columns), heads=2)
    for line in part_lines((_label(row, rows), row["decided"]) for row in rows):
        out(line)
    for row in rows:
        for warning in row["warnings"]:
            out(warning if len(rows) == 1 else f"{_label(row, rows)}: {warning}", "yellow")
    if not all(row["complete"] or row["decided"] for row in rows):
        out(f"{INCOMPLETE} not all results are there: `coordinate-eval status RUN` says why")


def _metric(rows: Sequence[dict[str, Any]], dataset: str) -> str:
    """Return the metric of a dataset, if all runs have the same."""
    metrics = {row["scores"][dataset]["metric"] for row in rows if dataset in row["scores"]}
    return str(metrics.pop()) if len(metrics) == 1 else ""


def _label(row: dict[str, Any], rows: Sequence[dict[str, Any]]) -> str:
    """Return the step; the run's id where the step is unknown, or its training has it twice."""
    alike = sum(
        (other["training"], other["step"]) == (row["training"], row["step"]) for other in rows
    )
    label = str(row["step"]) if row["step"] is not None and alike == 1 else row["run"]
    return label + ("" if row["complete"] else INCOMPLETE)


def _cell(row: dict[str, Any], dataset: str) -> str:
    if (score := _score(row, dataset)) is None:
        return ""
    error = "" if score["stderr"] is None else f" ±{score['stderr']:.4f}"
    return f"{score['value']:.4f}{error}"


def _trainings(rows: Sequence[dict[str, Any]]) -> dict[str, str]:
    """Return a short name of each folder of checkpoints; nothing if there is only one."""
    folders = {row["training"]: PurePath(row["training"]).parts for row in rows}
    if len(folders) < 2:
        return {}
    most = max(map(len, folders.values()))
    for count in range(1, most + 1):
        names = {folder: str(PurePath(*parts[-count:])) for folder, parts in folders.items()}
        if len(set(names.values())) == len(folders):
            return names
    return {folder: folder for folder in folders}
