"""The methods of every cluster, and the values that pass through them.

A `Job` is the same on every cluster: an argv that starts one of this program's own jobs. Each
submission has a name of its own. If the answer to a submission is lost, `poll` finds the job by
its name before it is submitted again.

To add a scheduler, write a subclass of `Cluster` and add it to `coordinator/inputs/clusters.py`.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from enum import StrEnum
from typing import NamedTuple, Self

from pydantic import Field

from coordinate_eval.clusters.containers import WITHOUT_SLURM, Container, contained
from coordinate_eval.records import Record

INDEX_VARIABLE = "COORDINATE_EVAL_INDEX"
"""Environment variable with the index of a task within its job, from 0."""

TASK_VARIABLE = "COORDINATE_EVAL_TASK"
"""Environment variable with the task's scheduler id and restart count, as `123_4.0`."""

NODE_VARIABLE = "COORDINATE_EVAL_NODE"
"""Environment variable with the name that the scheduler has for the node of a task."""

RANK_VARIABLE = "COORDINATE_EVAL_RANK"
"""Environment variable of the processes of a task on several nodes. It has the names of the two
variables with a process's node, and with its place among them."""

LOG_VARIABLE = "COORDINATE_EVAL_LOG"
"""Environment variable with the path of a task's log, where its output is a pipe."""

STARTED_VARIABLE = "COORDINATE_EVAL_STARTED"
"""Environment variable with the time at which a job began, in seconds since the epoch."""

OF_TRAINING = ("COORDINATE_EVAL_RESUME_FROM", "COORDINATE_EVAL_SKIP", "COORDINATE_EVAL_ATTEMPT")
"""Environment variables of a guarded training: the checkpoint to begin from, the steps whose data
is not read again, and the number of the attempt."""

ENDS_WITH_PARENT: Mapping[str, str] = {"COORDINATE_EVAL_ENDS_WITH_PARENT": "1"}
"""Environment of a child process that ends when its parent ends, even if that is killed."""


MOST_CPUS, MOST_GPUS = 100_000, 1024
"""Upper limits for one node, and for one setting. No node has this many."""


class Node(Record):
    """A node on which trials can start, with its free resources."""

    name: str
    gpus: int = Field(description="installed")
    free_gpus: int
    gpu_type: str
    gpu_memory_gib: float = 0.0
    cpus: int = Field(description="free")
    memory_gib: float = Field(description="free to be allocated")
    cpus_per_core: int = Field(default=1, ge=1, description="all of a core's CPUs go to one job")
    gib_per_cpu: float = Field(
        default=0.0, ge=0, description="a job with more memory gets more CPUs; 0 without a limit"
    )

    def cpus_of(self, cpus: int, memory_gib: float) -> int:
        """Return the CPUs that a job takes here which asks for these CPUs and this memory."""
        if self.gib_per_cpu:
            cpus = max(cpus, math.ceil(memory_gib / self.gib_per_cpu))
        return math.ceil(cpus / self.cpus_per_core) * self.cpus_per_core

    def busy(self, why: str) -> "Busy":
        """Return this node as one that cannot take a trial now, with the GPUs that it has."""
        known = self.model_dump(include={"name", "gpus", "gpu_type", "gpu_memory_gib"})
        return Busy(why=why, **known)


LEAST_BEFORE_WINDOW_MINUTES = 10
"""Less time than this before a window is not used: jobs wait until it is over."""

_MARGIN_MINUTES = 1.0
_MARGIN_SHARE = 0.05
# Between the submission of a job and its start the time before a window grows shorter.


class Window(Record):
    """A time from which on others have all nodes of some jobs, such as a maintenance."""

    start: float = Field(description="in seconds since the epoch")
    why: str = Field(description="what it is and how long it takes, in words for a person")

    def minutes_before(self, now: float) -> int | None:
        """Return the longest time limit of a job that starts about `now` and ends before.

        None where that is too short for any work, or the window has begun: it cuts no job then.
        """
        left = (self.start - now) / 60
        most = int(left * (1 - _MARGIN_SHARE) - _MARGIN_MINUTES)
        return most if most >= LEAST_BEFORE_WINDOW_MINUTES else None


