"""`coordinate-eval resume` and `cancel`: continue a run, or end all of its jobs."""

import contextlib
import os
import time

import typer

from coordinate_eval import _files
from coordinate_eval._clock import SystemClock
from coordinate_eval._format import plural
from coordinate_eval.clusters.protocol import Cluster, State
from coordinate_eval.coordinator.cli.inquire.runs import find, find_all, name_for_commands, poll
from coordinate_eval.coordinator.cli.launch.foreground import (
    announce,
    reasons_why_stopped,
    say_windows,
    show_results,
    supervise,
)
from coordinate_eval.coordinator.cli.options import common
from coordinate_eval.coordinator.cli.output import say
from coordinate_eval.coordinator.inputs import clusters, judge
from coordinate_eval.coordinator.inputs.folders import working_in
from coordinate_eval.coordinator.inputs.layers import load as load_settings
from coordinate_eval.coordinator.inputs.settings import JudgeSettings, Settings
from coordinate_eval.coordinator.report import state
from coordinate_eval.coordinator.run import jobs, lease, supervision
from coordinate_eval.coordinator.run.claiming.decided import in_part, why_stopped
from coordinate_eval.coordinator.run.own import work_folder
from coordinate_eval.coordinator.run.paths import RunDir
from coordinate_eval.coordinator.run.records import Run, read_run
from coordinate_eval.coordinator.run.starting import resumes
from coordinate_eval.coordinator.run.starting.create import start_supervisor, works_on_login
from coordinate_eval.coordinator.run.supervision import latest_epoch
from coordinate_eval.coordinator.supervisor.ending import sweep
from coordinate_eval.errors import ClusterSilent, CoordinateError, UserError

_ANOTHER_PROCESS = "another process on this machine"

_START_SECONDS = 30.0
"""Time in which a process that supervises has started."""


def resume_command(
    run: common.RunName = None,
    full: common.Full = False,
    judge_url: common.JudgeUrl = None,
    wait: common.Wait = False,
    as_json: common.Json = False,
    settings_file: common.SettingsFile = None,
) -> None:
    """Continue a run that was cancelled, ended incomplete, or lost its supervisor."""
    settings, _ = load_settings({"judge.base_url": judge_url}, settings_file)
    found = find(run, settings)
    raise typer.Exit(resume_run(found, settings, wait=wait, as_json=as_json, full=full))


def cancel_command(run: common.RunName = None, settings_file: common.SettingsFile = None) -> None:
    """End all jobs of a run. What it has published stays; `resume` continues it."""
    settings, _ = load_settings({}, settings_file)
    cancel_run(find(run, settings))


