"""A simulated Slurm controller: nodes, jobs, and answers as Slurm's commands print them.

`SimulatedSlurm` is the real Slurm backend on it. So what a supervisor parses is as large as on a
real cluster; only the commands' processes are missing. Each answer takes a while in virtual time,
and so does what its caller has computed since the last one.

Jobs start first come, first served, but for those that cannot start yet, which nobody waits for.
Jobs without GPUs that ask for no node run elsewhere, and always start.
"""

import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from benchmarks._virtual_time import VirtualTime
from coordinate_eval.errors import ClusterError
from coordinate_eval.slurm.client import SlurmClient
from coordinate_eval.slurm.cluster import SlurmCluster
from coordinate_eval.slurm.settings import SlurmSettings

GPUS, CPUS, MEMORY_MIB = 8, 128, 1_000_000
"""Of each node."""

GPU_TYPE = "h200"

SCHEDULING_SECONDS = 1.0
"""From a submission, or the end of a job, until the controller looks what can start."""

KEPT_SECONDS = 300.0
"""Time for which a controller lists jobs that have ended: Slurm's default MinJobAge."""

ANSWER_SECONDS: Mapping[str, float] = {
    "sbatch": 0.1,
    "scancel": 0.1,
    "scontrol": 0.3,
    "squeue": 0.1,
}
"""Time that each command takes beside what its caller computes."""

_NODE = """\
NodeName={name} Arch=x86_64 CoresPerSocket=64
   CPUAlloc={cpus} CPUEfctv={all_cpus} CPUTot={all_cpus} CPULoad=1.22
   AvailableFeatures=(null)
   ActiveFeatures=(null)
   Gres=gpu:{gpu_type}:{all_gpus}(S:0-1)
   GresDrain=N/A
   GresUsed=gpu:{gpu_type}:{gpus}(IDX:0-7)
   NodeAddr=10.0.0.1 NodeHostName={name} Port=6818 Version=24.11.5
   OS=Linux 6.1.0-amd64 #1 SMP PREEMPT_DYNAMIC Debian 6.1.158-1
   RealMemory={all_memory} AllocMem={memory} FreeMem=21313 Sockets=2 Boards=1
   State={state} ThreadsPerCore=1 TmpDisk=0 Weight=1 Owner=N/A MCS_label=N/A
   Partitions=gpu
   BootTime=2026-11-25T20:19:53 SlurmdStartTime=2026-11-26T00:23:39
   LastBusyTime=2026-11-26T00:23:39 ResumeAfterTime=None
   CfgTRES=cpu={all_cpus},mem={all_memory}M,billing={all_cpus}
   AllocTRES=cpu={cpus},mem={memory}M
   CurrentWatts=0 AveWatts=0

"""
"""What `scontrol --details show nodes` of 24.11 prints of a node."""


@dataclass(eq=False)
class Node:
    """A node, and what is free on it."""

    name: str
    gpus: int = GPUS
    cpus: int = CPUS
    memory_mib: int = MEMORY_MIB
    text: str = ""
    """What scontrol prints of it; empty where it has changed."""

    def take(self, task: "Task", sign: int = 1) -> None:
        """Give a task what it asks for, or take it back."""
        self.gpus -= sign * task.gpus
        self.cpus -= sign * task.cpus
        self.memory_mib -= sign * task.memory_mib
        self.text = ""

    def fits(self, task: "Task") -> bool:
        """Return whether a task can start here now."""
        return (
            task.gpus <= self.gpus and task.cpus <= self.cpus and task.memory_mib <= self.memory_mib
        )

    def shown(self) -> str:
        """Return the node as scontrol prints it."""
        if not self.text:
            used = CPUS - self.cpus
            self.text = _NODE.format(
                name=self.name,
                state="MIXED" if used else "IDLE",
                cpus=used,
                all_cpus=CPUS,
                gpu_type=GPU_TYPE,
                gpus=GPUS - self.gpus,
                all_gpus=GPUS,
                memory=MEMORY_MIB - self.memory_mib,
                all_memory=MEMORY_MIB,
            )
        return self.text


