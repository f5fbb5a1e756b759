"""`coordinate-eval status`: how far a run is, what to do next, and where its GPU time went."""

import contextlib
import time
from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic import ValidationError
from rich.console import Group
from rich.text import Text

from coordinate_eval import _files
from coordinate_eval._format import duration, plural
from coordinate_eval.clusters.protocol import State, TaskStatus
from coordinate_eval.coordinator.cli.inquire import status_screen
from coordinate_eval.coordinator.cli.inquire.runs import name_for_commands, open_to_show
from coordinate_eval.coordinator.cli.options import common
from coordinate_eval.coordinator.cli.options.parsing import output_option
from coordinate_eval.coordinator.cli.output import new_table, say, table_console, write_json
from coordinate_eval.coordinator.incidents.bad_nodes import read_avoided, suspected_nodes
from coordinate_eval.coordinator.incidents.shown import report_failures
from coordinate_eval.coordinator.inputs import clusters
from coordinate_eval.coordinator.inputs.checkpoints.saved import training_of
from coordinate_eval.coordinator.inputs.layers import load as load_settings
from coordinate_eval.coordinator.inputs.settings import Settings
from coordinate_eval.coordinator.planning.places.asked_nodes import avoided_words
from coordinate_eval.coordinator.report import missing, results, state, warnings
from coordinate_eval.coordinator.report.first_signal import FirstSignal
from coordinate_eval.coordinator.report.main_metric import main_score
from coordinate_eval.coordinator.report.results import read_results
from coordinate_eval.coordinator.report.state import Phase
from coordinate_eval.coordinator.report.time_ledger import TimeLedger, read_time_ledger
from coordinate_eval.coordinator.run import jobs, supervision
from coordinate_eval.coordinator.run.claiming.claims import Ledger, whole
from coordinate_eval.coordinator.run.claiming.decided import (
    cut_short,
    last_compared,
    stopped,
    why_stopped,
    without_withdrawn,
)
from coordinate_eval.coordinator.run.claiming.work import unscored_datasets
from coordinate_eval.coordinator.run.paths import RunDir
from coordinate_eval.coordinator.run.records import HOOKS, JudgeProgress, Run, hook_ends, read_run
from coordinate_eval.coordinator.run.starting import spool
from coordinate_eval.errors import ClusterError, ClusterSilent, UserError

_STATES = {
    Phase.COMPLETE: "complete",
    Phase.DECIDED: "decided",
    Phase.CANCELLED: "cancelled",
    Phase.INCOMPLETE: "incomplete",
    Phase.UNSUPERVISED: "not finished",
    Phase.UNKNOWN: "unknown",
}
"""The word for a phase in the field `state`; every other phase is "running"."""

FOLLOW_SECONDS = 2.0
"""Shortest time between two looks of `--follow`."""


_Ledger = Annotated[
    bool, output_option("--ledger", "Show where the GPU time went, and what to change next.")
]
_Follow = Annotated[
    bool,
    output_option(
        "--follow -f", "Refresh until the run ends. Ctrl-C stops watching and leaves the run alone."
    ),
]


def status_command(
    run: common.RunName = None,
    follow: _Follow = False,
    ledger: _Ledger = False,
    as_json: common.Json = False,
    settings_file: common.SettingsFile = None,
) -> None:
    """Show how far a run is, its scores or why it failed, and what to do next.

    Exit status: 0 the run is complete or goes on; 1 it ended without all results, was cancelled,
    or has lost its supervisor; 3 the scheduler did not answer and nothing else tells.
    """
    settings, _ = load_settings({}, settings_file)
    if ledger:
        _show_ledger(run, settings, as_json=as_json, follow=follow)
        return
    if as_json and follow:
        raise UserError("--follow shows a screen and --json prints one document: give one of them")
    try:
        with open_to_show(run, settings) as (run_dir, foreign):
            status = _show(run_dir, settings, foreign, as_json=as_json, follow=follow)
    finally:
        for line in spool.about(Path(settings.runs_dir).expanduser(), time.time()):
            say(line)
    raise typer.Exit(status)


def _show(run_dir: RunDir, settings: Settings, foreign: str, *, as_json: bool, follow: bool) -> int:
    run = read_run(run_dir)
    requests = state.count_requests(run_dir, run)
    shown = describe(run_dir, run, settings, requests, foreign)
    if as_json:
        write_json(shown)
    elif follow and not Phase(shown["phase"]).ended:
        shown = _follow(run_dir, run, settings, requests, foreign)
    else:
        status_screen.show(shown, table_console())
    return exit_status(Phase(shown["phase"]))


