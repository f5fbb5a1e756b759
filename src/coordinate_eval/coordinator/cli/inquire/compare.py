"""`coordinate-eval compare`: where two runs differ by more than chance; `gate`: may one pass?"""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from coordinate_eval import _owner
from coordinate_eval._format import plural
from coordinate_eval.coordinator.cli.inquire.runs import find, find_all
from coordinate_eval.coordinator.cli.options import common
from coordinate_eval.coordinator.cli.options.parsing import option
from coordinate_eval.coordinator.cli.output import (
    errors_are_no_verdict,
    new_table,
    out,
    say,
    table_console,
    write_json,
)
from coordinate_eval.coordinator.comparison.compare import Comparison, Measured, Side, compare
from coordinate_eval.coordinator.comparison.gate import (
    BOUNDS,
    Finding,
    Policy,
    decision,
    judge,
    read_policy,
)
from coordinate_eval.coordinator.history.measured import measure
from coordinate_eval.coordinator.history.series import series
from coordinate_eval.coordinator.inputs.checkpoints import remote
from coordinate_eval.coordinator.inputs.checkpoints.saved import step_of, training_of
from coordinate_eval.coordinator.inputs.layers import load as load_settings
from coordinate_eval.coordinator.inputs.settings import Settings
from coordinate_eval.coordinator.report.results import read_results
from coordinate_eval.coordinator.run.claiming.decided import in_part
from coordinate_eval.coordinator.run.paths import RunDir
from coordinate_eval.coordinator.run.records import read_run
from coordinate_eval.errors import UserError

_STYLES = {"better": "green", "worse": "red"}


_Reference = Annotated[
    str,
    typer.Argument(
        metavar="A", help="The run to compare with: its directory, its id, or its checkpoint."
    ),
]
_Changed = Annotated[
    str, typer.Argument(metavar="B", help="The run whose change is asked for, named likewise.")
]
_Datasets = Annotated[
    list[str] | None,
    option("--dataset NAME", "Compare this dataset only. May be given several times."),
]
_Anyway = Annotated[
    bool, option("--anyway", "Compare although the runs have asked or scored differently.")
]


def compare_command(
    first: _Reference,
    second: _Changed,
    dataset: _Datasets = None,
    metric: common.Metric = None,
    anyway: _Anyway = False,
    as_json: common.Json = False,
    settings_file: common.SettingsFile = None,
) -> None:
    """Show where the scores of run B differ from those of run A by more than chance.

    The runs are compared item by item. A dataset is better or worse if its p-value is among those
    that are significant when 5 % of such findings may be false. No GPU is used.
    """
    settings, _ = load_settings({}, settings_file)
    with _owner.for_show():
        sides = [find_run(name, settings) for name in (first, second)]
        found = compare(*sides, names=dataset or [], metric=metric, anyway=anyway)
    if as_json:
        write_json(found.model_dump(mode="json", by_alias=True))
    else:
        _print(found)


def find_run(name: str, settings: Settings) -> RunDir:
    """Return the run of this name, or the latest run of the checkpoint in this folder."""
    try:
        return find(name, settings)
    except UserError:
        path = str(remote.located(name).resolve())
        for run_dir, run in find_all(settings)[0]:
            if run.checkpoint.path in (name, path):
                return run_dir
        raise UserError(
            f"no run {name!r}: give a run's id or directory, or the path of a checkpoint that was "
            "evaluated; `coordinate-eval runs` lists the ids"
        ) from None


def find_previous(name: str, settings: Settings, training: str) -> RunDir:
    """Return the run of this name, of a checkpoint, or the latest run of a step of a training."""
    if name.isdecimal():
        for run_dir, run in find_all(settings)[0]:
            step = step_of(run.checkpoint.path) if run.step is None else run.step
            if step == int(name) and training_of(run.checkpoint.path) == training:
                return run_dir
        raise UserError(
            f"no run of step {name} in {training}: `coordinate-eval runs` lists the runs"
        )
    return find_run(name, settings)


def _print(found: Comparison) -> None:
    heads = _labels(found.first, found.second)
    for label, side in zip(heads, (found.first, found.second), strict=True):
        partial = "" if side.complete else ", not all results are there"
        partial = f", {in_part(side.decided)}" if side.decided else partial
        out(f"{label}: {side.checkpoint} (run {side.run}{partial})")
    where = table_console()
    where.print(_table(heads, found.datasets, "dataset"))
    means = [*found.groups, *found.aggregates, *([found.mean] if found.mean else [])]
    if means:
        where.print(_table(heads, means, "mean of"))
    out(summary_of(heads, found))
    for each in [*found.datasets, *found.aggregates]:
        if each.why_not:
            say(f"{each.name} has no interval: {each.why_not}")
    for name, why in found.left_out.items():
        say(f"{name} is left out: {why}")
    for name, reasons in found.unlike.items():
        say(f"{name} was asked differently: {'; '.join(reasons)}")


def _labels(first: Side, second: Side) -> tuple[str, str]:
    if first.step is not None and second.step is not None and first.step != second.step:
        return f"step {first.step}", f"step {second.step}"
    return ("A", "B") if first.run == second.run else (first.run, second.run)