@dataclass(eq=False)
class Task:
    """One task of a job."""

    user: str
    job: str
    index: int
    array: bool
    name: str
    gpus: int
    cpus: int
    memory_mib: int
    minutes: int
    wanted: str
    """The node on which it must start; empty for any."""
    avoided: frozenset[str]
    state: str = "PENDING"
    node: str = ""
    began: float = 0.0
    ended: float = 0.0

    @property
    def id(self) -> str:
        """Return the id by which squeue lists it."""
        return f"{self.job}_{self.index}" if self.array else self.job

    @property
    def alive(self) -> bool:
        """Return whether it has not ended."""
        return self.state in ("PENDING", "RUNNING")


@dataclass
class Controller:
    """A cluster's controller."""

    time: VirtualTime
    nodes: dict[str, Node]
    begin: Callable[[Task], None]
    """Called when a task starts."""
    stop: Callable[[Task], None]
    """Called when a task that runs is ended by the controller."""
    calls: list[tuple[float, str, str]] = field(default_factory=list)
    """Each call: when, of which user, and its command."""
    tasks: dict[str, list[Task]] = field(default_factory=dict)
    """By user, those that squeue lists."""
    _gpu_seconds: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    _pending: list[Task] = field(default_factory=list)
    _jobs: int = 0
    _looks: bool = False

    def submit(self, user: str, options: Mapping[str, str]) -> str:
        """Queue a job with these options of sbatch. Return its id."""
        self._jobs += 1
        last = int(options.get("--array", "0-0").partition("-")[2])
        names = options.get("--exclude", "")
        new = [
            Task(
                user=user,
                job=str(self._jobs),
                index=index,
                array="--array" in options,
                name=options["--job-name"],
                gpus=int(options.get("--gres", "gpu:0").rpartition(":")[2]),
                cpus=int(options["--cpus-per-task"]),
                memory_mib=int(options["--mem"].removesuffix("M")),
                minutes=int(options["--time"]),
                wanted=options.get("--nodelist", ""),
                avoided=frozenset(names.split(",")) if names else frozenset(),
            )
            for index in range(last + 1)
        ]
        self.tasks.setdefault(user, []).extend(new)
        self._pending += new
        self._look_soon()
        return str(self._jobs)

    def end(self, task: Task, state: str) -> None:
        """End a task."""
        if not task.alive:
            return
        if task.state == "RUNNING":
            self._gpu_seconds[task.user] += task.gpus * (self.time.now - task.began)
            if task.node in self.nodes:
                self.nodes[task.node].take(task, -1)
        else:
            self._pending.remove(task)
        task.state, task.ended = state, self.time.now
        self._look_soon()

    def kill(self, task: Task, state: str) -> None:
        """End a task, whatever it does: a cancellation, a preemption, a time limit."""
        running = task.state == "RUNNING"
        self.end(task, state)
        if running:
            self.stop(task)

    def cancel(self, user: str, ids: list[str]) -> None:
        """End tasks and whole jobs of a user."""
        wanted = set(ids)
        for task in list(self.tasks.get(user, ())):
            if task.alive and wanted & {task.id, task.job}:
                self.kill(task, "CANCELLED")

    def held_by(self, user: str) -> float:
        """Return the GPU seconds that a user's tasks have had so far."""
        running = [task for task in self.tasks.get(user, ()) if task.state == "RUNNING"]
        now = sum(task.gpus * (self.time.now - task.began) for task in running)
        return self._gpu_seconds[user] + now

    def listed(self, user: str) -> list[Task]:
        """Return the tasks of a user that squeue lists."""
        since = self.time.now - KEPT_SECONDS
        found = [task for task in self.tasks.get(user, ()) if task.alive or task.ended > since]
        self.tasks[user] = found
        return found

    def _look_soon(self) -> None:
        if not self._looks:
            self._looks = True
            self.time.after(SCHEDULING_SECONDS, self._look)

    def _look(self) -> None:
        self._looks = False
        waiting: list[Task] = []
        for task in self._pending:
            node = self._place(task)
            if node is None:
                waiting.append(task)
                continue
            task.node, task.state, task.began = node, "RUNNING", self.time.now
            if node in self.nodes:
                self.nodes[node].take(task)
            self.time.after(task.minutes * 60, lambda task=task: self.kill(task, "TIMEOUT"))  # type: ignore[misc]  # a default of the loop
            self.time.after(0.0, lambda task=task: self.begin(task))  # type: ignore[misc]  # as above
        self._pending = waiting

    def _place(self, task: Task) -> str | None:
        """Return the node on which a task can start now, or None."""
        if task.wanted:
            return task.wanted if self.nodes[task.wanted].fits(task) else None
        if not task.gpus:
            return "cpu1"
        return next(self._fitting(task), None)

    def _fitting(self, task: Task) -> Iterator[str]:
        for name, node in self.nodes.items():
            if node.fits(task) and name not in task.avoided:
                yield name


