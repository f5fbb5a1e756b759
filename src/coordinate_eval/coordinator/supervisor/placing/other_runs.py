"""One run among the user's others: it reads their promises, and writes its own.

Promises are files of one folder in `runs_dir`. A run writes its own promise before it reads the
others a second time: if two runs choose the same nodes at once, at least one sees the other. Runs
that give way leave the first nodes to the older runs next time. Otherwise, of a hundred runs that
start at once, ninety-nine would meet again, and only one would go on at each look.
"""

import contextlib
import os
from collections.abc import Sequence
from pathlib import Path

from coordinate_eval import _files, _owner
from coordinate_eval._clock import Clock
from coordinate_eval.clusters.protocol import Busy, Cluster, Job, Node, State
from coordinate_eval.coordinator.incidents.bad_nodes import read_avoided, suspected_nodes
from coordinate_eval.coordinator.planning.places.asked_nodes import without_avoided
from coordinate_eval.coordinator.planning.plan import NodeCapacity
from coordinate_eval.coordinator.run import jobs
from coordinate_eval.coordinator.run.paths import RunDir
from coordinate_eval.coordinator.run.records import RoundNode, Run, Submitted, Waiting
from coordinate_eval.coordinator.run.rounds import read_rounds
from coordinate_eval.coordinator.supervisor.placing import promises
from coordinate_eval.coordinator.supervisor.placing.promises import (
    NoRoom,
    Others,
    Promise,
    PromisedNode,
)
from coordinate_eval.errors import ForeignError, RecordError

FRESH_SECONDS = 120.0
"""A run that looked for nodes so long ago lives, even if it has no job in the queue."""

FORGOTTEN_SECONDS = 86_400.0
"""Promises of runs that have ended, and looked for nodes last so long ago, are removed."""


class Overtaken(NoRoom):
    """Another run chose the same nodes at the same time. One of them goes on at the next look."""


