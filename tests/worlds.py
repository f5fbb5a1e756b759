"""A scheduler whose jobs, each in a world of nodes, fare as their nodes do."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from coordinate_eval import _files
from coordinate_eval.clusters.protocol import End, Job, Node, State, TaskStatus
from coordinate_eval.coordinator.doctor.gather import (
    Address,
    Passed,
    World,
    go_file,
    passed_file,
    ready_file,
    stopped_file,
    world_file,
)
from coordinate_eval.coordinator.inputs.settings import Settings
from coordinate_eval.errors import SubmitLater, SubmitRefused
from tests.plans import changed
from tests.reviewer import FakeCluster


def node(name: str, **changes: Any) -> Node:
    """A free node of eight GPUs."""
    values = {"gpus": 8, "free_gpus": 8, "gpu_type": "h200", "cpus": 64, "memory_gib": 500}
    return Node.model_validate({"name": name} | values | changes, extra="forbid")


class Jobs(FakeCluster):
    """A scheduler whose jobs fare as their nodes do.

    A node "passes"; "fails" with whoever is in its world, also alone; is "cut off", and fails with
    others only; "dies" before it is ready; "waits" in the queue; is "preempted" or "suspended" when
    its world has begun; ends "silently" there; or is "refused".
    """

    def __init__(self, fates: Mapping[str, str]) -> None:
        super().__init__()
        self.fates = dict(fates)
        self.free = [node(name) for name in fates]
        self.jobs: dict[str, Job] = {}
        self.states: dict[str, TaskStatus] = {}
        self.cancelled: list[str] = []
        self.most = 1000
        """Jobs that it takes at once."""

    def submit(self, job: Job) -> str:
        name = job.node or ""
        if self.fates[name] == "refused":
            raise SubmitRefused("no such account")
        if len(self.alive()) >= self.most:
            raise SubmitLater("job submit limit")
        job_id = str(len(self.jobs) + 1)
        self.jobs[job_id] = job
        state = State.PENDING if self.fates[name] == "waits" else State.RUNNING
        self.states[job_id] = TaskStatus(name=job.name, job_id=job_id, state=state, reason="Held")
        if self.fates[name] == "dies":
            Path(f"{job.log}.{job_id}.log").write_text("some warning\nOSError: libcudart.so.12\n")
            self.end(job_id, End.FAILED)
        elif state is State.RUNNING:
            _files.write_record(ready_file(*of(job)), Address(host=name, port=7))
        return job_id

    def alive(self) -> list[str]:
        return [each for each, task in self.states.items() if task.state is not State.ENDED]

    def end(self, job_id: str, end: End) -> None:
        self.states[job_id] = changed(self.states[job_id], state=State.ENDED, end=end)

    def poll(self, prefix: str) -> list[TaskStatus]:
        for job_id in self.alive():
            folder, world, _ = of(self.jobs[job_id])
            if go_file(folder, world).exists():
                its = _files.read_record(world_file(folder, world), World)
                self.go_on(job_id, [self.fates[each] for each in its.nodes])
        return [task for task in self.states.values() if task.name.startswith(prefix)]

    def go_on(self, job_id: str, fates: list[str]) -> None:
        place = of(self.jobs[job_id])
        fate = self.fates[place[2]]
        if "preempted" in fates:
            if fate == "preempted":
                stopped_file(*place).touch()
            self.end(job_id, End.COMPLETED if fate == "preempted" else End.FAILED)
        elif fate == "suspended":
            self.states[job_id] = changed(self.states[job_id], suspended=True)
        elif "fails" in fates or ("cut off" in fates and len(fates) > 1):
            self.end(job_id, End.FAILED)
        else:
            if fate != "silently":
                said = Passed(backend="nccl", processes=8 * len(fates), bytes_per_second=4e10)
                _files.write_record(passed_file(*place), said)
            self.end(job_id, End.COMPLETED)

    def cancel(self, job_ids: list[str]) -> None:
        self.cancelled += job_ids
        for job_id in job_ids:
            if job_id in self.alive():
                self.end(job_id, End.CANCELLED)


def of(job: Job) -> tuple[Path, str, str]:
    """Folder, world and node of a job."""
    folder, world, name = job.argv[-3:]
    return Path(folder), world, name


def impatient(folder: Path) -> Settings:
    """Settings of a doctor that asks again at once, and waits for no silent scheduler."""
    return Settings.model_validate({
        "runs_dir": str(folder / "runs"),
        "cache_dir": str(folder / "cache"),
        "supervisor": {"patience_seconds": 1e-9, "poll_seconds": 1e-9},
    })  # fmt: skip
