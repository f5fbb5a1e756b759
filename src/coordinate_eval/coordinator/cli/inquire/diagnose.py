"""`coordinate-eval diagnose`: why jobs failed, of a run or by their logs."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from coordinate_eval import _user_files
from coordinate_eval._format import plural, size, visible
from coordinate_eval.coordinator.cli.inquire.runs import open_to_show
from coordinate_eval.coordinator.cli.options import common
from coordinate_eval.coordinator.cli.options.parsing import option, output_option
from coordinate_eval.coordinator.cli.output import out, say, write_json
from coordinate_eval.coordinator.incidents.causes import read_rules
from coordinate_eval.coordinator.incidents.shown import FailedJob, diagnose_run
from coordinate_eval.coordinator.inputs.layers import load as load_settings
from coordinate_eval.coordinator.report.results import why_incomplete
from coordinate_eval.diagnosis.cause import UNKNOWN, Ending, Log, find_cause, read_log
from coordinate_eval.diagnosis.rules import Rules
from coordinate_eval.errors import UserError

SCHEMA = "coordinate-eval/diagnosis@1"


_Jobs = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="RUN|LOG...",
        help="A run's directory or id, or log files: of one job, a file for each rank.",
        show_default="the latest run",
    ),
]
_End = Annotated[
    str | None,
    option(
        "--end TEXT",
        'How the job of LOG ended: state, reason and exit code of Slurm, as in "TIMEOUT '
        'TimeLimit 0:15".',
    ),
]
_Compressed = Annotated[
    bool,
    output_option(
        "--compressed",
        "Print the lines that the rules read: LOG without what says that all goes well.",
    ),
]


def diagnose_command(
    what: _Jobs = None,
    end: _End = None,
    compressed: _Compressed = False,
    as_json: common.Json = False,
    settings_file: common.SettingsFile = None,
) -> None:
    """Name the cause of each failed job of a run, or of any job by its logs, and what to do.

    Exit status: 0 every cause is known, or nothing failed; 1 a cause is not known, or the run
    ended incomplete and no job of it failed.
    """
    settings, _ = load_settings({}, settings_file)
    rules = read_rules()
    paths = [Path(each) for each in what or []]
    if paths and all(_is_log(path) for path in paths):
        logs = [_read(path, rules) for path in paths]
        if compressed:
            for log in logs:
                _print_compressed(log)
            return
        cause = find_cause(logs, rules, Ending(end or ""), by_words=True)
        name = paths[0].name if len(paths) == 1 else plural(len(paths), "log")
        found = [] if cause is None else [FailedJob("job", name, "", "", "", cause)]
        _show(found, [], "no failure found", as_json=as_json)
        raise typer.Exit(_status(found))
    if len(paths) > 1:
        missing = next(path for path in paths if not _is_log(path))
        raise UserError(f"no log file {str(missing)!r}: give the name of one run, or log files")
    if end or compressed:
        raise UserError("--end and --compressed are for log files: name some")
    with open_to_show(what[0] if what else None, settings) as (run_dir, foreign):
        found = diagnose_run(run_dir, rules)
        ended = [] if found else why_incomplete(run_dir)
    if foreign:
        say(foreign)
    but = "; the run ended without all of its results:" if ended else ""
    _show(found, ended, f"no job of {run_dir.root} failed{but}", as_json=as_json)
    raise typer.Exit(1 if ended else _status(found))


def _is_log(path: Path) -> bool:
    try:
        return path.is_file() and path.name != "run.json"
    except (OSError, ValueError):
        return False


def _read(path: Path, rules: Rules) -> Log:
    _user_files.check_regular(path, "log file")
    try:
        with path.open("rb") as file:
            return read_log(file, str(path), rules)
    except OSError as error:
        raise UserError(f"log file {path} cannot be read: {error.strerror}") from error


def _status(found: Sequence[FailedJob]) -> int:
    return 1 if any(job.cause.reason == UNKNOWN for job in found) else 0


def _print_compressed(log: Log) -> None:
    text = visible(log.left.text())
    sys.stdout.write(text)
    say(
        f"{log.name}: {plural(log.left.lines, 'line')}, {size(log.left.bytes)}; left are "
        f"{plural(len(log.left.kept), 'line')}, {size(len(text.encode()))}"
    )


def _show(
    found: Sequence[FailedJob], reasons: Sequence[str], nothing: str, *, as_json: bool
) -> None:
    """Print failures, or that nothing failed and why the run ended all the same."""
    if as_json:
        failures = [_json(job) for job in found]
        write_json({"schema": SCHEMA, "failures": failures, "reasons": list(reasons)})
        return
    _print(found)
    for line in [] if found else [nothing, *(f"  {reason}" for reason in reasons)]:
        out(line)


def _json(job: FailedJob) -> dict[str, Any]:
    cause = job.cause.model_dump(mode="json") | {"then": job.cause.remedy.value}
    return {name: each for name, each in job._asdict().items() if name != "log"} | {"cause": cause}


def _print(found: Sequence[FailedJob]) -> None:
    """Print each cause once, with the jobs that it ended."""
    alike: dict[tuple[str, str, str], list[FailedJob]] = {}
    for job in found:
        key = (job.kind, job.cause.reason, job.cause.rule)
        alike.setdefault(key, []).append(job)
    for (kind, _, _), jobs in alike.items():
        first = jobs[0]
        who = f"{kind} {first.name}" if len(jobs) == 1 else plural(len(jobs), kind)
        _print_cause(who, first)


def _print_cause(who: str, job: FailedJob) -> None:
    cause = job.cause
    out(f"{who}: {cause.reason} ({cause.category})", "bold")
    place = f"{cause.log}:{cause.number}" if cause.number and cause.log else "Slurm"
    out(f"  {place}: {cause.line.strip()}")
    out(f"  do: {cause.cure}", "green")
    if job.done:
        out(f"  done: {job.done}")
    if cause.others:
        out(f"  also seen: {', '.join(cause.others)}", "dim")
