"""A run directory comes to be: whole, in one rename, or not at all."""

import hashlib
import json
import os
import re
import shutil
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from coordinate_eval.coordinator import files, jobs
from coordinate_eval.coordinator.cluster import Cluster
from coordinate_eval.coordinator.config import Settings
from coordinate_eval.coordinator.prepare import Prepared
from coordinate_eval.coordinator.run import NodeShare, Round, Run, Submitted, portion_seconds
from coordinate_eval.coordinator.rundir import RunDir
from coordinate_eval.coordinator.stage import staged_bytes
from coordinate_eval.coordinator.supervise import keeper_gib, latest_epoch
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
    run = files.read_record_if_there(RunDir(root).run, Run)
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
    cluster: Literal["slurm", "ray"],
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
        draft = root.parent / f".{root.name}.{files.token()}.tmp"
        draft.mkdir()
    except OSError as error:
        raise UserError(f"run directory {root}: {error.strerror}: {error.filename}") from error
    try:
        made = RunDir(draft)
        made.logs.mkdir()
        made.model.mkdir()
        for name in prepared.checkpoint.files:
            shutil.copyfile(name, made.model / Path(name).name)
        (draft / "requests").mkdir()
        for name, built in prepared.built.items():
            _link(built.requests, made.requests(name))
            files.write_record(made.requests_index(name), built.index)
        files.write_record(made.run, run)
        if prepared.choice.gpu_type or prepared.reviewed:
            files.write_record(made.plan, prepared.plan)
            # Where jobs take whole nodes, the supervisor's own job makes one of them unusable;
            # it asks for nodes itself when it knows which. A reviewed plan has said which.
            if not exclusive or prepared.reviewed:
                files.write_record(made.round(0), first_round(prepared, run))
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
    files.write_record(run_dir.job(job.name), submitted)
    return submitted


def frozen(
    identity: str, prepared: Prepared, cluster: Literal["slurm", "ray"], *, exclusive: bool
) -> Run:
    """The record of a run that is about to be."""
    shards = sorted(
        (shard for trial in prepared.plan.trials for shard in trial.shards),
        key=lambda s: (not s.signal, -s.gpu_seconds),
    )
    asks = [name for name, built in prepared.built.items() if built.index.asks]
    run = Run(
        id=identity,
        nonce=files.token()[:6],
        created=time.time(),
        cluster=cluster,
        python=sys.executable,
        folder=str(Path.cwd()),
        checkpoint=prepared.checkpoint,
        suite=prepared.suite,
        settings=prepared.settings,
        tensor_parallel=prepared.choice.tensor_parallel,
        gpu_type=prepared.choice.gpu_type,
        max_length=prepared.max_length,
        staged_bytes=staged_bytes(prepared.checkpoint),
        exclusive=exclusive,
        asks=[],
        left_out=prepared.left_out,
        shards=shards,
    )
    return with_asks(run, asks)


def with_asks(run: Run, asks: Sequence[str]) -> Run:
    """The record where the metrics of these datasets ask questions, in portions to match."""
    seconds = sum(s.metric_cpu_seconds for s in run.shards if s.dataset in asks)
    update = {"asks": list(asks), "portion_seconds": portion_seconds(seconds)}
    return run.model_copy(update=update)


def first_round(prepared: Prepared, run: Run) -> Round:
    """The nodes of the plan."""
    gib = keeper_gib(run)
    trials = Counter(t.node for t in prepared.plan.trials)
    trial = run.settings.trial
    return Round(
        number=0,
        created=time.time(),
        shares=[
            NodeShare(node=n.name, gpu_type=n.gpu_type, trials=trials[n.name], memory_gib=gib)
            for n in prepared.plan.nodes
        ],
        minutes=jobs.time_limit_minutes(
            trial.time_limit_factor,
            prepared.plan.estimate.makespan_seconds,
            trial.min_minutes,
            trial.max_minutes,
        ),
    )


def _link(source: Path, target: Path) -> None:
    """The same file where the cache is on the same file system, a copy elsewhere."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)
