"""This machine as a cluster. Jobs are processes of the one that submits them, and end with it.

Each task has a guard (`_guard.py`), which runs it and sees to its end. Tasks that need GPUs or
cores which others have wait, and start in the order of their submission when they fit. GPUs are
given out through the environment variable that their driver reads.
"""

import contextlib
import os
import shlex
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Self

from pydantic import Field

from coordinate_eval import _files, _guard, _owner
from coordinate_eval.clusters.protocol import (
    ENDS_WITH_PARENT,
    INDEX_VARIABLE,
    MOST_GPUS,
    TASK_VARIABLE,
    Busy,
    Cluster,
    End,
    Job,
    Node,
    ShownJob,
    State,
    TaskStatus,
    Waits,
)
from coordinate_eval.errors import ForeignError, SubmitRefused, UserError
from coordinate_eval.records import Record

NODE = "local"

_NVIDIA, _AMD = "CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"

_MORE_CORES = 2
"""Cores beyond those there are, for a scoring job and the judge's job. Both mostly wait, and no job
that computes must wait for their cores."""


def cores() -> int:
    """Return how many cores of this machine jobs may use: those of this process, see taskset(1)."""
    return len(os.sched_getaffinity(0))


class LocalSettings(Record):
    """The resources of this machine that runs may use."""

    gpus: int | None = Field(
        default=None,
        ge=1,
        le=MOST_GPUS,
        description="GPUs of this machine to use; if not set, all that are found, or one trial "
        "without a GPU",
    )


class Gpus(NamedTuple):
    """The GPUs to give out. Without any, one stands for the processor."""

    names: tuple[str, ...]
    """Numbers, or whatever an environment variable calls them, such as the UUID of a MIG device."""
    variable: str
    """The environment variable that names a job's GPUs; empty if there are none."""
    kind: str
    memory_gib: float
    """Memory of one of them; 0 if unknown."""


@dataclass
class _Task:
    """One task of a job."""

    job: Job
    job_id: str
    index: int
    guard: subprocess.Popen[bytes] | None = None
    """Its guard, once it has started."""
    gpus: tuple[str, ...] = ()
    """The GPUs that it has."""
    cancelled: bool = False
    end: End | None = None
    """Its end, if it has ended."""
    reason: str = ""

    @property
    def waits(self) -> bool:
        """Return whether it has not started yet, and will."""
        return self.guard is None and self.end is None


class LocalCluster(Cluster):
    """This machine as a `Cluster`.

    Args:
        trial_memory_gib: memory of a trial beside its weights.
        gpu_memory_gib: memory of a GPU whose driver does not tell it; 0 if unknown.
    """

    name = "local"
    local = True

    def __init__(
        self, settings: LocalSettings, trial_memory_gib: float = 0.0, gpu_memory_gib: float = 0.0
    ) -> None:
        self._settings, self._trial_memory_gib = settings, trial_memory_gib
        self._gpu_memory_gib = gpu_memory_gib
        self._session = _files.token()
        self._tasks: list[_Task] = []
        self._submitted = 0

    def __enter__(self) -> Self:
        """Look for the GPUs.

        Raises:
            UserError: there are fewer than the settings ask for.
        """
        self._gpus = find_gpus(self._settings, os.environ, self._gpu_memory_gib)
        self._cores = cores() + _MORE_CORES
        return self

    def __exit__(self, *exc_info: object) -> None:
        """End all jobs, and let them clean up."""
        self._end(self._tasks)
        for task in self._tasks:
            if task.guard is not None:
                with contextlib.suppress(subprocess.TimeoutExpired):  # it hangs in a driver
                    task.guard.wait(2 * _guard.END_SECONDS)

    def shown(self, job: Job) -> ShownJob:
        """Return the argv of `job` and the number of its tasks."""
        text = f"{job.count} × {shlex.join(job.command)}"
        return ShownJob(job.name, text, None, text)

    def about(self) -> Mapping[str, str]:
        """Return who starts the jobs."""
        return {"scheduler": "this command starts the jobs, on this machine"}

    def nodes(self) -> tuple[list[Node], list[Busy]]:
        """Return this machine with its free resources."""
        self._collect()
        count = len(self._gpus.names)
        node = Node(
            name=NODE,
            gpus=count,
            free_gpus=len(self._free_gpus()),
            gpu_type=self._gpus.kind,
            gpu_memory_gib=self._gpus.memory_gib,
            cpus=1 << 20,
            # Trials reserve no memory on this machine, but the weights must fit.
            memory_gib=_available_gib() + count * self._trial_memory_gib,
        )
        if node.free_gpus:
            return [node], []
        return [], [node.busy(f"{count} of {count} GPUs in use")]

    def submit(self, job: Job) -> str:
        """Start the job's tasks as soon as there are GPUs and cores for them.

        Raises:
            SubmitRefused: a task needs more GPUs than there are.
        """
        if job.gpus > len(self._gpus.names):
            raise SubmitRefused(
                f"{job.gpus} GPUs are needed, and {len(self._gpus.names)} of this machine are used"
            )
        job_id = f"{self._session}-{self._submitted}"
        self._submitted += 1
        self._tasks += [_Task(job, job_id, index) for index in range(job.count)]
        self._collect()
        return job_id

    def poll(self, prefix: str) -> list[TaskStatus]:
        """Return all tasks of this process whose job name starts with `prefix`."""
        self._collect()
        return [_status(task) for task in self._tasks if task.job.name.startswith(prefix)]

    def cancel(self, job_ids: list[str]) -> None:
        """End the processes of these tasks. Those that wait never start."""
        named = {*job_ids}
        self._end([t for t in self._tasks if {t.job_id, f"{t.job_id}_{t.index}"} & named])

    def _end(self, tasks: list[_Task]) -> None:
        self._collect()
        for task in tasks:
            if task.waits:
                task.end = End.CANCELLED
            elif task.end is None and task.guard is not None:
                task.cancelled = True
                _let_end(task.guard)

    def _collect(self) -> None:
        """Note which tasks have ended, and start those that fit into what is free."""
        for task in self._tasks:
            if task.end is None and task.guard is not None:
                status = task.guard.poll()
                if status is not None:
                    _let_end(task.guard)
                    task.end = End.CANCELLED if task.cancelled else _end_of(status)
        free = self._free_gpus()
        cores = self._cores - sum(self._cores_of(task.job) for task in self._running())
        for task in self._tasks:
            needs = self._cores_of(task.job)
            if task.waits and task.job.gpus <= len(free) and needs <= cores:
                self._start(task, free[: task.job.gpus])
                if task.end is None:
                    free, cores = free[task.job.gpus :], cores - needs

    def _running(self) -> list[_Task]:
        return [task for task in self._tasks if task.guard is not None and task.end is None]

    def _free_gpus(self) -> tuple[str, ...]:
        taken = {gpu for task in self._running() for gpu in task.gpus}
        return tuple(gpu for gpu in self._gpus.names if gpu not in taken)

    def _cores_of(self, job: Job) -> int:
        """Return the cores that a task waits for. Keepers and trials share all of them."""
        return 0 if job.gpu_work else min(job.cpus, self._cores)

    def _start(self, task: _Task, gpus: tuple[str, ...]) -> None:
        """Start a task. One that cannot be started has failed."""
        job = task.job
        environment = {name: value for name, value in os.environ.items() if name not in job.without}
        environment |= {
            INDEX_VARIABLE: str(task.index),
            TASK_VARIABLE: f"{task.job_id}_{task.index}.0",
            **ENDS_WITH_PARENT,
        }
        if gpus and self._gpus.variable:
            environment[self._gpus.variable] = ",".join(gpus)
        log = Path(f"{job.log}_{task.index}.log" if job.count > 1 else f"{job.log}.log")
        try:
            with os.fdopen(_owner.open_log(log), "ab") as out:
                started = _guard.start(
                    job.command,
                    env=environment,
                    cwd=job.folder,
                    stdout=out,
                    stderr=subprocess.STDOUT,
                )
        except (OSError, ForeignError) as error:
            task.end, task.reason = End.FAILED, str(error)
        else:
            task.guard, task.gpus = started, gpus