def resume_run(
    run_dir: RunDir,
    settings: Settings,
    *,
    wait: bool,
    as_json: bool,
    asked_again: bool = False,
    full: bool = False,
) -> int:
    """Continue a run, or print its results if it is complete; return the exit status.

    With `asked_again` nobody has typed `resume`: the run's checkpoint was named once more, perhaps
    by cron. Why the run stopped is said first, and after `resumes.MOST_TRIES` such tries without
    progress nothing more is submitted. With `full` a run that was decided early, or that has a
    sample, asks what is left. Of the `settings` those of the judge count, if it moved.

    Raises:
        CoordinateError: there were too many tries, or somebody holds the supervisor's job.
        UserError: the key of the judge is not there, or `full` is asked of another run.
    """
    run = read_run(run_dir)
    if full:
        _check_full(run)
        _files.write(run_dir.full, "")
    if state.is_done(run_dir):
        words = "is already complete"
        if why := why_stopped(run_dir):
            name = name_for_commands(run_dir, run, run.settings)
            words = (
                f"has the scores of a part of the items ({in_part(why)}): "
                f"`coordinate-eval resume {name} --full` asks those that are left"
            )
        say(f"run {run.id} {words}")
        return show_results(run_dir, as_json=as_json)
    run = _with_judge(run_dir, run, settings.judge)
    cluster = clusters.by_name(run.cluster, run.settings)
    if cluster.local:
        if asked_again and state.is_supervised(run_dir, run, []):
            return _say_supervised(run_dir, run, _ANOTHER_PROCESS)
        _prepare(run_dir, run, supervised=False, asked_again=asked_again)
        with working_in(str(work_folder(run_dir))), cluster:
            return supervise(run_dir, run, cluster, as_json=as_json)
    with working_in(str(work_folder(run_dir))), cluster:
        tasks = clusters.patiently(lambda: cluster.poll(jobs.prefix(run)))
        alive = supervision.supervisors(jobs.prefix(run), tasks)
        # Its supervisor may still wait for jobs to end. It does nothing more for the run.
        over = run_dir.cancelled.exists() or state.has_ended_incomplete(run_dir)
        supervised = not over and bool(state.is_supervised(run_dir, run, tasks))
        if not over and (held := supervision.held_supervisor(jobs.prefix(run), tasks)):
            raise CoordinateError(
                f"run {run.id} waits for its supervisor: {supervision.held_in_words(held)}"
            )
        _prepare(run_dir, run, supervised=supervised, asked_again=asked_again)
        if alive and not over and not wait:
            return _say_supervised(run_dir, run, f"job {alive[0].job_id}")
        if supervised and asked_again and not wait:
            return _say_supervised(run_dir, run, _ANOTHER_PROCESS)
        if unlaunched := supervision.unlaunched_supervisors(jobs.prefix(run), tasks):
            words = f"job {', '.join(unlaunched)}, whose launch failed"
            say(f"run {run.id} gets another supervisor than {words}: it is cancelled")
            cluster.cancel(unlaunched)
        if wait:
            # One that starts later would take over from this one.
            cluster.cancel([t.job_id for t in alive])
            return supervise(run_dir, run, cluster, as_json=as_json)
        run = run.model_copy(update={"limits": clusters.patiently(cluster.limits)})
        say_windows(run)
        announce(run_dir, run, start_supervisor(run_dir, run, cluster), as_json=as_json)
    return 0


def _check_full(run: Run) -> None:
    """Check that a run can be asked in full.

    Raises:
        UserError: nothing was withdrawn from it, or it only scores what another run has asked.
    """
    if run.rescores:
        raise UserError(
            f"run {run.id} only scores the responses of {run.rescores} again: resume that one with "
            "--full, and rescore it"
        )
    if not run.against and all(dataset.sample is None for dataset in run.suite.datasets):
        raise UserError(
            f"run {run.id} has no --until-decided and no --precision, so nothing was withdrawn "
            "from it: leave out --full. The whole of a part is a run of its own: evaluate "
            f"{run.checkpoint.path} without --limit and --only"
        )


def supervise_from_here(settings: Settings) -> list[str]:
    """Give a supervisor to the runs that no job can supervise, and that have none.

    Return a line for each, for people.
    """
    if clusters.why_not_from_here(clusters.DESCRIBED) or "SLURM_JOB_ID" in os.environ:
        return []
    found = [pair for pair in find_all(settings)[0] if _lacks_supervisor(*pair)]
    tasks, note = poll(found, settings)
    if note:
        raise ClusterSilent(note)
    lines = []
    for run_dir, run in found:
        if supervision.supervisors(jobs.prefix(run), tasks.get(run.nonce) or []):
            continue
        before = latest_epoch(run_dir)
        with working_in(str(work_folder(run_dir))):
            cluster = clusters.by_name(run.cluster, run.settings)
            supervised = start_supervisor(run_dir, run, cluster)
        lines.append(f"run {run.id} is supervised by {supervised.words}")
        end = time.monotonic() + _START_SECONDS
        while latest_epoch(run_dir) == before and time.monotonic() < end:
            time.sleep(0.2)
    return lines


def _lacks_supervisor(run_dir: RunDir, run: Run) -> bool:
    """Return whether a process should supervise a run, and none does, as far as files tell."""
    over = run_dir.cancelled.exists() or state.is_done(run_dir)
    if over or not works_on_login(run_dir, run) or state.has_ended_incomplete(run_dir):
        return False
    now = time.time()
    if state.is_supervised(run_dir, run, []) is False:
        # Its first process may not be there yet. A job that has handed over has no other one.
        created = 0.0 if run_dir.handed_over.exists() else run.created
        begun = max(created, _files.modified(run_dir.resumed))
        return now - begun > _START_SECONDS
    # It notes each look. Its machine may be down, or another process have its number.
    patience = run.settings.supervisor.patience_seconds
    return now - _files.modified(run_dir.supervisors_folder) > patience


