"""Worlds as jobs: one job a node, which meet in a folder, are told to begin, and say how it went.

A world has failed when one of its jobs has, once all of them were ready; before, only the node of
that job has. A world says nothing if one of its jobs did not run to its end by no fault of its
node: that is busy by now, or the job was cancelled, preempted or refused.
"""

import contextlib
import glob
import itertools
import math
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from coordinate_eval import _files
from coordinate_eval.clusters.protocol import Cluster, End, Job, Node, State, TaskStatus
from coordinate_eval.coordinator.doctor.gather import (
    GATHER_SECONDS,
    START_SECONDS,
    Address,
    Passed,
    World,
    go_file,
    passed_file,
    ready_file,
    stopped_file,
    world_file,
)
from coordinate_eval.coordinator.doctor.in_jobs import HIDDEN_SECONDS, answers_folder, last_words
from coordinate_eval.coordinator.doctor.pairing import Tried
from coordinate_eval.coordinator.inputs.settings import Settings
from coordinate_eval.coordinator.run.jobs import PREFIX, program
from coordinate_eval.errors import ClusterSilent, CoordinateError, SubmitLater

GIB_PER_PROCESS = 4.0
"""Host memory for each GPU: torch, CUDA and NCCL take most of it."""

LATE_SECONDS = 30.0
"""Seconds by which the end of a job may be seen late."""

WORDS_SECONDS = 10.0
"""Seconds after the first failure in a world in which its other jobs may end and say why."""

GONE_SECONDS = 30.0
"""Seconds for cancelled jobs to end, before their folder is removed."""

MARGIN_MINUTES = 2
"""Minutes of a job's time limit beyond what it may take."""

_LINES = 2
"""Lines of a job's log that are shown if it fails: the last one says why."""

_INNOCENT = {End.CANCELLED: "its job was cancelled", End.PREEMPTED: "its job was preempted"}
_AT_ONCE = {
    End.FAILED: "its job failed",
    End.OUT_OF_MEMORY: "its job ran out of memory",
    End.NODE_FAILED: "it went down",
    End.TIME_LIMIT: "its job ran into its time limit",
}
"""Ends after which no answer is awaited, and what to say of them."""


@dataclass(frozen=True)
class Result:
    """A world's outcome."""

    tried: Tried
    why: Mapping[str, str] = field(default_factory=dict)
    """The reason why each node failed or was absent, in words for a person."""
    passed: Passed | None = None
    """The report of its slowest node."""

    @property
    def words(self) -> str:
        """Return why, on one line."""
        if len(self.tried.nodes) == 1:
            return "".join(self.why.values())
        return "; ".join(f"{node}: {words}" for node, words in self.why.items())


@dataclass
class _Member:
    """The job of a node of a world."""

    node: str
    job: Job
    job_id: str
    submitted: float
    running: float | None = None
    """Monotonic seconds at which it was first seen to run."""
    ended: float | None = None
    """Monotonic seconds at which it was first seen to have ended without an answer."""


@dataclass
class _Open:
    """A world that is under way."""

    name: str
    members: list[_Member] = field(default_factory=list)
    begun: float | None = None
    """Monotonic seconds at which its nodes were told to begin."""
    failed: float | None = None
    """Monotonic seconds at which one of its jobs was first seen to have failed after that."""

    @property
    def nodes(self) -> tuple[str, ...]:
        return tuple(each.node for each in self.members)


