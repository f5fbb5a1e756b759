"""The room that a user's other runs leave, by their promises and by the limits.

A run that has chosen nodes asks for them a little later, and its jobs may wait there for a while.
The scheduler counts none of that. So each run keeps a `Promise`, and the others leave that room.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from pydantic import Field

from coordinate_eval.clusters.protocol import Busy, Job, Node, State, TaskStatus
from coordinate_eval.coordinator.planning.plan import NodeCapacity
from coordinate_eval.coordinator.run import jobs
from coordinate_eval.coordinator.run.claiming.pullers import Pullers
from coordinate_eval.coordinator.run.records import RoundNode, Run
from coordinate_eval.errors import UserError
from coordinate_eval.records import Record


class NoRoom(Exception):
    """The user's other runs leave no room now; waiting helps. The text says why."""


class PromisedNode(RoundNode):
    """A node that a run has chosen in one of its rounds."""

    round: int


class Promise(Record):
    """The nodes that a run has chosen, and whether it looks for some."""

    run: str = Field(description="id of the run")
    prefix: str = Field(description="with which the names of its jobs begin")
    root: str = Field(description="its run directory")
    created: float = Field(description="time of the run, in seconds since the epoch")
    looked: float = Field(description="when it looked for nodes last")
    waiting: bool = Field(description="it looks for nodes")
    gpus: int = Field(description="of one trial, on each of its nodes")
    judge_gpus: int = Field(default=0, description="of the job in which a checkpoint judges")
    cpus: int = Field(description="of one trial, on each of its nodes")
    memory_gib: float = Field(description="of one trial, on each of its nodes")
    keeper_gib: float = Field(description="of the keeper on each node")
    nodes_per_trial: int = 1
    exclusive: bool = Field(default=False, description="its jobs take whole nodes")
    nodes: list[PromisedNode] = Field(description="of all of its rounds")

    @property
    def age(self) -> tuple[float, str]:
        """Return a key that orders runs, the oldest first."""
        return self.created, self.prefix


@dataclass(frozen=True)
class Others:
    """The user's runs that have not ended, as one of them sees them, and all of their living jobs.

    The rounds that the looking run has begun count as well. `submitted` has, by the prefix of each
    run, the names of the jobs that it has submitted so far. `trials` has the living jobs of trials
    by name, as they were submitted.
    """

    promises: Sequence[Promise] = ()
    tasks: Sequence[TaskStatus] = ()
    submitted: Mapping[str, frozenset[str]] = field(default_factory=dict)
    trials: Mapping[str, Job] = field(default_factory=dict)

    def gpus_of_task(self, promise: Promise, node: PromisedNode, name: str) -> int:
        """Return the GPUs of one task of a node's trials: as submitted, else as promised."""
        if name in self.trials:
            return self.trials[name].gpus
        return promise.gpus * (node.trials if promise.exclusive else 1)


class _Held(NamedTuple):
    """A run's promised part of a node, which the scheduler does not count as used yet."""

    run: str
    node: str
    gpus: int
    asked: tuple[tuple[int, float], ...] = ()
    """Cores and GiB that each of its jobs asks for."""
    exclusive: bool = False


def make_promise(
    run: Run, root: str, now: float, nodes: Sequence[PromisedNode], *, waiting: bool
) -> Promise:
    """Return the promise of a run with these nodes."""
    trial = run.settings.trial
    return Promise(
        run=run.id,
        prefix=jobs.prefix(run),
        root=root,
        created=run.created,
        looked=now,
        waiting=waiting,
        gpus=run.tensor_parallel,
        judge_gpus=run.judge_place.gpus if run.settings.judge.checkpoint else 0,
        cpus=trial.cpus * run.tensor_parallel,
        memory_gib=trial.memory_gib * run.tensor_parallel,
        keeper_gib=jobs.keeper_gib(run),
        nodes_per_trial=run.nodes_per_trial,
        exclusive=run.exclusive,
        nodes=list(nodes),
    )


