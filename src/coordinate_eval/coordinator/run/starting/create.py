"""Run directories: found, created whole in one rename or not at all, and given a supervisor."""

import errno
import hashlib
import json
import os
import re
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from coordinate_eval import _files
from coordinate_eval.clusters.protocol import Cluster, Job
from coordinate_eval.coordinator.inputs import judge
from coordinate_eval.coordinator.inputs.checkpoints import clean_files
from coordinate_eval.coordinator.inputs.settings import Settings
from coordinate_eval.coordinator.run import containers, jobs
from coordinate_eval.coordinator.run.own import check_link, own, work_folder
from coordinate_eval.coordinator.run.paths import RunDir
from coordinate_eval.coordinator.run.records import (
    HandedOver,
    Run,
    Submitted,
    read_run_if_there,
    write_run,
)
from coordinate_eval.coordinator.run.starting import baselines
from coordinate_eval.coordinator.run.supervision import latest_epoch, start_here
from coordinate_eval.errors import ForeignError, RecordError, RunExists, UserError
from coordinate_eval.records import Checkpoint, Record, Suite
from coordinate_eval.slurm.environment import of_job

NEEDS_WATCH = (
    "`coordinate-eval watch` on a login node, from cron (--cron) or in a terminal, goes on with it"
)
"""Words about a run whose supervisor cannot submit from a compute node."""


def run_id(checkpoint: Checkpoint, suite: Suite, settings: Settings, against: str = "") -> str:
    """Return the id of a run: equal for equal checkpoint, suite, engine and, if it asks one, judge.

    Asking twice for the same scores therefore finds the first run instead of starting another. A
    run that is compared until that is decided, with the run in the directory `against`, has an id
    of its own.

    Raises:
        UserError: answers that a judge compares with cannot be read.
    """
    engine = settings.engine.model_dump(mode="json")
    what = [checkpoint.identity, suite.digest, engine, settings.trial.max_length]
    what += judge.identity(settings.judge, suite)
    what += [against] if against else []
    digest = hashlib.sha256(json.dumps(what, sort_keys=True).encode()).hexdigest()[:10]
    name = re.sub(r"[^A-Za-z0-9_.-]+", "-", Path(checkpoint.path).name).strip("-.")[-40:]
    return f"{name or 'checkpoint'}-{digest}"


def existing(root: Path, checkpoint: Checkpoint, suite: Suite, settings: Settings) -> Run | None:
    """Return the run in this directory, None where there is none yet.

    Raises:
        ForeignError: Another user made the directory, or can write in it.
        UserError: The run is of another checkpoint, suite, engine or judge, or the directory holds
            something else.
    """
    try:
        if not root.is_symlink() and not root.exists():
            return None
        check_link(root)
        if not root.is_dir():
            raise UserError(f"run directory {root} is a file: choose another --run-dir")
        own(root)
        if not any(root.iterdir()):
            return None
    except OSError as error:
        raise UserError(f"run directory {root} cannot be read: {error.strerror}") from error
    except RecordError as error:
        raise UserError(str(error)) from error
    run = read_run_if_there(RunDir(root))
    if run is None:
        raise UserError(f"{root} is not empty and not a run directory: choose another --run-dir")
    for what, was, now in (
        (
            "checkpoint",
            (run.checkpoint.path, run.checkpoint.identity),
            (checkpoint.path, checkpoint.identity),
        ),
        ("suite", (run.suite.name, run.suite.digest), (suite.name, suite.digest)),
    ):
        if was[1] != now[1]:
            changed = "it has changed since" if was[0] == now[0] else f"not {now[0]}"
            if what == "suite" and was[0] == now[0]:
                changed += ", or another part of it is asked for now"
            raise UserError(
                f"run directory {root} is of {what} {was[0]}, {changed}: choose another --run-dir"
            )
    if (run.settings.engine, run.settings.trial.max_length) != (
        settings.engine,
        settings.trial.max_length,
    ):
        raise UserError(
            f"run directory {root} was made with engine {run.settings.engine.name} "
            f"{run.settings.engine.args}: choose another --run-dir"
        )
    judged = any(dataset.rubric for dataset in suite.datasets)
    if judged and run.id != run_id(checkpoint, suite, settings):
        raise UserError(
            f"run directory {root} was made with judge {run.settings.judge.name or '(none)'} and "
            f"baseline {run.settings.judge.baseline or '(none)'}, and not with these settings of "
            "[judge], or the baseline's answers have changed: choose another --run-dir"
        )
    return run


