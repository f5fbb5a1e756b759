"""`coordinate-eval prune`: remove runs that have ended, by age and count."""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, NamedTuple

import typer

from coordinate_eval import _files
from coordinate_eval._format import plural
from coordinate_eval.clusters.protocol import State, TaskStatus
from coordinate_eval.coordinator.cli.inquire.runs import Found, age, find_all
from coordinate_eval.coordinator.cli.options import common
from coordinate_eval.coordinator.cli.options.parsing import option
from coordinate_eval.coordinator.cli.output import say
from coordinate_eval.coordinator.history import measured
from coordinate_eval.coordinator.inputs import clusters
from coordinate_eval.coordinator.inputs.checkpoints import kept_files
from coordinate_eval.coordinator.inputs.layers import load as load_settings
from coordinate_eval.coordinator.inputs.settings import Settings
from coordinate_eval.coordinator.report import state
from coordinate_eval.coordinator.report.results import read_results
from coordinate_eval.coordinator.report.state import Phase
from coordinate_eval.coordinator.run import jobs, lease
from coordinate_eval.coordinator.run.own import is_own
from coordinate_eval.coordinator.run.paths import RunDir
from coordinate_eval.coordinator.run.records import Run
from coordinate_eval.coordinator.run.removing import remove, remove_drafts, remove_leftovers
from coordinate_eval.errors import CoordinateError, RecordError, UserError

DAY_SECONDS = 86_400.0

QUIET_SECONDS = DAY_SECONDS
"""A run that may have a supervisor elsewhere has ended after so long without a change."""

_COPY_DAYS = 30.0
"""Days without use after which a copy from a store goes: runs in another `runs_dir` may need it."""

ENDED = (Phase.COMPLETE, Phase.DECIDED, Phase.INCOMPLETE, Phase.CANCELLED)
"""A run that has lost its supervisor is none of these: cancel it first."""


class Chosen(NamedTuple):
    """A run that is to be removed."""

    run_dir: RunDir
    run: Run
    phase: Phase
    quiet: float
    """Seconds since it was changed."""


_OlderThan = Annotated[
    float | None, option("--older-than DAYS", "Only runs not changed for this many days.", min=0)
]
_KeepNewest = Annotated[
    int | None, option("--keep N", "Leave the N newest runs as they are.", min=0)
]
_Sure = Annotated[bool, option("--yes", "Do it. Without it runs are only listed.")]


def prune_command(
    older_than: _OlderThan = None,
    keep: _KeepNewest = None,
    yes: _Sure = False,
    settings_file: common.SettingsFile = None,
) -> None:
    """Remove runs of yours in `runs_dir` that are complete, incomplete or cancelled.

    A run that goes on is left alone, and so is one without all results for a day after its last
    change, and one with files that are not of this program. A checkpoint whose run was removed is
    evaluated again if it is asked for again, also by `watch`.

    Exit status: 0 all was done or listed; 1 some run could not be removed; 3 the scheduler did
    not answer.
    """
    settings, _ = load_settings({}, settings_file)
    raise typer.Exit(prune(settings, older_than, keep, yes=yes))


def prune(settings: Settings, older_than: float | None, keep: int | None, *, yes: bool) -> int:
    """Remove the user's runs that have ended, and return the exit status.

    Args:
        older_than: days for which a run has not changed, None for any.
        keep: number of newest runs that stay as they are, None for none.

    Raises:
        UserError: nothing says which runs are to be removed.
        ClusterSilent: the scheduler did not answer, so that nobody knows which runs go on.
    """
    if older_than is None and keep is None:
        raise UserError("say which runs are to be removed: --older-than DAYS, --keep N, or both")
    found, problems = find_all(settings)
    for problem in problems:
        say(problem)
    chosen = list(_chosen(found[keep or 0 :], older_than, settings))
    failed = False
    for run_dir, run, phase, quiet in chosen:
        if not yes:
            say(f"would remove {run.id}: {phase.value}, unchanged for {age(quiet)}")
            continue
        try:
            if time.time() - _last_change(run_dir) < quiet:
                raise UserError("it has changed meanwhile, and is left alone")
            say(_remove(run_dir, run, settings))
        except (CoordinateError, OSError) as error:
            say(f"{run.id}: {error}")
            failed = True
    if not yes:
        do = "add --yes to do it" if chosen else "nothing to do"
        say(f"{len(chosen)} of {plural(len(found), 'run')}: {do}")
    else:
        for folder in {run.lease.parent for _, run in found}:
            lease.remove_abandoned(folder)
        home, cache = (Path(each).expanduser() for each in (settings.runs_dir, settings.cache_dir))
        remove_leftovers(home)
        for folder in (home, *(cache / name for name in _files.names(cache))):
            remove_drafts(folder)
        _remove_copies(settings, _COPY_DAYS if older_than is None else older_than)
    return int(failed)