def beside(
    nodes: Sequence[Node], busy: Sequence[Busy], others: Others
) -> tuple[list[Node], list[Busy]]:
    """Return the nodes with what other runs leave of them, and those with nothing left as busy."""
    on: dict[str, list[_Held]] = {}
    for each in _held(others):
        on.setdefault(each.node, []).append(each)
    free, taken = [], list(busy)
    for node in nodes:
        held = on.get(node.name, [])
        gpus = node.free_gpus - sum(each.gpus for each in held)
        if held and (gpus <= 0 or any(each.exclusive for each in held)):
            who = ", ".join(sorted({each.run for each in held}))
            taken.append(node.busy(f"promised to your run {who}"))
            continue
        asked = [job for each in held for job in each.asked]
        update = {
            "free_gpus": gpus,
            "cpus": max(0, node.cpus - sum(node.cpus_of(*job) for job in asked)),
            "memory_gib": max(0.0, node.memory_gib - sum(gib for _, gib in asked)),
        }
        free.append(node.model_copy(update=update) if held else node)
    return free, taken


def gpus_left(most: int | None, others: Others) -> int | None:
    """Return how many GPUs the limit leaves beside all that the runs hold; None for any number."""
    if most is None:
        return None
    of_task = {
        name: others.gpus_of_task(promise, node, name) * promise.nodes_per_trial
        for promise in others.promises
        for node in promise.nodes
        for name in jobs.node_names(promise.prefix, node.round, node.name)[1:]
    }
    gpus = sum(each.gpus for each in _held(others))
    for task in others.tasks:
        if task.state is State.RUNNING:
            gpus += of_task.get(task.name, 0)
            gpus += sum(
                each.judge_gpus
                for each in others.promises
                if task.name.startswith(f"{each.prefix}{Pullers.JUDGE}")
            )
    return max(0, most - gpus)


def within(
    chosen: Sequence[NodeCapacity], gpus_per_trial: int, left: int | None, most: int | None
) -> list[NodeCapacity]:
    """Return as many of the chosen nodes and trials as the limit on GPUs leaves room for.

    Args:
        left: GPUs that the limit leaves this run.
        most: the limit.

    Raises:
        NoRoom: the limit leaves no room now.
        UserError: the limit leaves no room even to a run that is alone.
    """
    if left is None or not gpus_per_trial:
        return list(chosen)
    if most is not None and most < gpus_per_trial:
        raise UserError(
            f"limits.gpus is {most}, and one trial of this model needs {gpus_per_trial} GPUs: set "
            "it higher"
        )
    trials = left // gpus_per_trial
    kept = []
    for node in chosen:
        if trials < 1:
            break
        kept.append(node.model_copy(update={"trials": min(node.trials, trials)}))
        trials -= kept[-1].trials
    if not kept:
        raise NoRoom(f"your other runs use all of limits.gpus = {most}")
    return kept


def overtaken_by(mine: Promise, before: Others, now: Others) -> Promise | None:
    """Return a run that has chosen one of this run's nodes since the last look, if any."""
    known = {(each.prefix, n.round, n.name) for each in before.promises for n in each.nodes}
    names = {name for node in mine.nodes if not node.anywhere for name in node.names}
    for each in now.promises:
        chosen = {
            name
            for node in each.nodes
            if (each.prefix, node.round, node.name) not in known
            for name in node.names
        }
        if each.prefix != mine.prefix and chosen & names:
            return each
    return None


def _held(others: Others) -> list[_Held]:
    """Return what each run was promised on each node."""
    alive: dict[str, list[State]] = {}
    for task in others.tasks:
        states = alive.setdefault(task.name, [])
        if not task.held:  # it takes nothing until somebody releases it
            states.append(task.state)
    found = []
    for promise in others.promises:
        submitted = others.submitted.get(promise.prefix, frozenset())
        for node in promise.nodes:
            keeper, trials = jobs.node_names(promise.prefix, node.round, node.name)
            no_keeper = keeper not in submitted and keeper not in alive
            # Trials that are not in the queue yet follow a keeper that has not ended.
            ahead = trials not in submitted and trials not in alive
            ahead = ahead and (no_keeper or keeper in alive)
            tasks = 1 if promise.exclusive else node.trials
            count = tasks if ahead else alive.get(trials, []).count(State.PENDING)
            job = others.trials.get(trials)
            one = (promise.cpus, promise.memory_gib)
            if job is not None:
                one = (job.cpus, job.memory_mib / 1024)
            keeps = (ahead and no_keeper) or State.PENDING in alive.get(keeper, [])
            for name in node.names if count or keeps else ():
                found.append(
                    _Held(
                        promise.run,
                        name,
                        gpus=count * others.gpus_of_task(promise, node, trials),
                        asked=(
                            *[one] * count,
                            *[(node.keeper_cpus, promise.keeper_gib)] * keeps,
                        ),
                        exclusive=promise.exclusive,
                    )
                )
    return found
