"""Tell who supervises a run: epochs, names, and jobs of supervisors that wait or are held."""

import os
import subprocess
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from pydantic import Field

from coordinate_eval import _files, _owner
from coordinate_eval.clusters.protocol import TASK_VARIABLE, Cluster, Hold, State, TaskStatus
from coordinate_eval.coordinator.run import jobs
from coordinate_eval.coordinator.run.paths import RunDir
from coordinate_eval.coordinator.run.records import Run
from coordinate_eval.errors import ClusterError, UserError
from coordinate_eval.records import Record


class Epoch(Record):
    """`supervisor/<epoch>.json`: a process that became the supervisor."""

    epoch: int
    host: str
    pid: int
    time: float
    token: str
    task: str = Field(default="", description="of the scheduler; empty in a terminal")


def latest_epoch(run_dir: RunDir) -> int:
    """Return the highest epoch so far; 0 before the first supervisor."""
    stems = (name.removesuffix(".json") for name in _files.names(run_dir.supervisors_folder))
    return max((int(stem) for stem in stems if stem.isdigit()), default=0)


def take_over(run_dir: RunDir) -> int:
    """Become the supervisor. Return the new epoch."""
    while True:
        epoch = latest_epoch(run_dir) + 1
        entry = Epoch(
            epoch=epoch,
            host=os.uname().nodename,
            pid=os.getpid(),
            time=time.time(),
            token=_files.token(),
            task=os.environ.get(TASK_VARIABLE, ""),
        )
        if _files.create(run_dir.supervisor(epoch), entry.model_dump_json()):
            return epoch


def start_here(
    what: str, argv: Sequence[str], folder: Path, log: Path, environment: Mapping[str, str]
) -> str:
    """Start a supervisor, or a guard, that outlives this process. Say which process it is.

    Raises:
        UserError: it cannot be started.
    """
    try:
        with os.fdopen(_owner.open_log(log), "ab") as output:
            process = subprocess.Popen(
                argv,
                cwd=folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
    except OSError as error:
        raise UserError(f"no {what} can be started: {error}") from error
    return f"process {process.pid} on {os.uname().nodename}"


def has_ended(run_dir: RunDir) -> bool:
    """Return whether the last supervision of a run has ended, with all results or without."""
    latest = run_dir.supervisor(latest_epoch(run_dir))
    begun = max(map(_files.modified, (run_dir.resumed, latest)))
    return run_dir.results.exists() and _files.modified(run_dir.results) >= begun


def held_in_words(task: TaskStatus) -> str:
    """Return that a job is held, or what else keeps it, and what its user does about it."""
    if not task.held:
        return f"job {task.job_id}: {task.means} ({task.reason}): {task.cure}"
    said = f"job {task.job_id} is held {task.held} ({task.reason})"
    if task.held is Hold.ADMIN:
        return f"{said}: ask the administrators to release it"
    return f"{said}: `scontrol release {task.job_id}` lets it start"


def all_in_words(tasks: Iterable[TaskStatus]) -> list[str]:
    """Return a line for each job that is held, or for which a person can do something."""
    return [
        held_in_words(task) for task in {t.job_id: t for t in tasks if t.held or t.cure}.values()
    ]


def supervisors(prefix: str, tasks: Iterable[TaskStatus]) -> list[TaskStatus]:
    """Return the supervisors, or guards, that run or wait, those that are held last.

    The names of all jobs of their run, or training, begin with `prefix`.

    One that is held because its launch failed counts as lost: nobody wants that, or ends it.
    """
    found = [task for task in _alive(prefix, tasks) if task.held is not Hold.LAUNCH]
    return sorted(found, key=lambda task: task.held != Hold.NONE)


def held_supervisor(prefix: str, tasks: Iterable[TaskStatus]) -> TaskStatus | None:
    """Return the supervisor that somebody holds, unless the run has another one."""
    first = next(iter(supervisors(prefix, tasks)), None)
    return first if first is not None and first.held else None


def unlaunched_supervisors(prefix: str, tasks: Iterable[TaskStatus]) -> list[str]:
    """Return the jobs of supervisors that are held because their launch failed."""
    return [task.job_id for task in _alive(prefix, tasks) if task.held is Hold.LAUNCH]


def _alive(prefix: str, tasks: Iterable[TaskStatus]) -> list[TaskStatus]:
    mine = (task for task in tasks if task.name.startswith(f"{prefix}super"))
    return [task for task in mine if task.state is not State.ENDED]


CURE = (
    f"have the administrators exempt job names that begin with {jobs.PREFIX!r} from the job_submit "
    "plugin that changes them"
)
"""Advice about it."""


def name_of(cluster: Cluster, task: str) -> str | None:
    """Return the name by which a scheduler knows a job; None if it does not say."""
    try:
        return next((each.name for each in cluster.poll("") if task in each.ids), None)
    except ClusterError:
        return None


def why_no_job_is_found(run: Run, cluster: Cluster, task: str) -> str:
    """Return why the supervisor in this task would find no job of its run; empty if it would."""
    name = name_of(cluster, task) if task else None
    if name is None or jobs.supervised_run(name) == jobs.prefix(run):
        return ""
    return (
        f"the scheduler knows job {task}, the supervisor, as {name!r}, which is not the name that "
        f"it was submitted with, and jobs are found by their names: {CURE}, then resume the run"
    )