def _remove_copies(settings: Settings, days: float) -> None:
    """Remove what was copied from stores for runs that are gone, and not used for so long."""
    cache = Path(settings.cache_dir).expanduser()
    needed = [file for _, run in find_all(settings)[0] for file in run.checkpoint.all_files]
    kept_files.remove_unused(cache, needed, days * DAY_SECONDS)


def _chosen(found: Sequence[Found], older_than: float | None, settings: Settings) -> list[Chosen]:
    """Return the runs that have surely ended, long enough ago."""
    now = time.time()
    old = [
        (run_dir, run, quiet)
        for run_dir, run in found
        if (quiet := now - _last_change(run_dir)) >= (older_than or 0) * DAY_SECONDS
    ]
    tasks = [
        task
        for name in sorted({run.cluster for _, run, _ in old})
        for task in _poll(name, settings)
    ]
    chosen = []
    for run_dir, run, quiet in old:
        try:
            mine = [task for task in tasks if task.name.startswith(jobs.prefix(run))]
            phase = state.phase_of(run_dir, run, mine, silent=False)
            supervised = state.is_supervised(run_dir, run, mine)
        except (RecordError, OSError) as error:
            say(f"{run.id} is left alone: {error}")
            continue
        # A supervisor of another machine, or of another cluster, changes a folder at each poll.
        sure = phase.done and supervised is False
        alive = bool(mine) or supervised is True
        if phase in ENDED and not alive and (sure or quiet > QUIET_SECONDS):
            chosen.append(Chosen(run_dir, run, phase, quiet))
    return chosen


def _poll(name: str, settings: Settings) -> list[TaskStatus]:
    """Return the jobs of all runs on a scheduler that have not ended."""
    cluster = clusters.by_name(name, settings)
    if cluster.local:
        return []
    with cluster:
        tasks = clusters.patiently(lambda: cluster.poll(jobs.PREFIX))
    return [task for task in tasks if task.state is not State.ENDED]


def _last_change(run_dir: RunDir) -> float:
    """Return when a run was created, supervised, ended or cancelled last.

    In seconds since the epoch.
    """
    return max(
        _files.modified(mark)
        for mark in (
            run_dir.run,
            run_dir.results,
            run_dir.cancelled,
            run_dir.resumed,
            run_dir.supervisors_folder,
        )
    )


def _remove(run_dir: RunDir, run: Run, settings: Settings) -> str:
    """Remove a run and the links to it in `runs_dir`; return what was done in words.

    Its scores stay in the history.
    """
    kept = ""
    try:
        now = measured.measure(run_dir, run, read_results(run_dir) or {})
        if now.scores:
            measured.keep(settings.runs_dir, now)
            kept = f"; {plural(len(now.scores), 'score')} of it stay in `coordinate-eval history`"
    except RecordError as error:
        kept = f"; its scores could not be read: {error}"
    home = Path(settings.runs_dir).expanduser()
    links = [
        link
        for link in (home / name for name in _files.names(home))
        if link.is_symlink() and is_own(link) and link.resolve() == run_dir.root
    ]
    lease.end(run)
    remove(run_dir)
    for link in links:
        link.unlink(missing_ok=True)
    return f"removed {run.id}{kept}"
