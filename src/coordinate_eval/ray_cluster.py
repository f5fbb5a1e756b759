"""This machine as a cluster, through Ray. Jobs have the same argv as on Slurm.

Ray allocates cores and GPUs and sets CUDA_VISIBLE_DEVICES. Each job is a subprocess of a Ray
worker. The supervisor is Ray's driver: if it ends, even if it is killed, Ray's workers end, and
each job ends with its worker.
"""

import contextlib
import os
import shlex
import signal
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from pydantic import Field

from coordinate_eval._files import token
from coordinate_eval.clusters.protocol import (
    ENDS_WITH_PARENT,
    INDEX_VARIABLE,
    MOST_CPUS,
    MOST_GPUS,
    TASK_VARIABLE,
    Busy,
    End,
    Job,
    JobLimits,
    Node,
    ShownJob,
    State,
    TaskStatus,
    Waits,
)
from coordinate_eval.errors import UserError
from coordinate_eval.private_ray import environment_of_jobs, hidden_by_ray, start
from coordinate_eval.records import Record

END_SECONDS = 20.0
"""Time for a cancelled job to clean up, in seconds, for example to remove staged weights."""

NODE = "local"

_VISIBLE = "CUDA_VISIBLE_DEVICES"


class RaySettings(Record):
    """The Ray cluster to use, or the resources of this machine that a Ray of its own may use."""

    address: str | None = Field(
        default=None,
        pattern=r"^(auto|[A-Za-z0-9_.-]{1,253}:[0-9]{1,5}|\[[0-9A-Fa-f:.]{2,45}\]:[0-9]{1,5})$",
        description="head of a Ray cluster, HOST:PORT, or auto: that of RAY_ADDRESS; if not "
        "set, a Ray of the run's own on this machine",
    )
    gpu_memory_gib: float | None = Field(
        default=None,
        gt=0,
        le=1e6,
        description="memory of a GPU that Ray does not tell; if not set, the smaller one of its "
        "type, and of an unknown type no more than 16",
    )
    gpus: int | None = Field(
        default=None,
        ge=1,
        le=MOST_GPUS,
        description="GPUs of this machine to use; if not set, all that are found, or one trial "
        "without a GPU",
    )
    cpus: int | None = Field(
        default=None,
        ge=1,
        le=MOST_CPUS,
        description="cores of this machine to use; if not set, all of them",
    )


@dataclass
class _Task:
    """One task of a job, with its Ray handle."""

    job: Job
    job_id: str
    index: int
    log: Path
    handle: Any
    end: End | None = None
    """Its end, if it has ended."""


class RayCluster:
    """This machine as a `Cluster`. Ray runs from `__enter__` to `__exit__`."""

    name = "ray"
    local = True

    def __init__(self, settings: RaySettings, trial_memory_gib: float) -> None:
        self._settings, self._trial_memory_gib = settings, trial_memory_gib
        self._session = token()
        self._tasks: list[_Task] = []
        self._submitted = 0

    def __enter__(self) -> Self:
        """Start Ray.

        Raises:
            UserError: Ray is not installed or too old, or there are fewer GPUs than the settings
                ask for.
            ClusterError: Ray does not start, or not as privately as it should.
        """
        self._gpus, self._gpu_type, self._gpu_memory_gib = _gpus(self._settings)
        # Two more for a scoring job and the judge's job, which mostly wait: no job that computes
        # must wait for their cores.
        cores = 2 + (self._settings.cpus or os.cpu_count() or 1)
        self._ray: Any = start(cores, self._gpus)
        self._start: Any = self._ray.remote(max_retries=0)(_run)
        return self

    def __exit__(self, *exc_info: object) -> None:
        """End all jobs, let them clear up, and stop Ray, which would only kill them."""
        handles = [task.handle for task in self._tasks]
        for handle in handles:
            self._ray.cancel(handle)
        if handles:
            self._ray.wait(handles, num_returns=len(handles), timeout=2 * END_SECONDS)
        self._ray.shutdown()

    @property
    def calls(self) -> Mapping[str, int]:
        """Return an empty counter: Ray runs in this process, and no commands are run."""
        return {}

    def here(self) -> bool:
        """Return True: any machine can run Ray."""
        return True

    def shown(self, job: Job) -> ShownJob:
        """Return the argv of `job` and the number of its tasks."""
        text = f"{job.count} × {shlex.join(job.argv)}"
        return ShownJob(job.name, text, None, text)

    def about(self) -> Mapping[str, str]:
        """Return Ray's version."""
        return {"scheduler": f"Ray {self._ray.__version__} on this machine, for this command alone"}

    def nodes(self) -> tuple[list[Node], list[Busy]]:
        """Return this machine with its free resources."""
        free = self._ray.available_resources()
        node = Node(
            name=NODE,
            gpus=self._gpus,
            free_gpus=int(free.get("GPU", 0)),
            gpu_type=self._gpu_type,
            gpu_memory_gib=self._gpu_memory_gib,
            cpus=1 << 20,
            # Trials reserve no memory on this machine, but the weights must fit.
            memory_gib=_available_gib() + self._gpus * self._trial_memory_gib,
        )
        if node.free_gpus:
            return [node], []
        return [], [Busy(name=NODE, why=f"{self._gpus} of {self._gpus} GPUs in use")]

    def whole_nodes(self) -> bool:
        """Return False: jobs share this machine."""
        return False

    def limits(self) -> JobLimits:
        """Return none: this machine ends no job."""
        return JobLimits()

    def submit(self, job: Job) -> str:
        """Queue the job's tasks in Ray, which starts them when there are GPUs for them."""
        job_id = f"{self._session}-{self._submitted}"
        self._submitted += 1
        for index in range(job.count):
            log = Path(f"{job.log}_{index}.log" if job.count > 1 else f"{job.log}.log")
            environment = {
                INDEX_VARIABLE: str(index),
                TASK_VARIABLE: f"{job_id}_{index}.0",
                **ENDS_WITH_PARENT,
                **hidden_by_ray(),
            }
            # Keepers and trials share all cores. Tasks of metric jobs wait for a free core.
            cpus = 0 if job.gpu_work else job.cpus
            start = self._start.options(num_cpus=cpus, num_gpus=job.gpus, name=job.name)
            handle = start.remote(
                list(job.argv), environment, list(job.without), job.folder, str(log)
            )
            self._tasks.append(_Task(job, job_id, index, log, handle))
        return job_id

    def poll(self, prefix: str) -> list[TaskStatus]:
        """Return all tasks of this process whose job name starts with `prefix`."""
        mine = [t for t in self._tasks if t.job.name.startswith(prefix)]
        going_on = {t.handle: t for t in mine if t.end is None}
        if going_on:
            ended, _ = self._ray.wait([*going_on], num_returns=len(going_on), timeout=0)
            for handle in ended:
                going_on[handle].end = self._end_of(handle)
        return [_status(task) for task in mine]

    def _end_of(self, handle: Any) -> End:  # noqa: ANN401 - Ray is optional
        """Return how a task ended: as its process did, unless Ray ended it."""
        try:
            return End.FAILED if self._ray.get(handle) else End.COMPLETED
        except self._ray.exceptions.TaskCancelledError:
            return End.CANCELLED
        except Exception:  # its worker was lost, or raised any other
            return End.UNKNOWN

    def cancel(self, job_ids: list[str]) -> None:
        """End the processes of these tasks."""
        for task in self._tasks:
            if task.job_id in job_ids or f"{task.job_id}_{task.index}" in job_ids:
                self._ray.cancel(task.handle)