def exit_status(phase: Phase) -> int:
    """Return the exit status of `coordinate-eval status` for a run in this phase."""
    if phase is Phase.UNKNOWN:
        return ClusterSilent.exit_status
    return 1 if phase.ended and not phase.done else 0


def describe(
    run_dir: RunDir, run: Run, settings: Settings, requests: int, foreign: str = ""
) -> dict[str, Any]:
    """Return what the run directory and the scheduler say, as `status --json` prints it.

    `foreign` is why the run is not the user's own; then the scheduler is not asked.
    """
    # A run that is done is the same whatever the scheduler says, and it may be silent for a minute.
    tasks, note, silent = None, foreign, bool(foreign)
    if not foreign and not state.is_done(run_dir):
        tasks, note, silent = _poll(run)
    progress = state.progress(run_dir, run, tasks, silent=silent, requests=requests)
    phase = progress.phase
    command = name_for_commands(run_dir, run, settings)
    arrays = {s.job.name for s in jobs.read_submitted(run_dir) if s.job.count > 1}
    if not phase.ended and not foreign and (host := state.unknown_host(run_dir, run, tasks or [])):
        seen = (
            f"it was last supervised in a terminal on {host}, which cannot be seen from here; if "
            f"that has ended, `coordinate-eval resume {command}` continues the run"
        )
        note = f"{note}; {seen}" if note else seen
    note = "; ".join(filter(None, (note, *supervision.all_in_words(tasks or []))))
    judge = _files.read_record_if_there(run_dir.judge, JudgeProgress)
    hooks = hook_ends(run_dir) if phase.ended else {}
    rough = None
    if not phase.done:
        rough = _files.read_record_if_there(run_dir.first_signal, FirstSignal)
    found = results.read_results(run_dir) or {}
    if phase is Phase.INCOMPLETE:
        reasons = missing.reasons(found)
    else:
        reasons = [] if phase.done else report_failures(run_dir)
    compared = last_compared(run_dir, run)
    return {
        "run": run.id,
        "dir": str(run_dir.root),
        "state": _STATES.get(phase, "running"),
        **progress.model_dump(mode="json", exclude={"trials"}),
        "trials_by_state": progress.trials,
        "judge": judge.model_dump(mode="json") if judge else None,
        "checkpoint": run.checkpoint.path,
        "suite": run.suite.name,
        "datasets": _datasets(run_dir, run),
        "first_signal": rough.model_dump(mode="json", by_alias=True) if rough else None,
        "compared": compared.model_dump(mode="json", by_alias=True) if compared else None,
        "part": why_stopped(run_dir) if phase.done else "",
        "rescored": found.get("rescored"),
        "aggregates": found.get("aggregates", {}),
        "left_out": run.left_out,
        "trials": [t.model_dump(mode="json") for t in state.read_trials(run_dir).values()],
        "jobs": [_job(run, t, arrays) for t in tasks or [] if t.state is not State.ENDED],
        "reasons": reasons,
        **{hook: hooks[hook].model_dump(mode="json") if hook in hooks else None for hook in HOOKS},
        "next": "" if foreign else _next(phase, command),
        "avoided": [] if foreign or phase.ended else _avoided(run_dir, run),
        "note": note,
    }


def _avoided(run_dir: RunDir, run: Run) -> list[str]:
    """Return the nodes that this run or all of the user's avoid now, with the reasons."""
    now = time.time()
    found = suspected_nodes(run_dir, now) | read_avoided(run.settings, now)
    return [f"{name} is {avoided_words(found[name])}" for name in sorted(found)]


def _follow(
    run_dir: RunDir, run: Run, settings: Settings, requests: int, foreign: str
) -> dict[str, Any]:
    """Show the run until it ends; return its last state. Ctrl-C leaves the run alone."""
    console = table_console()
    pause = max(FOLLOW_SECONDS, run.settings.supervisor.poll_seconds)
    screen = status_screen.Following(console)
    try:
        with screen:
            while True:
                if not run.planned:
                    run, requests = read_run(run_dir), state.count_requests(run_dir, run)
                shown = describe(run_dir, run, settings, requests, foreign)
                if Phase(shown["phase"]).ended:
                    # A supervisor that hands over to the next one is not gone.
                    time.sleep(pause)
                    shown = describe(run_dir, run, settings, requests, foreign)
                    if Phase(shown["phase"]).ended:
                        break
                screen.update(shown)
                time.sleep(pause)
    except KeyboardInterrupt:
        say(f"no longer following; run {run.id} goes on")
        raise
    status_screen.show(shown, console)
    if not foreign:
        from coordinate_eval.coordinator.cli.inquire.curves import curve_lines

        for line in curve_lines(settings, training_of(run.checkpoint.path)):
            console.print(line, markup=False, highlight=False)
    return shown