def _table(heads: tuple[str, str], measured: Sequence[Measured], what: str) -> Table:
    metric = ["=metric"] if what == "dataset" else []
    numbers = (f">{title}" for title in (*heads, "difference", "95% interval", "p"))
    table = new_table(f"={what}", *metric, *numbers, "=")
    for each in measured:
        name = each.name if what == "dataset" else f"{each.name} ({each.datasets})"
        cells = [name, *([each.metric] if what == "dataset" else [])]
        table.add_row(*cells, *figures(each), _verdict(each) if each.has_interval else "")
    return table


def figures(each: Measured) -> tuple[str, str, str, str, str]:
    """Return both scores, the difference, its interval and its p-value, as people read them."""
    scores = _figure(each.first), _figure(each.second), _figure(each.difference, "+")
    if each.low is None or each.high is None or each.p is None:
        return *scores, "", ""
    p = f"{each.p:.3f}" if each.p >= 0.001 else f"{each.p:.0e}"
    return *scores, f"{_figure(each.low, '+')} … {_figure(each.high, '+')}", p


def _figure(value: float, sign: str = "") -> str:
    return f"{value:{sign}.4f}" if abs(value) < 1e5 else f"{value:{sign}.4g}"


def _verdict(each: Measured) -> Text:
    if each.verdict in _STYLES:
        return Text(each.verdict, _STYLES[each.verdict])
    return Text(f"would show ±{each.detectable:.3f}")


def summary_of(heads: tuple[str, str], found: Comparison) -> str:
    """Return in how many datasets the second run is better and worse."""
    told = [each.verdict for each in found.datasets if each.has_interval]
    if not told:
        return f"{heads[1]} against {heads[0]}: no dataset can be compared item by item."
    better, worse = told.count("better"), told.count("worse")
    counts = (
        f"better in {better:,}, worse in {worse:,}, too close in {told.count('no difference'):,}"
    )
    return (
        f"{heads[1]} against {heads[0]}: of {plural(len(told), 'dataset')}, {counts}. "
        "Of the datasets called better or worse, 5% may be so by chance."
    )


_STATUS = {"GO": 0, "NO-GO": 1, "INCONCLUSIVE": 3}
_COLORS = {"GO": "green", "NO-GO": "red", "INCONCLUSIVE": "yellow"}


_Gated = Annotated[
    str, typer.Argument(metavar="RUN", help="Its directory, its id, or its checkpoint.")
]
_Policy = Annotated[Path, option("--policy FILE", "The policy, a YAML file.")]
_Against = Annotated[
    str | None,
    option("--against BASELINE", "The run that rules about losses and gains compare with."),
]


def gate_command(
    run: _Gated,
    policy: _Policy,
    against: _Against = None,
    as_json: common.Json = False,
    settings_file: common.SettingsFile = None,
) -> None:
    """Decide whether a run's scores meet a policy: GO, NO-GO, or INCONCLUSIVE.

    A rule is decided if all of the 95 % interval is on one side of its bound.

    Exit status: 0 GO; 1 NO-GO; 2 the run or the policy cannot be used; 3 INCONCLUSIVE, with the
    number of items that would decide.
    """
    with errors_are_no_verdict():
        settings, _ = load_settings({}, settings_file)
        status = _show_gate(settings, run, read_policy(policy), against, as_json=as_json)
    raise typer.Exit(status)


def _show_gate(
    settings: Settings, name: str, policy: Policy, against: str | None, *, as_json: bool
) -> int:
    with _owner.for_show():
        run_dir = find_run(name, settings)
        run = read_run(run_dir)
        found = series([measure(run_dir, run, read_results(run_dir))])
        before = find_run(against, settings) if against is not None else None
        compared = None
        if before is not None and policy.compares:
            compared = compare(before, run_dir, anyway=True)
    (row,) = found.rows
    findings = judge(policy, found, row, compared)
    said = decision(findings)
    if as_json:
        write_json(
            {
                "schema": "coordinate-eval/gate@1",
                "decision": said,
                "run": run.id,
                "checkpoint": run.checkpoint.path,
                "against": compared.first.run if compared else None,
                "decided": row.decided,
                "warnings": dict(row.warnings),
                "rules": [each.model_dump(mode="json") for each in findings],
            }
        )
        return _STATUS[said]
    table_console().print(_findings_table(findings))
    if row.decided:
        because = in_part(row.decided).replace("stopped", "because it stopped", 1)
        say(f"its scores are of a part of the items, {because}")
        say(f"`coordinate-eval resume {run.id} --full` asks the others")
    for words in row.warnings.values():
        say(words)
    out(f"{said}: {run.checkpoint.path}")
    return _STATUS[said]


def _findings_table(findings: list[Finding]) -> Table:
    table = new_table("of", "rule", ">value", ">95% interval", "")
    for each in findings:
        sign = "+" if each.bound.startswith(("loses", "gains")) else ""
        interval = ""
        if each.low is not None and each.high is not None:
            interval = f"{each.low:{sign}.4f} … {each.high:{sign}.4f}"
        more = each.why
        if each.items is not None:
            more += f"; about {each.items:,} items would decide it"
        table.add_row(
            each.of if each.datasets == 1 else f"{each.of} ({each.datasets})",
            f"{BOUNDS[each.bound]} {each.limit:g}",
            "" if each.value is None else f"{each.value:{sign}.4f}",
            interval,
            Text.assemble((each.decision, _COLORS[each.decision]), f": {more}" if more else ""),
        )
    return table
