"""A simulated cluster with the runs of its users, in virtual time: see `_simulated_runs.py`."""

import os
import re
import tempfile
import time
from pathlib import Path

from tests.plans import CHECKPOINT

from benchmarks._controller import Controller, Node, SimulatedSlurm, Task
from benchmarks._instances import played
from benchmarks._simulated_runs import SimulatedRun, index_of
from benchmarks._virtual_time import VirtualTime
from coordinate_eval import _files
from coordinate_eval.coordinator.inputs.settings import Settings
from coordinate_eval.coordinator.inputs.suites import suite
from coordinate_eval.coordinator.planning.new_run import Inputs, new_run
from coordinate_eval.coordinator.run import jobs
from coordinate_eval.coordinator.run.starting.create import create, start_supervisor
from coordinate_eval.records import Suite

_MEMORY = "/dev/shm"  # noqa: S108  # a folder that only the user can enter is made in it

_NAME = re.compile(r"(?P<prefix>ce-.+?\.[^.]+?-)(?P<kind>[a-z]+)(?P<number>\d+)(?:-(?P<node>.+))?")


def folder() -> tempfile.TemporaryDirectory[str]:
    """Return a folder for run directories: in memory, where nothing waits for a disk, if it can."""
    return tempfile.TemporaryDirectory(dir=_MEMORY if os.access(_MEMORY, os.W_OK) else None)


def datasets(count: int | None = None) -> Suite:
    """Return the base suite without what needs a judge or a compiler, or so many datasets of it."""
    base, names = suite.load("base"), played()
    mine = [dataset for dataset in base.datasets if dataset.name in names]
    return base.model_copy(update={"datasets": mine[:count]})


class Site:
    """A simulated cluster with its users' runs.

    Args:
        clock: in which everything happens.
        folder: for run directories, observations and caches.
        nodes: of the cluster.
    """

    def __init__(self, clock: VirtualTime, folder: Path, nodes: dict[str, Node]) -> None:
        self.clock, self._folder = clock, folder
        self.controller = Controller(clock, nodes, self._begin, self._stop)
        self.runs: dict[str, SimulatedRun] = {}
        """By the prefix of their jobs."""

    def settings(self, user: str, **more: object) -> Settings:
        """Return a user's settings."""
        home = self._folder / user
        folders = {name: str(home / name) for name in ("runs_dir", "cache_dir", "priors_dir")}
        return Settings.model_validate({"cluster": "slurm", **folders, **more})

    def ask(
        self, user: str, name: str, what: Suite, settings: Settings, spread: float, seed: int
    ) -> SimulatedRun:
        """Ask for the scores of a checkpoint, whose prompts are built. Return its run."""
        checkpoint = CHECKPOINT.model_copy(update={"path": f"/ckpt/{name}", "identity": name})
        cluster = SimulatedSlurm(settings.slurm, self.controller, user)
        made = new_run(Inputs(checkpoint, what, settings), "slurm", time.time(), exclusive=False)
        run_dir = create(Path(settings.runs_dir) / made.id, made)
        for dataset in what.datasets:
            _files.write_record(run_dir.requests_index(dataset.name), index_of(dataset))
        run = SimulatedRun(self.controller, run_dir, made, cluster, spread, seed)
        self.runs[jobs.prefix(made)] = run

        def submit() -> None:
            start_supervisor(run_dir, made, cluster)

        self.clock.process(submit)
        return run

    def _begin(self, task: Task) -> None:
        """Do what a task does that starts; nothing for those of others."""
        name = _NAME.fullmatch(task.name)
        if name is not None and name["prefix"] in self.runs:
            self.runs[name["prefix"]].begin(task, name["kind"], int(name["number"]), name["node"])

    def _stop(self, task: Task) -> None:
        name = _NAME.fullmatch(task.name)
        if name is not None and name["prefix"] in self.runs:
            self.runs[name["prefix"]].stop(task)