def _run(
    argv: list[str], environment: dict[str, str], without: list[str], folder: str, log: str
) -> int:
    """Run one task in a Ray worker until it ends."""
    inherited = environment_of_jobs({n: v for n, v in os.environ.items() if n not in without})
    with Path(log).open("ab") as out:
        job = subprocess.Popen(
            argv,
            env=inherited | environment,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            process_group=0,
        )
    try:
        while True:
            # Ray cancels with an exception that is raised only between calls, so keep them short.
            with contextlib.suppress(subprocess.TimeoutExpired):
                return job.wait(1.0)
    finally:
        _end(job)


def _end(job: subprocess.Popen[bytes]) -> None:
    """Send SIGTERM, then SIGKILL if the job does not end in time.

    What a killed job has started, such as an engine's processes, is killed as well: it would keep
    GPUs and locks.
    """
    job.terminate()
    with contextlib.suppress(subprocess.TimeoutExpired):
        job.wait(END_SECONDS)
    if job.returncode is None or job.returncode < 0:
        with contextlib.suppress(OSError):  # it has started nothing
            os.killpg(job.pid, signal.SIGKILL)
    job.wait()


def _available_gib() -> float:
    """Return Linux's own estimate of the available memory in GiB."""
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) / 2**20
    return 0.0


def _status(task: _Task) -> TaskStatus:
    # A task first opens its log, so the log shows that it has started.
    state = State.RUNNING if task.log.exists() else State.PENDING
    return TaskStatus(
        name=task.job.name,
        job_id=task.job_id,
        index=task.index,
        state=state if task.end is None else State.ENDED,
        end=task.end or End.UNKNOWN,
        # Ray starts it when a task before it gives its GPUs or cores back.
        waits=Waits.TURN if state is State.PENDING else Waits.NOTHING,
        node=NODE,
    )


def _gpus(settings: RaySettings) -> tuple[int, str, float]:
    """Return the number of GPUs to use, their type, and the memory of one in GiB, 0 if unknown.

    Raises:
        UserError: there are fewer than the settings ask for.
    """
    try:
        found = subprocess.run(
            ["nvidia-smi", "--query-gpu=name,memory.total", "--format=csv,noheader,nounits"],
            capture_output=True,
            text=True,
            check=True,
            timeout=30,
        ).stdout.splitlines()
    except (OSError, subprocess.SubprocessError):
        found = []
    if not found:
        # It hides no GPU on this machine, and Ray would take it for a number of GPUs.
        os.environ.pop(_VISIBLE, None)
        return settings.gpus or 1, "cpu", 0.0
    count = len(found)
    if _VISIBLE in os.environ:
        count = sum(1 for name in os.environ[_VISIBLE].split(",") if name.strip() not in ("", "-1"))
    if count < (settings.gpus or 1):
        hidden = f" ({_VISIBLE}={os.environ[_VISIBLE]!r})" if _VISIBLE in os.environ else ""
        raise UserError(
            f"{settings.gpus or 1} GPUs are needed, but only {count} of this machine's "
            f"{len(found)} can be used{hidden}: set [ray] gpus lower, or make more GPUs visible"
        )
    name, _, memory = found[0].rpartition(",")
    gib = settings.gpu_memory_gib or 0.0
    with contextlib.suppress(ValueError):  # "[N/A]" if GPU and host share their memory
        gib = float(memory) / 1024
    return settings.gpus or count, name.strip().replace(" ", "_"), gib