def create(root: Path, run: Run, reviewed: Record | None = None) -> RunDir:
    """Write a new run directory at `root`, whole or not at all.

    `reviewed` is the plan that the run is to follow, if the user gave one.

    Raises:
        RunExists: Another process has made it.
        UserError: The directory cannot be written, or no container can have its paths.
    """
    containers.check_paths(run, RunDir(root))

    def fill(made: RunDir) -> None:
        made.model.mkdir()
        clean_files.copy(run.checkpoint.files, made.model)
        made.requests_folder.mkdir()
        baselines.write(made, run)
        write_run(made, run)
        if reviewed is not None:
            _files.write_record(made.reviewed, reviewed)

    return create_whole(root, fill)


def create_whole(root: Path, fill: Callable[[RunDir], None]) -> RunDir:
    """Make a run directory at `root` that appears when `fill` has written into it.

    Raises as `create` does.
    """
    try:
        root.parent.mkdir(parents=True, exist_ok=True)
        draft = root.parent / f".{root.name}.{_files.token()}.tmp"
        _files.make_closed(draft)
    except OSError as error:
        raise UserError(f"run directory {root} cannot be made: {error.strerror}") from error
    try:
        made = RunDir(draft / "run")
        made.root.mkdir()
        _check_own(made.root, root)
        made.logs.mkdir()
        work_folder(made)
        fill(made)
        _appear(made.root, root)
    except OSError as error:
        raise UserError(f"run directory {root} cannot be written: {error}") from error
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return RunDir(root)


def _appear(made: Path, root: Path) -> None:
    """Give a run directory its name.

    Raises:
        RunExists: another run has it.
    """
    try:
        made.rename(root)
    except OSError as error:
        # Of another user, in a folder with the sticky bit, it may not even be tried to replace.
        taken = error.errno in (errno.EPERM, errno.EACCES) and os.path.lexists(root)
        if taken or error.errno in (errno.EEXIST, errno.ENOTEMPTY):
            raise RunExists(f"another process has just made this run: {root}") from error
        raise


class Supervised(NamedTuple):
    """The supervisor of a run from now on."""

    job: str | None
    """Its job; None for a process of this machine."""
    words: str


def start_supervisor(run_dir: RunDir, run: Run, cluster: Cluster) -> Supervised:
    """Give a run its next supervisor: a job, or a process of this machine where no job can submit.

    A process inside another job would end with that job, so the supervisor is a job there.
    """
    work_folder(run_dir)
    job = jobs.supervisor_job(run, run_dir, latest_epoch(run_dir) + 1, time.time())
    if works_on_login(run_dir, run) and "SLURM_JOB_ID" not in os.environ:
        return _start_here(run_dir, run, job)
    submitted = Submitted(job=job, job_id=cluster.submit(job), time=time.time())
    _files.write_record(run_dir.job(job.name), submitted)
    return Supervised(submitted.job_id, f"job {submitted.job_id}")


def works_on_login(run_dir: RunDir, run: Run) -> bool:
    """Return whether a run is supervised by a process of a login node, because no job can."""
    settings = run.settings.slurm
    return run.cluster == "slurm" and (
        settings.supervisor == "login" or run_dir.handed_over.exists()
    )


def hand_over(run_dir: RunDir, why: str) -> str:
    """Leave a run to those who can submit. Return that in words."""
    _files.write_record(run_dir.handed_over, HandedOver(why=why, time=time.time()))
    return f"{why}, where this supervisor runs: {NEEDS_WATCH}"


def _start_here(run_dir: RunDir, run: Run, job: Job) -> Supervised:
    """Start a supervisor that outlives this process, with what a job would have."""
    argv = (*jobs.program(run.python), "_supervise", str(run_dir.root))
    environment = of_job(os.environ, run.settings.slurm.environment, job.needs, job.without)
    log = run_dir.logs / f"{jobs.prefix(run)}super-login.log"
    what = f"supervisor of run {run.id}"
    return Supervised(None, start_here(what, argv, run_dir.work, log, environment))


def _check_own(draft: Path, root: Path) -> None:
    """Check that a folder just made is the user's own: storage may give root's to another user."""
    try:
        own(draft)
    except ForeignError as error:
        raise ForeignError(str(error).replace(str(draft), str(root))) from error
