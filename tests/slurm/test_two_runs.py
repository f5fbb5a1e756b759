"""Several runs of a user on a real controller: they share its nodes, and keep the limits."""

import json
import subprocess
from pathlib import Path

import pytest

from tests.runs import Workspace, scores, until
from tests.slurm.runs import Undisturbed, queue


def nodes_of(run: Path) -> set[str]:
    """The nodes of the first round, once it is planned."""
    first = run / "rounds" / "0.json"
    until(first.exists, f"the plan of {run}")
    return {node["name"] for node in json.loads(first.read_text())["nodes"]}


@pytest.fixture
def user(undisturbed: Undisturbed, tmp_path: Path) -> Workspace:
    return Workspace(tmp_path).with_prompts(undisturbed.requests)


def test_two_runs_at_once_take_different_nodes(user: Workspace, tmp_path: Path) -> None:
    pause = user.pause("both")
    where = ("--max-nodes", 1, "--max-gpus", 8, *pause.args)
    runs = [user.submit(user.suite(task), *where) for task in ("tiny_choice", "tiny_cloze")]
    first, second = (nodes_of(run) for run in runs)
    assert first.isdisjoint(second)
    pause.end()
    assert all(scores(run) for run in runs)
    until(lambda: not list((tmp_path / "runs").glob(".nodes-*/*.json")), "no promise to be kept")


def test_a_run_waits_for_the_limit_of_its_user_and_says_so(user: Workspace, tmp_path: Path) -> None:
    # The user's only GPU is that of an earlier run's trial.
    held = subprocess.run(
        ["sbatch", "--parsable", "-J", "ce-earlier.000000-trial0-node4", "--gres=gpu:h200:1",
         "--mem=100", "-w", "node4", "-o", tmp_path / "held", "--wrap", "sleep 36000"],
        capture_output=True, text=True, check=True,
    ).stdout.strip()  # fmt: skip
    try:
        until(lambda: any(held in line and "RUNNING" in line for line in queue()), "that trial")
        run = user.submit(user.suite("tiny_choice"), COORDINATE_EVAL_LIMITS_GPUS="1")
        until((run / "waiting.json").exists, "it to wait")
        assert "limits.gpus = 1" in user.call("status", run, status=None).stdout
        assert not (run / "rounds" / "0.json").exists()
    finally:
        subprocess.run(["scancel", held], check=True)
    assert scores(run)
    assert not (run / "waiting.json").exists()
