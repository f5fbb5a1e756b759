"""The same checks inside small jobs, one for each queue that runs would use.

Jobs write their answers into a folder in `runs_dir`, which the nodes must share, and which is
removed when all have answered.
"""

import contextlib
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from coordinate_eval import _files, _job_log
from coordinate_eval._format import brief
from coordinate_eval.clusters.protocol import Cluster, Job, State, TaskStatus, Waits
from coordinate_eval.coordinator.doctor.examine import examine
from coordinate_eval.coordinator.doctor.findings import (
    KIND,
    Answer,
    Finding,
    Role,
    failure,
    warning,
)
from coordinate_eval.coordinator.incidents.causes import find
from coordinate_eval.coordinator.inputs import clusters
from coordinate_eval.coordinator.inputs.settings import Settings
from coordinate_eval.coordinator.run import containers
from coordinate_eval.coordinator.run.jobs import PREFIX, program
from coordinate_eval.coordinator.run.logs import MOST_LOG_BYTES
from coordinate_eval.coordinator.run.supervision import CURE, name_of
from coordinate_eval.diagnosis.rules import shipped
from coordinate_eval.errors import ClusterSilent, CoordinateError, UserError

MINUTES = 15
"""Time limit of such a job: imports from a busy file system take minutes."""

HIDDEN_SECONDS = 60.0
"""Time for which a network file system may hide the answer of a job that has ended."""

_SEE = (
    "see that its node mounts runs_dir and the Python that called, at the same paths, and that the "
    "lines of [slurm] setup run there"
)

_TAIL_BYTES = 64 << 10
_TAIL_LINES = 5


@dataclass(frozen=True)
class Place:
    """A queue that a job is sent to."""

    name: str
    title: str
    role: Role
    settings: Settings


@dataclass
class _Waiting:
    """A job whose answer is awaited."""

    place: Place
    cluster: Cluster
    job: Job
    job_id: str
    since: float
    ended: float | None = None
    """Monotonic seconds at which it was first seen to have ended without an answer."""


def places(settings: Settings, cluster: Cluster) -> list[Place]:
    """Return the queues of the settings: those of trials, then those of all other jobs."""
    if cluster.local and not settings.container.runtime:
        return [Place("job", "in a job on this machine", Role.MACHINE, settings)]
    slurm = settings.slurm
    found = []
    for role, names in (
        (Role.GPU_JOB, slurm.partition),
        (Role.CPU_JOB, slurm.cpu_partition or slurm.partition),
    ):
        what = "a job with a GPU" if role is Role.GPU_JOB else "a job without a GPU"
        if (image := settings.container.image_of(KIND[role])) is not None:
            what += f", image {image}"
        if cluster.name != "slurm":
            found.append(Place(role, f"in {what}", role, settings))
            continue
        for number, name in enumerate(names.split(",")):
            update = {"partition": name, "cpu_partition": name}
            if role is Role.CPU_JOB and slurm.cpu_partition not in ("", slurm.partition):
                update["reservation"] = ""  # such jobs are in none
            of_one = settings.model_copy(update={"slurm": slurm.model_copy(update=update)})
            where = f"in {what}, partition {name or 'by default'}"
            found.append(Place(f"{role}-{number}", where, role, of_one))
    return found


def job(place: Place, folder: Path, token: str) -> Job:
    """Return the job that examines its node and answers in a folder."""
    settings, on_cpus = place.settings, place.role is Role.CPU_JOB
    key, kind = settings.judge.api_key_env, KIND.get(place.role, "trial")
    memory_gib = settings.harness.memory_gib if on_cpus else settings.trial.memory_gib
    return Job(
        name=f"{PREFIX}doctor.{token}-{place.name}",
        argv=(*program(sys.executable), "_examine", str(folder), place.name, place.role),
        gpus=0 if on_cpus else 1,
        cpus=1 if on_cpus else settings.trial.cpus,
        memory_mib=round(memory_gib * 1024),
        minutes=MINUTES,
        gpu_work=not on_cpus,
        gpu_type=settings.gpu_type or settings.slurm.gpu_type,
        container=containers.container(settings, kind, [folder], [], folder / "home"),
        without=(key,) if key else (),
        folder=str(folder),
        log=str(folder / place.name),
    )


def answer(folder: Path, name: str, role: Role) -> None:
    """Examine this node and leave the answer: what such a job does."""
    settings = _files.read_record(folder / "settings.json", Settings)
    if settings.container.image_of(KIND.get(role, "trial")) is not None:
        # A container has a run's own directory, as it has this one, and not those of all runs.
        settings = settings.model_copy(update={"runs_dir": str(folder)})
    found = Answer(where=name, host=os.uname().nodename, findings=tuple(examine(settings, role)))
    _files.write_record(_answer_file(folder, name), found)


