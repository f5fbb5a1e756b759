"""Trials that Slurm kills while they are suspended leave nothing in their node's memory."""

import os
import signal
import subprocess
from pathlib import Path

import pytest

from tests.runs import Workspace, processes, trials, until
from tests.slurm.runs import Undisturbed, all_gone, queue


@pytest.fixture
def user(undisturbed: Undisturbed, tmp_path: Path) -> Workspace:
    return Workspace(tmp_path).with_prompts(undisturbed.requests)


def test_weights_of_killed_trials_are_removed_at_the_end_of_the_run(user: Workspace) -> None:
    pause = user.pause("trials")
    run = user.submit(user.suite("tiny_choice"), *pause.args, "--nodes", "node1", "--max-gpus", 1)
    until(lambda: [trial.state for trial in trials(run)] == ["running"], "a trial")
    [keeper] = processes("_keep", str(run))
    os.kill(keeper, signal.SIGUSR1)
    until(lambda: not processes("_keep", str(run)), "no keeper")
    assert list(user.memory.iterdir())  # for the trials
    for task in queue():
        if "-trial0-" in task:
            subprocess.run(["scontrol", "suspend", task.split()[0]], check=True)
    user.call("cancel", run)
    all_gone(user)
    assert list((run / "logs").glob("*-sweep-node1*"))
