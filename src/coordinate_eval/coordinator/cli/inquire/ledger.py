"""`coordinate-eval status --ledger`: where the GPU time of a run went."""

import contextlib

from pydantic import ValidationError
from rich.console import Group
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from coordinate_eval._format import duration, plural
from coordinate_eval.coordinator.cli.inquire.runs import open_to_show
from coordinate_eval.coordinator.cli.output import table_console, write_json
from coordinate_eval.coordinator.inputs.settings import Settings
from coordinate_eval.coordinator.report.history import read_time_ledger
from coordinate_eval.coordinator.report.results import read_results
from coordinate_eval.coordinator.report.time_ledger import TimeLedger
from coordinate_eval.coordinator.run.paths import RunDir
from coordinate_eval.coordinator.run.records import read_run
from coordinate_eval.errors import UserError


def show_ledger(name: str | None, settings: Settings, *, as_json: bool, follow: bool) -> None:
    """Print the ledger of a run: as it ended, or so far.

    Raises:
        UserError: there is no such run, or it is asked to follow the ledger.
    """
    if follow:
        raise UserError("--ledger is of one moment: leave out --follow")
    with open_to_show(name, settings) as (run_dir, _):
        run, found = read_run(run_dir), _of_results(run_dir)
        if found is None:
            found = read_time_ledger(run_dir, run, ended=False)
    if as_json:
        write_json({"run": run.id, **found.model_dump(mode="json")})
    else:
        table_console().print(_shown(run.id, found), soft_wrap=True)


def _of_results(run_dir: RunDir) -> TimeLedger | None:
    """Return the ledger that a run was ended with, if it has ended."""
    results = read_results(run_dir)
    with contextlib.suppress(ValidationError):
        return TimeLedger.model_validate((results or {}).get("ledger"))
    return None


def _shown(run_id: str, found: TimeLedger) -> Group:
    table = Table(title=f"run {escape(run_id)}: {duration(found.seconds)}", title_justify="left")
    table.add_column("GPU time")
    table.add_column("GPU hours", justify="right")
    table.add_column("share", justify="right")
    total = found.total_gpu_seconds
    for use, seconds in found.gpu_seconds.items():
        share = f"{seconds / total:.1%}" if total else ""
        table.add_row(use.value, f"{seconds / 3600:.3f}", share)
    table.add_section()
    table.add_row("all", f"{total / 3600:.3f}", "")
    words = ", ".join(f"{what} {duration(s)}" for what, s in found.cpu_seconds.items())
    lines = [Text(f"CPU time: {words}")]
    if (judge := found.judge) is not None:
        before = f", {judge.kept:,} answered for earlier runs" if judge.kept else ""
        words = f"judge: {plural(judge.questions, 'question')} answered{before}, "
        words += f"{plural(judge.tokens, 'token')}, "
        if judge.gpu_seconds:
            words += f"{judge.gpu_seconds / 3600:.3f} h of GPU time in a job of its own"
        else:
            words += f"{duration(judge.seconds)} of waiting for answers"
        lines.append(Text(words))
    return Group(table, *lines, Text(found.advice))
