"""Trials in trouble, on a real controller: they cost time, and nothing but what causes it."""

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.dev_cluster import DevCluster
from tests.runs import Workspace, processes, published, results, scores, until
from tests.slurm.test_runs import SLOW, TASKS, all_gone


@pytest.fixture(scope="module")
def user(slurm_cluster: DevCluster, tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    return Workspace(tmp_path_factory.mktemp("troubles"))


@pytest.fixture(scope="module")
def expected(user: Workspace) -> dict[str, Any]:
    """Scores of an undisturbed run."""
    found = scores(user.submit(user.suite(*TASKS), "--max-gpus", 2))
    all_gone(user)
    return found


def test_a_trial_that_hangs_is_ended_and_others_take_its_shards(
    user: Workspace, expected: dict[str, Any]
) -> None:
    run = user.submit(
        user.suite(*TASKS), *SLOW, "--max-gpus", 2, "--run-dir", user.folder / "hangs",
        COORDINATE_EVAL_TRIAL_HANG_MINUTES="0.4",
        COORDINATE_EVAL_TRIAL_HANG_FACTOR="1",
    )  # fmt: skip
    until(lambda: published(run), "the first shard")
    stopped = processes("_trial", str(run))[0]
    os.kill(stopped, signal.SIGSTOP)
    found = scores(run)
    assert found == expected
    hung = [json.loads(path.read_text())["how"] for path in (run / "troubles").glob("*.json")]
    assert "hung" in hung
    all_gone(user)
    assert not Path(f"/proc/{stopped}").exists()


def test_an_item_that_ends_engines_costs_only_its_own_dataset(
    user: Workspace, expected: dict[str, Any]
) -> None:
    run = user.submit(
        user.suite(*TASKS), "--engine-args", '{"fail_at": ["tiny_sums:7"]}', "--max-gpus", 2,
        "--run-dir", user.folder / "bad item",
    )  # fmt: skip
    found = results(run)
    assert "item 7: engines die at it" in found["missing"].pop("tiny_sums")
    assert found["missing"] == {}
    assert found["results"] == {k: v for k, v in expected.items() if not k.startswith("tiny_sums")}
    all_gone(user)
