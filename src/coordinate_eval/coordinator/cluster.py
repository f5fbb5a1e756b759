"""What a cluster is to the supervisor: nodes, jobs, and nothing of any scheduler's own.

A `Job` is the same on every cluster: an argv that starts one of this program's own jobs. Names
are unique per submission, so that one whose answer was lost is found by `poll` before it is
tried again.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Protocol

from pydantic import Field

from coordinate_eval.records import Record

INDEX_VARIABLE = "COORDINATE_EVAL_INDEX"
"""Environment variable in which a job of several tasks finds which of them it is, from 0."""

TASK_VARIABLE = "COORDINATE_EVAL_TASK"
"""Environment variable with the task's scheduler id and restart count, as `123_4.0`."""

STARTED_VARIABLE = "COORDINATE_EVAL_STARTED"
"""Environment variable with the second since the epoch in which a job began."""


ENDS_WITH_PARENT: Mapping[str, str] = {"COORDINATE_EVAL_ENDS_WITH_PARENT": "1"}
"""Environment of a child that is to end when its parent does, however that ends."""


class Node(Record):
    """A node on which trials can start, with what is free on it now."""

    name: str
    gpus: int = Field(description="installed")
    free_gpus: int
    gpu_type: str
    gpu_memory_gib: float = 0.0
    cpus: int = Field(description="free")
    memory_gib: float = Field(description="free to be allocated")


class Busy(Record):
    """A node that cannot take a trial now, and why, in words for a person."""

    name: str
    why: str


class Job(Record):
    """One submission: `count` tasks of the same argv."""

    name: str
    argv: tuple[str, ...]
    node: str | None = Field(default=None, description="pinned to this node")
    count: int = 1
    gpus: int = Field(default=0, description="per task")
    gpu_type: str = ""
    cpus: int = Field(default=1, description="per task")
    memory_mib: int = Field(default=1024, description="per task")
    minutes: int
    requeue: bool = Field(default=False, description="start again by itself after a lost node")
    gpu_work: bool = Field(default=False, description="needs the GPU partition, even without GPUs")
    log: str = Field(description="absolute path without suffix; a task adds its id and '.log'")


class State(StrEnum):
    """What the scheduler says of a task."""

    PENDING = "pending"
    RUNNING = "running"
    ENDED = "ended"


class TaskStatus(Record):
    """One task of a job as last polled."""

    name: str = Field(description="the job's")
    job_id: str
    index: int = 0
    state: State
    reason: str = ""
    node: str = ""


class Cluster(Protocol):
    """A scheduler. Every method raises `ClusterSilent` when there is no answer."""

    @property
    def calls(self) -> Mapping[str, int]:
        """How often each command of the scheduler was run so far."""
        ...

    def nodes(self) -> tuple[list[Node], list[Busy]]:
        """Nodes on which a trial can start, and the others with the reason."""
        ...

    def submit(self, job: Job) -> str:
        """Submit and return the job id.

        Raises:
            SubmitRefused: with the scheduler's words.
            ClusterSilent: no answer; the job may or may not exist, look it up by name.
        """
        ...

    def poll(self, prefix: str) -> list[TaskStatus]:
        """Every task the scheduler still knows whose job name starts with `prefix`.

        A task that is absent from an answer has ended.
        """
        ...

    def cancel(self, job_ids: list[str]) -> None:
        """End jobs (`123`) or single tasks of them (`123_4`); unknown ones are no error."""
        ...