def ask(
    settings: Settings, name: str, pause: Callable[[float], None] = time.sleep
) -> Iterator[Answer]:
    """Submit the jobs to the scheduler of this name, and yield their answers as they come.

    Raises:
        UserError: no folder for the answers can be made in `runs_dir`.
    """
    token = _files.token()
    folder = answers_folder(settings, token)
    with contextlib.ExitStack() as stack:
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        waiting: list[_Waiting] = []
        stack.callback(_cancel, waiting)
        for place in places(settings, clusters.by_name(name, settings)):
            cluster = clusters.by_name(name, place.settings)
            made = job(place, folder, token)
            try:
                stack.enter_context(cluster)
                minutes = cluster.limits().allowed(MINUTES, time.time(), gpu_work=made.gpu_work)
                made = made.model_copy(update={"minutes": minutes})
                job_id = cluster.submit(made)
            except CoordinateError as error:
                do = "correct the settings that it names"
                yield _unanswered(place, failure("submission", str(error), do))
            else:
                waiting.append(_Waiting(place, cluster, made, job_id, time.monotonic()))
                known = name_of(cluster, job_id)
                if known not in (None, made.name):
                    _cancel([waiting.pop()])
                    said = f"the scheduler has changed {made.name!r} into {known!r}"
                    yield _unanswered(place, failure("job name", said, CURE))
        while waiting:
            for each in list(waiting):
                if (found := _look(each, folder)) is not None:
                    waiting.remove(each)
                    if not found.host:
                        _cancel([each])
                    yield found
            if waiting:
                pause(settings.supervisor.poll_seconds)


def answers_folder(settings: Settings, token: str) -> Path:
    """Make the folder in which jobs answer, with the settings in it, and return its path.

    Raises:
        UserError: it cannot be made in `runs_dir`.
    """
    folder = Path(settings.runs_dir).expanduser().absolute() / f".doctor-{token}"
    try:
        _files.make_closed(folder)
        _files.write_record(folder / "settings.json", settings)
    except OSError as error:
        raise UserError(
            f"setting runs_dir: {folder} cannot be made ({error.strerror}), and jobs would answer "
            "in it: set it to a folder of yours on storage that all nodes share"
        ) from error
    return folder


def last_words(log: Path, most: int = _TAIL_LINES) -> str:
    """Return the last lines of a log on one line; '' if there are none.

    Frames of C++ do not count.

    A job that its own timer ends has left there where each thread was, the main thread last, and
    the innermost place of each first.
    """
    try:
        with _files.open_to_read(log) as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - _TAIL_BYTES))
            text = _job_log.below(file.read(_TAIL_BYTES).decode(errors="replace"))
    except (OSError, CoordinateError):
        return ""
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("frame #")]
    if any(line.startswith("Timeout (") for line in lines):
        main = max((at for at, line in enumerate(lines) if line.startswith("Thread ")), default=0)
        return brief(f"it hung: {' | '.join(lines[main + 1 : main + 1 + most])}")
    return brief(" | ".join(lines[-most:]))


def _look(waiting: _Waiting, folder: Path) -> Answer | None:
    """Return a job's answer, or why there will be none; None while it may still come."""
    place = waiting.place
    _files.touch(folder)
    if (found := _answered(place, folder)) is not None:
        return found
    now = time.monotonic()
    try:
        tasks = waiting.cluster.poll(waiting.job.name)
    except ClusterSilent:
        return None
    alive = next((task for task in tasks if task.state is not State.ENDED), None)
    if alive is None:
        waiting.ended = waiting.ended or now
        if now - waiting.ended < (0 if waiting.cluster.local else HIDDEN_SECONDS):
            return None
        # It may have answered between that look and the scheduler's word.
        return _answered(place, folder) or _unanswered(place, _died(folder, place))
    patience = place.settings.supervisor.patience_seconds
    if alive.state is State.PENDING and now - waiting.since > patience:
        return _unanswered(place, _not_started(alive, patience))
    return None


def _answered(place: Place, folder: Path) -> Answer | None:
    """Return a job's answer, if it is there."""
    found = _files.read_record_if_there(_answer_file(folder, place.name), Answer)
    return None if found is None else found.model_copy(update={"where": place.title})


def _died(folder: Path, place: Place) -> Finding:
    """Return that a job has ended without an answer, with the last lines of its log."""
    logs = sorted(folder.glob(f"{place.name}*.log"))
    said = " | ".join(filter(None, map(last_words, logs))) or "its log is empty, or not there"
    causes = [find(str(log), "", "", shipped(), MOST_LOG_BYTES) for log in logs]
    cure = next((cause.cure for cause in causes if cause is not None and cause.rule), "")
    return failure("job", f"it ended without an answer: {said}", cure or _SEE)


def _not_started(task: TaskStatus, patience: float) -> Finding:
    """Return that a job waits in the queue, and for what."""
    reason = task.reason or "no reason given"
    found = f"it has not started in {patience:g} s: {reason}"
    if task.waits in (Waits.NOTHING, Waits.TURN, Waits.JOB_LIMIT):
        return warning("job", found, "ask again when the queue is shorter")
    found = ", ".join(filter(None, (found, task.means)))
    if task.waits is Waits.CLUSTER and not task.cure:
        return warning("job", found, "ask again later: this ends by itself")
    tells = "`squeue --me --start` and the partition's limits tell more"
    return failure("job", found, task.cure or tells)


def _unanswered(place: Place, finding: Finding) -> Answer:
    return Answer(where=place.title, host="", findings=(finding,))


def _answer_file(folder: Path, name: str) -> Path:
    return folder / f"{name}.answer.json"


def _cancel(waiting: list[_Waiting]) -> None:
    """End jobs that have not answered."""
    for each in waiting:
        with contextlib.suppress(CoordinateError):
            each.cluster.cancel([each.job_id])