def _with_judge(run_dir: RunDir, run: Run, given: JudgeSettings) -> Run:
    """Return the run with its judge where it is now, and keep that for the run's jobs."""
    if not any(dataset.rubric for dataset in run.suite.datasets):
        return run
    kept = run.settings.judge
    if given.model and given.name != kept.name:
        say(f"run {run.id} keeps its judge {kept.name}: {given.name} would be of another run")
    now = judge.moved(kept, given)
    judge.check(now, run.suite, os.environ)
    if now != kept:
        _files.write_record(run_dir.judge_settings, now)
    return read_run(run_dir)


def _say_supervised(run_dir: RunDir, run: Run, by: str) -> int:
    """Say who supervises a run that goes on, and return the exit status."""
    say(f"run {run.id} is supervised by {by}: {run_dir.root}")
    return 0


def _prepare(run_dir: RunDir, run: Run, *, supervised: bool, asked_again: bool) -> None:
    """Say why the run stopped, and mark it as resumed.

    Asking again for a run that is supervised does not mark it: what failed goes on counting.
    """
    if asked_again and not supervised and not run_dir.cancelled.exists():
        name = name_for_commands(run_dir, run, run.settings)
        why = "\n".join(f"  {line}" for line in reasons_why_stopped(run_dir))
        tries = resumes.tries_without_progress(run_dir)
        if tries >= resumes.MOST_TRIES:
            raise CoordinateError(
                f"run {run.id} was resumed {tries} times without any progress, so it is not "
                f"resumed again:\n{why}\nRemove the cause; `coordinate-eval resume {name}` then "
                "tries once more"
            )
        number = f" (try {tries + 1} of {resumes.MOST_TRIES} without progress)" if tries else ""
        say(f"run {run.id} stopped without all results:\n{why}\nresuming it{number}")
    run_dir.cancelled.unlink(missing_ok=True)
    lease.take(run_dir, run)
    if not (asked_again and supervised):
        resumes.note(run_dir, by_hand=not asked_again)


CANCEL_SECONDS = 60.0
"""Longest time for which `cancel` looks for jobs that are submitted meanwhile."""

POLL_SECONDS = 0.5
"""Time between two polls."""


def cancel_run(run_dir: RunDir, why: str = "") -> None:
    """End all jobs of a run, and mark its directory with the reason, if there is one.

    Raises:
        ClusterSilent: the scheduler did not answer; the run is marked, so try again.
    """
    run = read_run(run_dir)
    _files.write(run_dir.cancelled, why)
    cluster = clusters.by_name(run.cluster, run.settings)
    if cluster.local and state.is_supervised(run_dir, run, []) is not False:
        say(f"run {run.id} ends as soon as its supervisor sees that")
        return
    try:
        # On this machine its jobs have ended with its supervisor.
        with contextlib.nullcontext() if cluster.local else cluster:
            count = 0 if cluster.local else _cancel_all(run, cluster)
            lease.end(run)
            sweep(run, run_dir, cluster, POLL_SECONDS, SystemClock(), note=say)
    except ClusterSilent as error:
        raise ClusterSilent(
            f"{error}\nrun {run.id} is marked as cancelled: its supervisor ends it as soon as the "
            "scheduler answers. Cancel it again then, in case it has no supervisor"
        ) from error
    said = f"cancelled {plural(count, 'job')}" if count else "no job was left to cancel"
    say(f"run {run.id}: {said}")


def _cancel_all(run: Run, cluster: Cluster) -> int:
    """Cancel until no job is left: a supervisor may submit another one meanwhile."""
    cancelled: set[str] = set()
    give_up = time.monotonic() + CANCEL_SECONDS
    while time.monotonic() < give_up:
        tasks = clusters.patiently(lambda: cluster.poll(jobs.prefix(run)))
        alive = [t for t in tasks if t.state is not State.ENDED]
        if not alive:
            break
        alive.sort(key=lambda t: not jobs.is_supervisor(run, t.name))
        ids = [i for i in dict.fromkeys(t.job_id for t in alive) if i not in cancelled]
        if ids:
            cluster.cancel(ids)
            cancelled.update(ids)
        time.sleep(POLL_SECONDS)
    return len(cancelled)