class OtherRuns:
    """The user's other runs on this scheduler, for the supervisor of one run.

    On this machine (`cluster.local`) there are none, and nothing is limited.
    """

    def __init__(self, run_dir: RunDir, run: Run, cluster: Cluster, clock: Clock) -> None:
        self._dir, self._run, self._cluster, self._clock = run_dir, run, cluster, clock
        self._prefix = jobs.prefix(run)
        self._file = promise_file(run)
        self._alone = cluster.local
        self._seen = Others()
        self._standing: frozenset[str] = frozenset()
        """Nodes that this run chose at the same time as a younger one, which leaves them to it."""
        self._missed = 0
        """Nodes that this run chose last, and left to another one."""

    def available(self, run: Run) -> tuple[list[Node], list[Busy]]:
        """Return the nodes of the cluster less what other runs and earlier rounds were promised.

        `run` has its plan, as soon as there is one. If this one has met other runs when it chose,
        the nodes come first that they leave to it, and those last that older runs will choose.
        """
        self._run = run
        nodes, busy = self._cluster.nodes()
        if self._alone:
            return nodes, busy
        settings = run.settings
        now = self._clock.now()
        nodes, busy = without_avoided(
            nodes,
            busy,
            settings,
            read_avoided(settings, now),
            suspected_nodes(self._dir, now),
            run.gpu_type if run.planned else "",
        )
        self._seen = self._look()
        nodes, busy = promises.beside(nodes, busy, self._seen)
        mine = self._run.created, self._prefix
        older = sum(each.waiting and each.age < mine for each in self._seen.promises)
        first = older * self._missed % max(1, len(nodes))
        nodes = nodes[first:] + nodes[:first]
        nodes.sort(key=lambda node: node.name not in self._standing)
        self._standing = frozenset()
        return nodes, busy

    def gpus_left(self) -> int | None:
        """Return the GPUs that the limit leaves beside the runs of the last look; None for any."""
        return promises.gpus_left(self._run.settings.limits.gpus, self._seen)

    def within(self, chosen: Sequence[NodeCapacity], gpus_per_trial: int) -> list[NodeCapacity]:
        """Return as many of the chosen nodes and of their trials as the limits leave room for.

        Raises:
            NoRoom: they leave none now.
            UserError: the limits never leave room for a trial.
        """
        if self._alone:
            return list(chosen)
        most = self._run.settings.limits.gpus
        return promises.within(chosen, gpus_per_trial, self.gpus_left(), most)

    def take(self, run: Run, number: int, nodes: Sequence[RoundNode]) -> None:
        """Tell the other runs which nodes this one asks for in a round.

        Raises:
            Overtaken: another one has chosen some of them at the same time.
        """
        if not self._alone:
            self._run = run
            new = [PromisedNode(**node.model_dump(), round=number) for node in nodes]
            begun = self._mine(waiting=False)
            mine = begun.model_copy(update={"nodes": new})
            self._tell(mine.model_copy(update={"nodes": [*begun.nodes, *new]}))
            other = promises.overtaken_by(mine, self._seen, self._look())
            if other is not None:
                # The older one's choice stands until it looks again, so that one of them goes on.
                if mine.age < other.age:
                    self._standing = frozenset(name for node in nodes for name in node.names)
                else:
                    self._missed = len(nodes)
                    self._tell(begun)
                raise Overtaken(f"your run {other.run} chose nodes at the same time")
        self._missed = 0
        self._dir.waiting.unlink(missing_ok=True)

    def withdraw(self) -> None:
        """Tell the other runs that this one asks for no more than it has begun."""
        self._standing = frozenset()
        if not self._alone:
            self._tell(self._mine(waiting=False))

    def wait(self, why: str) -> None:
        """Note why the run gets no nodes now, for people and for the user's other runs."""
        self._note(why)
        if not self._alone and not self._standing:
            self._tell(self._mine(waiting=True))

    def has_room(self, job: Job) -> bool:
        """Return whether the limit on GPUs leaves room for the job of a judge; if not, note it.

        Nodes that were chosen need no such look: `within` has counted their jobs.
        """
        most, beginning = self._run.settings.limits.gpus, "your runs have limits."
        if self._alone or most is None or not job.gpus:
            return True
        self._seen = self._look()
        if job.gpus > (self.gpus_left() or 0):
            self._note(f"{beginning}gpus = {most} GPUs")
            return False
        known = _files.read_record_if_there(self._dir.waiting, Waiting)
        if known is not None and known.why.startswith(beginning):
            self._dir.waiting.unlink(missing_ok=True)
        return True

    def leave(self) -> None:
        """Keep no promise: the run has ended."""
        with contextlib.suppress(OSError):
            self._file.unlink(missing_ok=True)
        self._dir.waiting.unlink(missing_ok=True)

    def _note(self, why: str) -> None:
        known = _files.read_record_if_there(self._dir.waiting, Waiting)
        if known is None or known.why != why:
            _files.write_record(self._dir.waiting, Waiting(why=why, since=self._clock.now()))

    def _tell(self, mine: Promise) -> None:
        """Write this run's promise. Where that fails, another run may choose the same nodes."""
        with contextlib.suppress(OSError, ForeignError):
            _files.own_folder(self._file.parent)
            _files.write_record(self._file, mine)

    def _mine(self, *, waiting: bool) -> Promise:
        """Return the promise of the rounds that this run has begun."""
        nodes = [
            PromisedNode(**node.model_dump(), round=begun.number)
            for begun in read_rounds(self._dir)
            for node in begun.nodes
        ]
        root, now = str(self._dir.root), self._clock.now()
        return promises.make_promise(self._run, root, now, nodes, waiting=waiting)

    def _look(self) -> Others:
        """Return the user's runs that live, this one with the rounds that it has begun."""
        found = [(path, each) for path, each in self._promises() if each.prefix != self._prefix]
        mine = self._mine(waiting=False)
        # Before the poll: a job that is submitted, and that the scheduler does not have, has ended.
        submitted = {each.prefix: _submitted(each) for each in (mine, *(p for _, p in found))}
        tasks = [t for t in self._cluster.poll(jobs.PREFIX) if t.state is not State.ENDED]
        now, living = self._clock.now(), [mine]
        for path, each in found:
            quiet = now - each.looked
            if quiet < FRESH_SECONDS or any(t.name.startswith(each.prefix) for t in tasks):
                living.append(each)
            elif quiet > FORGOTTEN_SECONDS:
                with contextlib.suppress(OSError):
                    path.unlink()
        alive = {task.name for task in tasks}
        trials = {
            name: job
            for each in living
            for node in each.nodes
            for name in jobs.node_names(each.prefix, node.round, node.name)[1:]
            if name in alive and (job := _job(each, name)) is not None
        }
        return Others(living, tasks, submitted, trials)

    def _promises(self) -> list[tuple[Path, Promise]]:
        """Return the promises in their folder that can be read, with their files."""
        found = []
        with contextlib.suppress(OSError, ForeignError):
            _owner.check_folder(self._file.parent)
            for path in _files.records_in(self._file.parent):
                with contextlib.suppress(OSError, RecordError):
                    promise = _files.read_record_if_there(path, Promise)
                    if promise is not None:
                        found.append((path, promise))
        return found


def _submitted(promise: Promise) -> frozenset[str]:
    """Return the names of the jobs that a run has submitted; none where it cannot be read now.

    What was promised then counts until it can be.
    """
    with contextlib.suppress(OSError):
        folder = RunDir(Path(promise.root)).jobs_folder
        return frozenset(path.stem for path in _files.records_in(folder))
    return frozenset()


def _job(promise: Promise, name: str) -> Job | None:
    """Return a job as a run submitted it; None where that cannot be read."""
    with contextlib.suppress(OSError, RecordError):
        path = RunDir(Path(promise.root)).job(name)
        record = _files.read_record_if_there(path, Submitted)
        return None if record is None else record.job
    return None


def promise_file(run: Run) -> Path:
    """Return the path of a run's promise."""
    home = Path(run.settings.runs_dir).expanduser()
    return home / f".nodes-{os.geteuid()}" / f"{run.id[:100]}.{run.nonce}.json"
