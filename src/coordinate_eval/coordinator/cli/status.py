"""Commands on a run that exists: find it, show it, cancel it, supervise it as a job."""

import contextlib
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from coordinate_eval import _files
from coordinate_eval.coordinator import clusters
from coordinate_eval.coordinator.cluster import STARTED_VARIABLE, Cluster, State, TaskStatus
from coordinate_eval.coordinator.inputs.settings import Settings
from coordinate_eval.coordinator.run import first_signal, jobs
from coordinate_eval.coordinator.run.claims import Ledger
from coordinate_eval.coordinator.run.first_signal import FirstSignal
from coordinate_eval.coordinator.run.paths import RunDir
from coordinate_eval.coordinator.run.records import Run, TrialProgress
from coordinate_eval.coordinator.run.results import unscored_datasets
from coordinate_eval.coordinator.supervisor.loop import Supervisor
from coordinate_eval.errors import ClusterError, UserError

CANCEL_SECONDS = 60.0
"""How long `cancel` looks for jobs that still come to be."""


def find(name: str | None, settings: Settings) -> RunDir:
    """A run by its directory or id; the latest without either.

    Raises:
        UserError: there is none.
    """
    home = Path(settings.runs_dir).expanduser()
    if name is not None:
        # A name may be too long to be a path at all.
        with contextlib.suppress(OSError):
            for root in (Path(name), home / name):
                if (root / "run.json").exists():
                    return RunDir(root.resolve())
        raise UserError(f"no run {name!r}: neither a run directory nor an id under {home}")
    runs = [p.parent for p in home.glob("*/run.json")]
    if not runs:
        raise UserError(f"no runs under {home}")
    return RunDir(max(runs, key=lambda p: (p / "run.json").stat().st_mtime).resolve())


def status(run_dir: RunDir, *, as_json: bool) -> None:
    """Print what the run directory says, and what the scheduler says if it answers."""
    run = _files.read_record(run_dir.run, Run)
    tasks, note = _tasks(run)
    shown = _status(run_dir, run, tasks, note)
    if as_json:
        sys.stdout.write(_files.pretty(shown))
        return
    console = Console()
    console.print(f"run {run.id}: {shown['state']}", highlight=False, markup=False)
    console.print(str(run_dir.root), highlight=False, markup=False, soft_wrap=True)
    table = Table("dataset", "state")
    table.add_column("shards", justify="right")
    for name, row in shown["datasets"].items():
        table.add_row(name, row["state"], f"{row['shards_done']} of {row['shards']}")
    console.print(table)
    if shown["first_signal"] is not None:
        console.print(first_signal.table(shown["first_signal"]))
    jobs_table = Table("job", "id", "state", "node", "reason")
    for task in shown["jobs"]:
        jobs_table.add_row(*(task[k] for k in ("name", "id", "state", "node", "reason")))
    if shown["jobs"]:
        console.print(jobs_table)
    if note:
        console.print(note, style="yellow", markup=False, highlight=False)


def cancel(run_dir: RunDir) -> None:
    """End all jobs of a run and say so in its directory.

    Raises:
        ClusterSilent: the scheduler did not answer; the run is marked, ask again.
    """
    run = _files.read_record(run_dir.run, Run)
    _files.write(run_dir.cancelled, "")
    cluster = clusters.by_name(run.cluster, run.settings)
    if cluster.local:
        sys.stderr.write(f"run {run.id} is told to stop\n")
        return
    with cluster:
        count = _cancel_all(run, cluster)
    sys.stderr.write(f"cancelled {count} jobs of run {run.id}\n")


def _cancel_all(run: Run, cluster: Cluster) -> int:
    """Cancel until nothing is left: a supervisor may submit another job meanwhile."""
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
        time.sleep(0.5)
    return len(cancelled)


def supervise_as_job(run_dir: RunDir, minutes: int) -> int:
    """What a supervisor's own job does; the exit status."""
    run = _files.read_record(run_dir.run, Run)
    # The job's script starts a killed supervisor again, within the same time limit.
    began = float(os.environ.get(STARTED_VARIABLE) or time.time())
    limit = minutes - (time.time() - began) / 60 if minutes else float("inf")

    def tell(facts: object, event: str) -> None:
        if event:
            sys.stdout.write(event + "\n")
            sys.stdout.flush()

    with clusters.by_name(run.cluster, run.settings) as cluster:
        supervisor = Supervisor(run_dir, cluster, minutes=limit, tell=tell)
        # Slurm warns of preemption as well as of the time limit.
        signal.signal(signal.SIGUSR1, lambda *_: supervisor.leave_soon())
        results = supervisor.run()
    return 0 if results is None or results["complete"] else 1


def _tasks(run: Run) -> tuple[list[TaskStatus], str]:
    cluster = clusters.by_name(run.cluster, run.settings)
    if cluster.local:
        return [], ""
    try:
        with cluster:
            return cluster.poll(jobs.prefix(run)), ""
    except (ClusterError, UserError) as error:
        return [], f"jobs are not shown: {error}"


def _status(run_dir: RunDir, run: Run, tasks: list[TaskStatus], note: str) -> dict[str, Any]:
    undone = Ledger(run_dir, "outputs").unpublished(s.span for s in run.shards)
    left = {d.name for d in unscored_datasets(run_dir, run)}
    datasets = {}
    for dataset in run.suite.datasets:
        shards = sum(1 for s in run.shards if s.dataset == dataset.name)
        missing = sum(1 for s in undone if s.dataset == dataset.name)
        state = "running" if missing else "scoring"
        if missing == shards:
            state = "waiting"
        if dataset.name not in left:
            failed = run_dir.dataset_error(dataset.name).exists()
            state = "failed" if failed else "scored"
        datasets[dataset.name] = {
            "state": state,
            "shards": shards,
            "shards_done": shards - missing,
        }
    overall = _state(run_dir, left, tasks)
    rough = None
    if overall != "complete":
        rough = _files.read_record_if_there(run_dir.first_signal, FirstSignal)
    return {
        "run": run.id,
        "dir": str(run_dir.root),
        "state": overall,
        "checkpoint": run.checkpoint.path,
        "datasets": datasets,
        "first_signal": rough.model_dump(mode="json", by_alias=True) if rough else None,
        "trials": [t.model_dump(mode="json") for t in _trials(run_dir)],
        "jobs": [
            {
                "name": t.name,
                "id": f"{t.job_id}_{t.index}" if t.index else t.job_id,
                "state": t.state.value,
                "node": t.node,
                "reason": t.reason,
            }
            for t in tasks
            if t.state is not State.ENDED
        ],
        "note": note,
    }


def _state(run_dir: RunDir, unscored_names: set[str], tasks: list[TaskStatus]) -> str:
    if run_dir.results.exists() and _files.read_json(run_dir.results)["complete"]:
        return "complete"
    if run_dir.cancelled.exists():
        return "cancelled"
    if any(t.state is not State.ENDED for t in tasks):
        return "running"
    if run_dir.results.exists():
        return "incomplete"
    return "scoring" if not unscored_names else "not finished"


def _trials(run_dir: RunDir) -> list[TrialProgress]:
    return [
        _files.read_record(path, TrialProgress) for path in _files.records_in(run_dir.trials_folder)
    ]
