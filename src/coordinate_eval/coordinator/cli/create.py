"""A run directory comes to be: whole, in one rename, or not at all."""

import hashlib
import json
import os
import re
import shutil
import time
from pathlib import Path

from coordinate_eval import _files
from coordinate_eval.coordinator.cluster import Cluster
from coordinate_eval.coordinator.inputs.settings import Settings
from coordinate_eval.coordinator.planning.freeze import first_round, frozen
from coordinate_eval.coordinator.planning.prepare import Prepared
from coordinate_eval.coordinator.run import jobs
from coordinate_eval.coordinator.run.epochs import latest_epoch
from coordinate_eval.coordinator.run.paths import RunDir
from coordinate_eval.coordinator.run.records import (
    Run,
    Submitted,
)
from coordinate_eval.errors import UserError
from coordinate_eval.records import Checkpoint, Suite


def run_id(checkpoint: Checkpoint, suite: Suite, settings: Settings) -> str:
    """The same for the same checkpoint, suite and engine, so that asking twice runs once."""
    engine = settings.engine.model_dump(mode="json")
    what = [checkpoint.identity, suite.digest, engine, settings.trial.max_length]
    digest = hashlib.sha256(json.dumps(what, sort_keys=True).encode()).hexdigest()[:10]
    name = re.sub(r"[^A-Za-z0-9_.-]+", "-", Path(checkpoint.path).name).strip("-.")[-40:]
    return f"{name or 'checkpoint'}-{digest}"


def existing(root: Path, checkpoint: Checkpoint, suite: Suite, settings: Settings) -> Run | None:
    """The run that is already there, if it is of the same checkpoint, suite and engine.

    Raises:
        UserError: the directory is of another run, or is no run directory.
    """
    try:
        if not root.exists() or (root.is_dir() and not any(root.iterdir())):
            return None
    except OSError as error:
        raise UserError(f"run directory {root}: {error.strerror}") from error
    if not root.is_dir():
        raise UserError(f"run directory {root} is a file")
    run = _files.read_record_if_there(RunDir(root).run, Run)
    if run is None:
        raise UserError(f"{root} is not empty and no run directory: choose another --run-dir")
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
    return run


def create(
    root: Path,
    identity: str,
    prepared: Prepared,
    cluster: str,
    *,
    exclusive: bool,
) -> RunDir:
    """Write a new run directory at `root`, whole.

    Raises:
        UserError: another one came to be there, or it cannot be written.
    """
    run = frozen(identity, prepared, cluster, exclusive=exclusive)
    try:
        root.parent.mkdir(parents=True, exist_ok=True)
        draft = root.parent / f".{root.name}.{_files.token()}.tmp"
        draft.mkdir()
    except OSError as error:
        raise UserError(f"run directory {root}: {error.strerror}: {error.filename}") from error
    try:
        made = RunDir(draft)
        made.logs.mkdir()
        made.model.mkdir()
        for name in prepared.checkpoint.files:
            shutil.copyfile(name, made.model / Path(name).name)
        made.requests_folder.mkdir()
        for name, built in prepared.built.items():
            _link(built.requests, made.requests(name))
            _files.write_record(made.requests_index(name), built.index)
        _files.write_record(made.run, run)
        if prepared.choice.gpu_type or prepared.reviewed:
            _files.write_record(made.plan, prepared.plan)
            # Where jobs take whole nodes, the supervisor's own job makes one of them unusable;
            # it asks for nodes itself when it knows which. A reviewed plan has said which.
            if not exclusive or prepared.reviewed:
                _files.write_record(made.round(0), first_round(prepared, run))
        draft.rename(root)
    except OSError as error:
        raise UserError(f"run directory {root} cannot be written: {error}") from error
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return RunDir(root)


def submit_supervisor(run_dir: RunDir, run: Run, cluster: Cluster) -> Submitted:
    """Hand the next supervisor to the scheduler.

    Raises:
        SubmitRefused: with the scheduler's words.
    """
    job = jobs.supervisor_job(run, run_dir, latest_epoch(run_dir) + 1)
    submitted = Submitted(job=job, job_id=cluster.submit(job), time=time.time())
    _files.write_record(run_dir.job(job.name), submitted)
    return submitted


def _link(source: Path, target: Path) -> None:
    """The same file where the cache is on the same file system, a copy elsewhere."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)
