"""Random faults, several in one run: the scores are the same, each response counts once.

`make test` runs two schedules and `make test-long` many; `FAULT_SEEDS="1 2 3"` chooses them. A
fault comes whenever so much has happened in the run's directory, so a slow machine meets the same
ones.
"""

import os
import random
import subprocess
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.dev_cluster import DevCluster
from tests.random_examples import FACTOR
from tests.runs import Workspace, processes, scores, times_answered, until
from tests.slurm.test_runs import SLOW, TASKS, all_gone, queue

SEEDS = [int(seed) for seed in os.environ.get("FAULT_SEEDS", "").split()] or [
    *range(1, 1 + 2 * FACTOR)
]
pytestmark = pytest.mark.random
JOBS = ("_trial", "_trial", "_keep", "_metric", "_score", "_supervise")
NODES = ("node1", "node2", "node3", "node4")
MOST = 4
"""Faults a run: a span on which five owners died is left alone."""


class Faults:
    """The faults of one run."""

    def __init__(self, cluster: DevCluster, run: Path, dice: random.Random) -> None:
        self.cluster, self.run, self.dice = cluster, run, dice
        self.done: list[str] = []

    def one(self) -> None:
        """Cause a random fault."""
        kinds: list[Callable[[], str]] = [self.kill, self.kill, self.kill]
        kinds += [self.cancel, self.requeue, self.node, self.controller]
        self.done.append(self.dice.choice(kinds)())

    def kill(self) -> str:
        """Kill a process of one kind of job."""
        job = self.dice.choice(JOBS)
        pids = processes(job, str(self.run))
        if pids:
            pid = self.dice.choice(pids)
            subprocess.run(["kill", "-9", str(pid)], check=False, stderr=subprocess.DEVNULL)
        return f"kill {job} of {len(pids)}"

    def cancel(self) -> str:
        """Cancel a job, but not the supervisor's: that is a user's wish."""
        return self._scheduler("scancel")

    def requeue(self) -> str:
        """Requeue a job, as Slurm does after a preemption."""
        return self._scheduler("scontrol", "requeue")

    def _scheduler(self, *argv: str) -> str:
        tasks = [line.split() for line in queue() if "super" not in line]
        if not tasks:
            return "nothing to " + argv[-1]
        task = self.dice.choice(tasks)
        subprocess.run([*argv, task[0]], check=False, capture_output=True)
        return f"{argv[-1]} {task[1]}"

    def node(self) -> str:
        """Kill a node's daemon and start it again."""
        name = self.dice.choice(NODES)
        self.cluster.kill_node(name)
        self.cluster.start_node(name)
        return f"restart {name}"

    def controller(self) -> str:
        """Stop the controller and start it again."""
        self.cluster.stop_controller()
        self.cluster.start_controller()
        return "restart the controller"


@pytest.fixture(scope="module")
def user(slurm_cluster: DevCluster, tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    made = Workspace(tmp_path_factory.mktemp("faults"))
    # Several of each kind, so that they meet.
    made.environ |= {"COORDINATE_EVAL_BUILD_JOBS": "2", "COORDINATE_EVAL_SCORING_JOBS": "2"}
    return made


@pytest.fixture(scope="module")
def expected(user: Workspace) -> dict[str, Any]:
    """Scores of an undisturbed run."""
    return scores(user.submit(user.suite(*TASKS), "--max-gpus", 4))


@pytest.mark.parametrize("seed", SEEDS)
def test_faults_change_no_score(
    slurm_cluster: DevCluster, user: Workspace, expected: dict[str, Any], seed: int
) -> None:
    dice = random.Random(seed)
    run = user.submit(
        user.suite(*TASKS), *SLOW, "--max-gpus", dice.choice([1, 2, 3, 6]),
        "--run-dir", user.folder / f"run {seed}",
    )  # fmt: skip
    faults = Faults(slurm_cluster, run, dice)
    due = happened(run)
    while len(faults.done) < MOST:
        due += dice.randint(2, 20)
        until(partial(so_far, run, due), f"more, after {faults.done}")
        if over(run):
            break
        faults.one()
    assert scores(run) == expected, faults.done
    assert set(times_answered(run).values()) == {1}
    all_gone(user)


def happened(run: Path) -> int:
    """Return the number of the run's files."""
    return sum(len(files) for _, _, files in os.walk(run))


def so_far(run: Path, count: int) -> bool:
    """Return whether the run has so many files, or is over."""
    return over(run) or happened(run) >= count


def over(run: Path) -> bool:
    """Return whether the run has results."""
    return (run / "results.json").exists()
