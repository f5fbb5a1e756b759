"""`coordinate-eval gate`: may this checkpoint pass?"""

from pathlib import Path

from rich.markup import escape
from rich.table import Table

from coordinate_eval import _owner
from coordinate_eval.coordinator.cli.inquire.compare import find_run
from coordinate_eval.coordinator.cli.output import console, say, table_console, write_json
from coordinate_eval.coordinator.comparison.compare import compare
from coordinate_eval.coordinator.comparison.gate import (
    BOUNDS,
    Finding,
    decision,
    judge,
    read_policy,
)
from coordinate_eval.coordinator.history.measured import measure
from coordinate_eval.coordinator.history.series import series
from coordinate_eval.coordinator.inputs.settings import Settings
from coordinate_eval.coordinator.report.results import read_results
from coordinate_eval.coordinator.run.records import read_run

_STATUS = {"GO": 0, "NO-GO": 1, "INCONCLUSIVE": 3}
_STYLES = {"GO": "green", "NO-GO": "red", "INCONCLUSIVE": "yellow"}


def show_gate(
    settings: Settings, name: str, policy_file: Path, against: str | None, *, as_json: bool
) -> int:
    """Print whether a run meets a policy. Return the exit status: 0 GO, 1 NO-GO, 3 INCONCLUSIVE."""
    policy = read_policy(policy_file)
    with _owner.for_show():
        run_dir = find_run(name, settings)
        run = read_run(run_dir)
        found = series([measure(run_dir, run, read_results(run_dir))])
        compared = None
        if against is not None and policy.compares:
            compared = compare(find_run(against, settings), run_dir)
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
                "rules": [each.model_dump(mode="json") for each in findings],
            }
        )
        return _STATUS[said]
    table_console().print(_table(findings))
    if row.decided:
        say(f"its scores are of a part of the items, because it stopped early: {row.decided}")
    console().print(f"{said}: {run.checkpoint.path}", markup=False, highlight=False, soft_wrap=True)
    return _STATUS[said]


def _table(findings: list[Finding]) -> Table:
    table = Table()
    for title in ("of", "rule"):
        table.add_column(title, overflow="fold")
    for title in ("value", "95% interval"):
        table.add_column(title, justify="right", no_wrap=True)
    table.add_column("")
    for each in findings:
        sign = "+" if each.bound.startswith(("loses", "gains")) else ""
        interval = ""
        if each.low is not None and each.high is not None:
            interval = f"{each.low:{sign}.4f} … {each.high:{sign}.4f}"
        more = each.why
        if each.items is not None:
            more += f"; about {each.items:,} items would decide it"
        table.add_row(
            escape(each.of if each.datasets == 1 else f"{each.of} ({each.datasets})"),
            f"{BOUNDS[each.bound]} {each.limit:g}",
            "" if each.value is None else f"{each.value:{sign}.4f}",
            interval,
            f"[{_STYLES[each.decision]}]{each.decision}[/]" + (f": {escape(more)}" if more else ""),
        )
    return table