class Worlds:
    """Runs worlds on a cluster that is open. As a context it leaves no job and no file behind.

    Raises:
        UserError: no folder for the answers can be made in `runs_dir`.
    """

    def __init__(
        self,
        settings: Settings,
        cluster: Cluster,
        nodes: Sequence[Node],
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        self._settings, self._cluster, self._pause = settings, cluster, pause
        self._nodes = {node.name: node for node in nodes}
        self.token = _files.token()
        """A part of the names of all jobs, which no other call has."""
        self._patience = settings.supervisor.patience_seconds
        limits = cluster.limits()
        most = limits.gpu_minutes or settings.trial.max_minutes
        self._minutes = limits.allowed(most, time.time(), gpu_work=True)
        """Longest time limit of a job. In a short one, nodes wait less long for each other."""
        spare = 60.0 * (self._minutes - MARGIN_MINUTES) - START_SECONDS - GATHER_SECONDS
        self._patience = max(0.0, min(self._patience, spare))
        self._submitted: list[str] = []
        self._numbers = itertools.count(1)

    @property
    def names(self) -> list[str]:
        """Return the names of all nodes."""
        return list(self._nodes)

    def __enter__(self) -> Self:
        self._folder = answers_folder(self._settings, self.token)
        return self

    def __exit__(self, *exc_info: object) -> None:
        """End all jobs, and remove their folder when they have."""
        try:
            end = time.monotonic() + GONE_SECONDS
            while (alive := self._alive()) and time.monotonic() < end:
                self._cancel(alive)
                self._pause(min(1.0, self._settings.supervisor.poll_seconds))
        finally:
            shutil.rmtree(self._folder, ignore_errors=True)

    def run(self, worlds: Sequence[tuple[str, ...]]) -> Iterator[Result]:
        """Run worlds, at once as far as Slurm takes their jobs, and yield what comes of each."""
        waiting = list(worlds)
        open_worlds: list[_Open] = []
        while waiting or open_worlds:
            while waiting:
                begun = self._start(waiting[0], last_chance=not open_worlds)
                if begun is None:
                    break
                del waiting[0]
                if isinstance(begun, Result):
                    yield begun
                else:
                    open_worlds.append(begun)
            tasks = self._poll()
            for each in list(open_worlds):
                if results := self._look(each, tasks):
                    open_worlds.remove(each)
                    if not results[0].tried.passed:
                        self._cancel([member.job_id for member in each.members])
                    yield from results
            if open_worlds:
                self._pause(self._settings.supervisor.poll_seconds)

    def _start(self, nodes: tuple[str, ...], *, last_chance: bool) -> "_Open | Result | None":
        """Submit the jobs of a world; None if Slurm takes them when others have ended."""
        name = str(next(self._numbers))
        gpus = tuple(self._nodes[node].free_gpus for node in nodes)
        wait = self._patience + START_SECONDS
        world = World(nodes=nodes, gpus=gpus, wait_seconds=wait)
        _files.write_record(world_file(self._folder, name), world)
        made = _Open(name)
        for node in nodes:
            job = self._job(name, self._nodes[node])
            try:
                job_id = self._cluster.submit(job)
            except CoordinateError as error:
                self._cancel([member.job_id for member in made.members])
                if isinstance(error, SubmitLater) and not last_chance:
                    return None
                return _absent(nodes, {node: str(error)})
            self._submitted.append(job_id)
            made.members.append(_Member(node, job, job_id, time.monotonic()))
        return made

    def _job(self, world: str, node: Node) -> Job:
        """Return the job of a node of a world, which has all of the node's free GPUs."""
        settings, gpus = self._settings, node.free_gpus
        seconds = self._patience + START_SECONDS + GATHER_SECONDS
        key = settings.judge.api_key_env
        return Job(
            name=f"{self._prefix}{world}-{node.name}",
            argv=(*program(sys.executable), "_gather", str(self._folder), world, node.name),
            node=node.name,
            gpus=gpus,
            gpu_type=node.gpu_type,
            cpus=min(node.cpus, gpus),
            memory_mib=math.floor(min(node.memory_gib, GIB_PER_PROCESS * gpus) * 1024),
            minutes=min(math.ceil(seconds / 60) + MARGIN_MINUTES, self._minutes),
            gpu_work=True,
            without=(key,) if key else (),
            folder=str(self._folder),
            log=str(self._folder / f"{world}.{node.name}"),
        )

    @property
    def _prefix(self) -> str:
        return f"{PREFIX}doctor.{self.token}-"

    def _look(self, world: _Open, tasks: Mapping[str, TaskStatus] | None) -> list[Result]:
        """Return what came of a world; nothing while it is open. `tasks` is None in silence."""
        passed = [self._passed(world, member) for member in world.members]
        if all(passed):
            slowest = min(filter(None, passed), key=lambda each: each.bytes_per_second)
            return [Result(Tried(world.nodes, passed=True), passed=slowest)]
        if tasks is None:
            return []
        failed: dict[str, str] = {}
        absent: dict[str, str] = {}
        waits = False
        now = time.monotonic()
        for member, its in zip(world.members, passed, strict=True):
            task = tasks.get(member.job_id)
            if its is not None:
                continue
            if why := self._innocence(world, member, task):
                absent[member.node] = why
            elif why := self._failure(world, member, task):
                failed[member.node] = why
            else:
                ready = member.ended is None and self._ready(world, member) is not None
                waits = waits or not ready
        if world.begun is not None and absent:
            return [_absent(world.nodes, absent)]
        if world.begun is not None and failed:
            world.failed = world.failed or now
            open_jobs = len(world.members) - len(failed) - sum(map(bool, passed))
            if open_jobs and now - world.failed < WORDS_SECONDS:
                return []
            return [Result(Tried(world.nodes, passed=False), failed)]
        if world.begun is None and not waits:
            if not failed and not absent:
                self._begin(world)
            return [_absent((node,), {node: why}) for node, why in absent.items()] + [
                Result(Tried((node,), passed=False), {node: why}) for node, why in failed.items()
            ]
        return []

    def _innocence(self, world: _Open, member: _Member, task: TaskStatus | None) -> str:
        """Return why a job will not run to its end by no fault of its node, or ''."""
        if _files.size(stopped_file(self._folder, world.name, member.node)) >= 0:
            return "its job was told to end: it was preempted, or cancelled"
        if task is None:
            return ""
        if task.state is State.PENDING and time.monotonic() - member.submitted > self._patience:
            reason = task.reason or "no reason given"
            return f"its job has not started in {self._patience:g} s: {reason}"
        return "its job was suspended" if task.suspended else _INNOCENT.get(task.end, "")

    def _failure(self, world: _Open, member: _Member, task: TaskStatus | None) -> str:
        """Return why a job has failed, or ''."""
        now = time.monotonic()
        if task is None or task.state is State.ENDED:
            member.ended = member.ended or now
            end = End.UNKNOWN if task is None else task.end
            if end not in _AT_ONCE and now - member.ended < HIDDEN_SECONDS:
                return ""
            return self._said(member) or _AT_ONCE.get(end, "its job ended without an answer")
        if task.state is State.RUNNING:
            member.running = member.running or now
            if world.begun is not None and now - world.begun > GATHER_SECONDS + LATE_SECONDS:
                return f"it did not end within {GATHER_SECONDS} s"
            late = now - member.running > START_SECONDS + LATE_SECONDS
            if late and self._ready(world, member) is None:
                return f"torch was not loaded within {START_SECONDS} s"
        return ""

    def _begin(self, world: _Open) -> None:
        """Tell the nodes of a world, which are all ready, to begin."""
        first = self._ready(world, world.members[0])
        if first is not None:
            _files.write_record(go_file(self._folder, world.name), first)
            world.begun = time.monotonic()

    def _ready(self, world: _Open, member: _Member) -> Address | None:
        path = ready_file(self._folder, world.name, member.node)
        return _files.read_record_if_there(path, Address)

    def _passed(self, world: _Open, member: _Member) -> Passed | None:
        path = passed_file(self._folder, world.name, member.node)
        return _files.read_record_if_there(path, Passed)

    def _said(self, member: _Member) -> str:
        log = Path(member.job.log)
        logs = sorted(log.parent.glob(f"{glob.escape(log.name)}*.log"))
        return " | ".join(filter(None, (last_words(each, _LINES) for each in logs)))

    def _poll(self) -> dict[str, TaskStatus] | None:
        """Return the tasks of all worlds by the ids of their jobs; None if Slurm is silent."""
        try:
            return {task.job_id: task for task in self._cluster.poll(self._prefix)}
        except ClusterSilent:
            return None
        finally:
            # What jobs wrote before they ended is to be seen now.
            _files.touch(self._folder)

    def _alive(self) -> list[str]:
        """Return the ids of jobs that have not ended: of all, if Slurm does not say."""
        try:
            tasks = self._poll()
        except (CoordinateError, OSError):  # nothing may keep jobs from being cancelled
            tasks = None
        if tasks is None:
            return self._submitted
        return [job_id for job_id, task in tasks.items() if task.state is not State.ENDED]

    def _cancel(self, job_ids: Sequence[str]) -> None:
        with contextlib.suppress(CoordinateError):
            self._cluster.cancel(list(job_ids))


def _absent(nodes: tuple[str, ...], why: Mapping[str, str]) -> Result:
    return Result(Tried(nodes, passed=False, absent=frozenset(why)), why)