def _poll(run: Run) -> tuple[list[TaskStatus] | None, str, bool]:
    """Return the run's jobs, a note if they are not known, and whether the scheduler is silent."""
    cluster = clusters.by_name(run.cluster, run.settings)
    if cluster.local:
        return None, "", False
    try:
        with cluster:
            return cluster.poll(jobs.prefix(run)), "", False
    except (ClusterError, UserError) as error:
        return None, f"the jobs are not shown: {error}", True


def _datasets(run_dir: RunDir, run: Run) -> dict[str, dict[str, Any]]:
    outputs, asked = Ledger(run_dir, "outputs"), without_withdrawn(run_dir, run)
    undone = outputs.unpublished(s.span for s in asked.shards)
    begun = {each.span.dataset for each in outputs.open_claims(undone)}
    left = {d.name for d in unscored_datasets(run_dir, run)}
    held = Ledger(run_dir, "results").open_claims(map(whole, left))
    being_scored = {each.span.dataset for each in held}
    datasets, used = {}, stopped(run_dir)
    for dataset in run.suite.datasets:
        shards = sum(1 for s in asked.shards if s.dataset == dataset.name)
        lacking = sum(1 for s in undone if s.dataset == dataset.name)
        word = "running" if lacking else "to be scored"
        if dataset.name in being_scored:
            word = "scoring"
        if lacking == shards and dataset.name not in begun:
            word = "waiting" if run.planned else _before_plan(run_dir, dataset.name)
        if dataset.name not in left:
            failed = run_dir.dataset_error(dataset.name).exists()
            ended = "stopped" if dataset.name in cut_short(run, used) else "scored"
            word = "failed" if failed else ended
        found = results.read_dataset(run_dir, dataset.name)
        score = main_score(found) if found else None
        datasets[dataset.name] = {
            "state": word,
            "shards": shards,
            "shards_done": shards - lacking,
            "items": None if found is None else found.items,
            "of_items": run.stages[dataset.name][-1] if dataset.name in used else None,
            "score": None if score is None else score._asdict(),
            "outputs": found.outputs.model_dump() if found and found.outputs else None,
            "warnings": warnings.warnings(found) if found else [],
        }
    return datasets


def _before_plan(run_dir: RunDir, dataset: str) -> str:
    """Return how far a dataset of a run without a plan is."""
    if run_dir.requests_error(dataset).exists():
        return "failed"
    if run_dir.requests_index(dataset).exists():
        return "built"
    claimed = Ledger(run_dir, "requests").open_claims([whole(dataset)])
    return "building" if claimed else "waiting"


def _job(run: Run, task: TaskStatus, arrays: set[str]) -> dict[str, str]:
    """Return a job or one task of an array, under the id that cancels it and nothing else."""
    return {
        "name": task.name,
        "what": task.name.removeprefix(jobs.prefix(run)),
        "id": f"{task.job_id}_{task.index}" if task.name in arrays else task.job_id,
        "state": task.state.value,
        "node": task.node,
        "reason": task.reason,
        "waits": task.waits.value,
        "held": task.held.value,
    }


def _next(phase: Phase, name: str) -> str:
    """Return the command that a person types next."""
    if phase is Phase.COMPLETE:
        return f"coordinate-eval scores {name}"
    if phase is Phase.DECIDED:
        return f"coordinate-eval resume {name} --full"
    if phase.ended:
        return f"coordinate-eval resume {name}"
    return f"coordinate-eval status --follow {name}"


def _show_ledger(name: str | None, settings: Settings, *, as_json: bool, follow: bool) -> None:
    """Print the ledger of a run: as it ended, or so far."""
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
    title = f"run {run_id}: {duration(found.seconds)}"
    table = new_table("GPU time", ">GPU hours", ">share", title=title)
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