class SimulatedSlurm(SlurmCluster):
    """Slurm as a `Cluster`, for a user of a simulated controller.

    Args:
        settings: of the site.
        controller: the simulated one.
        user: whose jobs these are.
    """

    def __init__(self, settings: SlurmSettings, controller: Controller, user: str) -> None:
        super().__init__(settings)
        self._made = Client(controller, user)

    @cached_property
    def client(self) -> "Client":
        """Return the commands of the simulated controller."""
        return self._made


class Client(SlurmClient):
    """Slurm's commands for a user of a simulated controller."""

    def __init__(self, controller: Controller, user: str) -> None:
        super().__init__(timeout_seconds=60)
        self._controller, self._user = controller, user
        self._resumed = time.thread_time()
        self.answering_seconds = 0.0
        """CPU seconds in which answers were made, which are not the caller's."""

    def run(
        self,
        command: str,
        *args: str,
        script: str | None = None,  # the jobs' names tell what they run
        environment: Mapping[str, str] | None = None,  # as above
        folder: str = "/",  # as above
        counted: str = "",
    ) -> str:
        """Return what a command prints."""
        self.calls[counted or command] += 1
        # What the caller computed meanwhile took as long.
        computed = max(0.0, time.thread_time() - self._resumed)
        time.sleep(ANSWER_SECONDS[command] + computed)
        begun = time.thread_time()
        self._controller.calls.append((self._controller.time.now, self._user, command))
        answer = self._answer(command, args)
        self._resumed = time.thread_time()
        self.answering_seconds += self._resumed - begun
        return answer

    def _answer(self, command: str, args: tuple[str, ...]) -> str:
        controller = self._controller
        match command, *args:
            case ["squeue", *_]:
                return "".join(
                    f"\x1e{t.id}|{t.state}|{'Resources' if t.state == 'PENDING' else 'None'}"
                    f"|{t.node}|{t.name}\n"
                    for t in controller.listed(self._user)
                )
            case ["sbatch", *_]:
                options = dict(word.split("=", 1) for word in args if "=" in word)
                return controller.submit(self._user, options)
            case ["scancel", *_]:
                controller.cancel(self._user, list(args))
                return ""
            case ["scontrol", *_, "partition"]:
                return "PartitionName=gpu Default=YES OverSubscribe=NO State=UP MaxTime=UNLIMITED\n"
            case ["scontrol", *_, "nodes"]:
                return "".join(node.shown() for node in controller.nodes.values())
        raise ClusterError(f"the simulated controller knows no {command} {args}")


def nodes(count: int) -> dict[str, Node]:
    """Return so many nodes alike, with all of them free."""
    names = [f"gpu{number}" for number in range(1, count + 1)]
    return {name: Node(name) for name in names}
