"""A run in a partition of low priority, while jobs of another partition have all GPUs."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.dev_cluster import DevCluster
from tests.runs import Workspace, scores, until
from tests.slurm.runs import FOUR_TASKS, Undisturbed, all_gone, queue

PATIENCE = 3.0


def urgent(*args: str) -> str:
    """Submit a job of the high partition that takes all GPUs of a node; return its id."""
    resources = ("-p", "high", "--gres=gpu:h200:8", "--mem=100", "-c1", "-t", "60")
    command = ("sbatch", "--parsable", "-J", "urgent", *resources, "-o", "/dev/null", *args)
    done = subprocess.run(
        [*command, "--wrap", "sleep 36000"], capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


@pytest.fixture
def busy(slurm_cluster: DevCluster) -> Iterator[list[str]]:
    """Jobs of the high partition that have all GPUs."""
    ids = [urgent("-w", f"node{number}") for number in range(1, 5)]
    try:
        running = "urgent RUNNING"
        until(lambda: sum(running in line for line in queue()) == len(ids), "their start")
        yield ids
    finally:
        subprocess.run(["scancel", *ids], check=True)


def reasons(what: str) -> dict[str, str]:
    """Return Slurm's reasons of the tasks with this in their name, by id."""
    answer = subprocess.run(
        ["squeue", "-h", "-r", "-o", "%i|%j|%r"], capture_output=True, text=True, check=True
    )
    lines = (line.split("|", 2) for line in answer.stdout.splitlines())
    return {task: reason for task, name, reason in lines if what in name}


def test_its_trials_keep_their_place_until_the_others_are_over(
    undisturbed: Undisturbed, busy: list[str], tmp_path: Path
) -> None:
    user = Workspace(tmp_path).with_prompts(undisturbed.requests)
    run = user.submit(
        user.suite(*FOUR_TASKS), "--partition", "low", "--queue", "--max-gpus", 2,
        COORDINATE_EVAL_SUPERVISOR_PATIENCE_SECONDS=str(PATIENCE),
    )  # fmt: skip
    until(lambda: reasons("-trial"), "trials in the queue", run)
    busy.append(urgent())
    said = until(
        lambda: {
            task: reason for task, reason in reasons("-trial").items() if "higher prio" in reason
        },
        "Slurm's words",
        run,
    )
    looked = run / "supervisor"  # the supervisor touches it at each poll
    since = looked.stat().st_mtime
    # However often the supervisor looks, it cancels nothing.
    until(lambda: looked.stat().st_mtime > since + 3 * PATIENCE, "its patience to end", run)
    assert reasons("-trial").keys() == said.keys()
    shown = user.call("status", run).stdout
    assert "other jobs come first, as always in a partition of low priority" in " ".join(
        shown.split()
    )
    assert f"{len(said)} waiting\n" in shown
    subprocess.run(["scancel", *busy], check=True)
    assert scores(run)
    assert not (run / "rounds" / "1.json").exists()
    all_gone(user)
