"""Scoring again on a real controller: jobs on CPUs alone, also where they are killed."""

import json
from pathlib import Path

import pytest

from tests.dev_cluster import DevCluster
from tests.runs import Workspace, kill, processes, scores, until
from tests.slurm.runs import FOUR_TASKS


@pytest.fixture(scope="module")
def user(slurm_cluster: DevCluster, tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    return Workspace(tmp_path_factory.mktemp("rescored"))


@pytest.fixture(scope="module")
def finished(user: Workspace) -> Path:
    run = user.submit(user.suite(*FOUR_TASKS), "--run-dir", user.folder / "finished")
    scores(run)
    return run


def test_a_killed_rescoring_ends_with_the_same_scores_and_no_gpu(
    user: Workspace, finished: Path
) -> None:
    root = Path(user.call("rescore", finished).stdout.rstrip("\n"))
    scoring = until(lambda: processes("_score", str(root)), "a scoring job")
    kill(scoring + processes("_supervise", str(root)))
    assert scores(root) == scores(finished)
    found = json.loads((root / "results.json").read_text())
    assert found["rescored"]["changed"] == {}
    submitted = [json.loads(path.read_text())["job"] for path in (root / "jobs").glob("*.json")]
    assert submitted
    assert all(job["gpus"] == 0 for job in submitted)
