"""Several runs of a user on a real controller: they share its nodes, and keep the limits."""

import json
from pathlib import Path

import pytest

from tests.runs import Workspace, scores, until
from tests.slurm.runs import Undisturbed


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