class JobLimits(Record):
    """The scheduler's limits on how long jobs run, if there are any.

    Each time has what sets it, in words for a person. `until` is in seconds since the epoch. What
    does not end before a window is done after it, while nothing is done after `until`.
    """

    gpu_minutes: int | None = Field(
        default=None, description="longest time limit of jobs in the GPU partition"
    )
    gpu_why: str = ""
    cpu_minutes: int | None = Field(default=None, description="longest time limit of all others")
    cpu_why: str = ""
    until: float | None = Field(default=None, description="when all jobs have to end")
    until_why: str = ""
    gpu_window: Window | None = Field(
        default=None, description="the next one of all nodes in the GPU partition"
    )
    cpu_window: Window | None = Field(
        default=None, description="the next one of all nodes where all others run"
    )

    def bounds(self, now: float, *, gpu_work: bool) -> Iterator[tuple[int, str]]:
        """Yield the limits in minutes of a job that starts about `now`, and what sets each."""
        minutes, why = self.cpu_minutes, self.cpu_why
        if gpu_work:
            minutes, why = self.gpu_minutes, self.gpu_why
        if minutes is not None:
            yield minutes, why
        window = self.window(gpu_work=gpu_work)
        if window is not None and (before := window.minutes_before(now)) is not None:
            yield before, window.why

    def allowed(self, minutes: int, now: float, *, gpu_work: bool) -> int:
        """Return a time limit in minutes, shortened to what a job may have that starts `now`."""
        return min([minutes, *(most for most, _ in self.bounds(now, gpu_work=gpu_work))])

    def window(self, *, gpu_work: bool) -> Window | None:
        """Return the window of these jobs."""
        return self.gpu_window if gpu_work else self.cpu_window


class Busy(Record):
    """A node that cannot take a trial now."""

    name: str
    why: str = Field(description="in words for a person")
    excluded: bool = Field(
        default=False, description="the settings exclude it, so that waiting does not help"
    )
    away: bool = Field(
        default=False, description="down or drained: it comes back when somebody has mended it"
    )
    gpus: int = Field(default=0, description="installed, as far as it is known")
    gpu_type: str = ""
    gpu_memory_gib: float = 0.0


class Job(Record):
    """One submission: `count` tasks of the same argv."""

    name: str
    argv: tuple[str, ...]
    node: str | None = Field(
        default=None, description="pinned to this node, or to nodes with commas between them"
    )
    nodes: int = Field(
        default=1, description="of each task, whose argv runs once on each of them at the same time"
    )
    avoid: tuple[str, ...] = Field(default=(), description="nodes on which it must not start")
    count: int = 1
    gpus: int = Field(default=0, description="per task, on each of its nodes")
    gpu_type: str = ""
    cpus: int = Field(default=1, description="per task, on each of its nodes")
    memory_mib: int = Field(default=1024, description="per task, on each of its nodes")
    minutes: int
    requeue: bool = Field(
        default=False, description="the scheduler starts it again after a node failure"
    )
    submits: bool = Field(
        default=False, description="asks the scheduler itself, and so may keep what proves the user"
    )
    gpu_work: bool = Field(
        default=False, description="runs in the GPU partition, even without GPUs"
    )
    needs: tuple[str, ...] = Field(
        default=(), description="environment variables that it gets beside those of all jobs"
    )
    without: tuple[str, ...] = Field(
        default=(), description="environment variables that it does not get: secrets of others"
    )
    container: Container | None = Field(
        default=None, description="in which each task runs; none, on the node itself"
    )
    folder: str = Field(default="/", description="working directory, which is there already")
    log: str = Field(description="absolute path, to which a task adds its id and '.log'")

    @property
    def command(self) -> tuple[str, ...]:
        """Return what a node without Slurm starts for a task: `argv`, in its container if any.

        Raises:
            UserError: the container's runtime cannot express a path.
        """
        return self.started_by(WITHOUT_SLURM if self.container else ())

    def started_by(self, launcher: tuple[str, ...]) -> tuple[str, ...]:
        """Return `command` where this launcher starts a process on each node of a task."""
        if self.container is None:
            return (*launcher, *self.argv)
        return contained(
            self.argv,
            self.container,
            gpus=self.gpus,
            gpu_type=self.gpu_type,
            cpus=self.cpus,
            folder=self.folder,
            launcher=launcher,
        )

    @property
    def in_gpu_partition(self) -> bool:
        """Return whether it runs in the GPU partition."""
        return self.gpu_work or self.gpus > 0


class ShownJob(NamedTuple):
    """A submission in the form in which a person reads it."""

    name: str
    command: str
    """The command that submits it, on one line."""
    script: str | None
    """The batch script on the command's standard input, if there is one."""
    text: str
    """Command and script together, to be pasted into a shell."""


class State(StrEnum):
    """The state of a task according to the scheduler."""

    PENDING = "pending"
    RUNNING = "running"
    ENDED = "ended"


class End(StrEnum):
    """A task's end, as the scheduler reports it."""

    COMPLETED = "completed"
    FAILED = "failed"
    OUT_OF_MEMORY = "out of memory"
    NODE_FAILED = "node failed"
    PREEMPTED = "preempted"
    TIME_LIMIT = "time limit"
    CANCELLED = "cancelled"
    COMPLETING = "completing"
    """The scheduler has been ending it for minutes, and does not say why."""
    UNKNOWN = "unknown"