def find_gpus(
    settings: LocalSettings, environ: Mapping[str, str], gpu_memory_gib: float = 0.0
) -> Gpus:
    """Return the GPUs to use: those that the environment names, or all that are there.

    AMD's are found only if the environment names them. One has `gpu_memory_gib`, unless its driver
    tells more exactly.

    Raises:
        UserError: there are fewer than the settings ask for.
    """
    found = _nvidia_smi()
    variable = _NVIDIA if found else _AMD
    named = environ.get(variable)
    if not found and named is None:  # one stands for the processor, or some are made up
        return Gpus(tuple(map(str, range(settings.gpus or 1))), "", "cpu", 0.0)
    names = [str(number) for number in range(len(found))]
    if named is not None:
        listed = (name.strip() for name in named.split(","))
        names = [name for name in dict.fromkeys(listed) if name not in ("", "-1")]
    if len(names) < (settings.gpus or 1):
        hidden = f" ({variable}={named!r})" if named is not None else ""
        of = f"this machine's {len(found)}" if found else "this machine's"
        raise UserError(
            f"{settings.gpus or 1} GPUs are needed, but only {len(names)} of {of} can be "
            f"used{hidden}: set [local] gpus lower, or make more GPUs visible"
        )
    kind, _, memory = (found or ["AMD,"])[0].rpartition(",")
    gib = gpu_memory_gib
    with contextlib.suppress(ValueError):  # "[N/A]" if GPU and host share their memory
        gib = float(memory) / 1024
    used = tuple(names[: settings.gpus or len(names)])
    return Gpus(used, variable, kind.strip().replace(" ", "_"), gib)


def _nvidia_smi() -> list[str]:
    """Return name and memory in MiB of each NVIDIA GPU, a line for each."""
    try:
        return subprocess.run(
            ["nvidia-smi", "--query-gpu=name,memory.total", "--format=csv,noheader,nounits"],
            capture_output=True,
            text=True,
            check=True,
            timeout=30,
        ).stdout.splitlines()
    except (OSError, subprocess.SubprocessError):
        return []


def _available_gib() -> float:
    """Return Linux's own estimate of the available memory in GiB."""
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) / 2**20
    return 0.0


def _let_end(started: subprocess.Popen[bytes]) -> None:
    """Have a guard end its job, by closing what the guard reads from."""
    assert started.stdin is not None
    started.stdin.close()


def _end_of(status: int) -> End:
    """Return how a task ended, by the exit status of its guard, which is the job's."""
    if status < 0:
        return End.UNKNOWN  # somebody has killed the guard
    return End.FAILED if status else End.COMPLETED


def _status(task: _Task) -> TaskStatus:
    state = State.PENDING if task.waits else State.ENDED if task.end else State.RUNNING
    return TaskStatus(
        name=task.job.name,
        job_id=task.job_id,
        index=task.index,
        state=state,
        end=task.end or End.UNKNOWN,
        reason=task.reason,
        waits=Waits.TURN if task.waits else Waits.NOTHING,
        node="" if task.waits else NODE,
    )