class Hold(StrEnum):
    """The reason why a pending task is held: it starts only when somebody releases it."""

    NONE = ""
    ADMIN = "by an administrator"
    USER = "by hand"
    LAUNCH = "after its launch failed"


class Waits(StrEnum):
    """The thing that a pending task waits for."""

    NOTHING = ""
    TURN = "its turn"
    """Others come first, or have what it needs."""
    JOB_LIMIT = "a limit on how many jobs run at once"
    CLUSTER = "the cluster"
    """A state of the cluster passes by itself, or when those who look after it say so."""
    NODE = "a node"
    """A node that it may start on takes no jobs."""
    PERSON = "a person"
    """It never starts unless somebody changes something."""


class TaskStatus(Record):
    """One task of a job when it was last polled."""

    name: str = Field(description="of the job")
    job_id: str
    index: int = 0
    state: State
    end: End = Field(default=End.UNKNOWN, description="how it ended, if it has")
    suspended: bool = Field(default=False, description="it runs, and was stopped for a while")
    completing: bool = Field(default=False, description="it runs, and the scheduler is ending it")
    reason: str = ""
    waits: Waits = Waits.NOTHING
    means: str = Field(default="", description="what the reason means, in words for a person")
    cure: str = Field(default="", description="what a person does so that it starts")
    held: Hold = Hold.NONE
    node: str = ""

    @property
    def in_turn(self) -> bool:
        """Return whether it is pending, and starts without anybody's help."""
        return self.waits not in (Waits.NOTHING, Waits.PERSON) and not self.held

    @property
    def never_starts(self) -> bool:
        """Return whether it is pending until something is changed, and nobody holds it."""
        return self.waits is Waits.PERSON and not self.held

    @property
    def ids(self) -> set[str]:
        """Return the ids by which processes may name the task: its own in an array, its job's."""
        return {self.job_id, f"{self.job_id}_{self.index}"}


class Cluster(ABC):
    """A scheduler with the settings of a site.

    Making one asks nothing and starts nothing: `name`, `local`, `here` and `shown` work at once.
    Enter it as a context manager before calling any other method. Those methods raise
    `ClusterSilent` if the scheduler does not answer.
    """

    name: str
    """The name in the setting `cluster`, and in `run.json`."""

    local: bool = False
    """True if jobs belong to the process that submitted them.

    They end with that process, and no other process can ask about them or cancel them. The
    process therefore supervises the run itself, and may poll often.
    """

    def __enter__(self) -> Self:
        """Do what is needed before the scheduler is asked: nothing here."""
        return self

    def __exit__(self, *exc_info: object) -> None:  # noqa: B027 - mostly nothing is left
        """Leave the scheduler. Jobs go on unless it is local."""

    @property
    def calls(self) -> Mapping[str, int]:
        """Count the calls so far, by command of the scheduler."""
        return {}

    def here(self) -> bool:
        """Return whether this machine belongs to such a cluster, reachable or not."""
        return True

    @abstractmethod
    def shown(self, job: Job) -> ShownJob:
        """Return the submission of `job` for a person to read. Runs no command.

        Raises:
            UserError: the settings cannot be part of a submission.
        """

    @abstractmethod
    def about(self) -> Mapping[str, str]:
        """Return what the scheduler says of itself and of the queues of the settings, for a person.

        Raises:
            UserError: the settings name something that the cluster does not have.
        """

    @abstractmethod
    def nodes(self) -> tuple[list[Node], list[Busy]]:
        """Return the nodes on which a trial can start, and the others with the reason.

        Raises:
            UserError: the settings name something that the cluster does not have.
        """

    def whole_nodes(self) -> bool:
        """Return whether each job with GPUs gets a whole node to itself.

        Raises:
            UserError: each does, and the settings leave no place for jobs that need only cores.
        """
        return False

    def limits(self) -> JobLimits:
        """Return how long jobs with these settings may run: as long as they want, here.

        Raises:
            UserError: the settings name something that the cluster does not have.
        """
        return JobLimits()

    @abstractmethod
    def submit(self, job: Job) -> str:
        """Submit `job` and return its id.

        Raises:
            SubmitRefused: the scheduler refused; the message holds its words.
            ClusterSilent: no answer. The job may or may not exist: look it up by its name.
        """

    @abstractmethod
    def poll(self, prefix: str) -> list[TaskStatus]:
        """Return every task that the scheduler still knows and whose job name has this prefix.

        A task that is absent from an answer has ended.
        """

    @abstractmethod
    def cancel(self, job_ids: list[str]) -> None:
        """End jobs (`123`) or single tasks of them (`123_4`). Ids that are unknown are ignored."""
