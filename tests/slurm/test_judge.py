"""Judged datasets on a real controller, with a judge that comes and goes."""

from pathlib import Path

import pytest
import yaml

from tests.dev_cluster import DevCluster
from tests.judges import RATING_RUBRIC, Judge, rate
from tests.runs import (
    Workspace,
    lasting_port,
    results,
    scores,
    until,
)
from tests.slurm.runs import FOUR_TASKS

KEY = "sk-a-secret-of-the-judge"


@pytest.fixture(scope="module")
def user(slurm_cluster: DevCluster, tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    return Workspace(tmp_path_factory.mktemp("judged"))


@pytest.fixture(scope="module")
def suite(user: Workspace) -> Path:
    """A conversation that a judge rates, beside another dataset."""
    path = user.suite(FOUR_TASKS[0], "tiny_talk")
    content = yaml.safe_load(path.read_text())
    content["datasets"][1]["rubric"] = "rubric.yaml"
    path.write_text(yaml.safe_dump(content))
    (path.parent / "rubric.yaml").write_text(RATING_RUBRIC)
    return path


def submit(user: Workspace, suite: Path, url: str, name: str, **environ: str) -> Path:
    return user.submit(
        suite, "--max-gpus", 1, "--run-dir", user.folder / name,
        "--judge-url", url, "--judge-model", "judge",
        COORDINATE_EVAL_JUDGE_CONCURRENCY="2",
        COORDINATE_EVAL_JUDGE_API_KEY_ENV="JUDGE_KEY",
        JUDGE_KEY=KEY,
        **environ,
    )  # fmt: skip


def files_with(run: Path, text: str) -> list[Path]:
    files = [path for path in run.rglob("*") if path.is_file()]
    return [path for path in files if text.encode() in path.read_bytes()]


def test_a_run_whose_judge_is_away_goes_on_with_one_that_has_moved(
    user: Workspace, suite: Path
) -> None:
    patience = {"COORDINATE_EVAL_SUPERVISOR_PATIENCE_SECONDS": "30"}
    gone = f"http://127.0.0.1:{lasting_port()}/v1"
    run = submit(user, suite, gone, "moved", **patience)
    ended = results(run)
    assert list(ended["missing"]) == ["tiny_talk"]
    why = ended["missing"]["tiny_talk"]
    assert "waits for its judge: connection refused at http://127.0.0.1" in why
    assert "coordinate-eval resume" in why
    before = ended["results"][FOUR_TASKS[0]]
    refused = user.call("resume", run, status=2)
    assert "JUDGE_KEY" in refused.stderr, "the key is not in this shell"
    with Judge(rate, models=["judge"], key=KEY) as server:
        user.call("resume", run, "--judge-url", server.url, JUDGE_KEY=KEY)
        until(lambda: results(run)["complete"], "all results, in place of the incomplete ones")
        found = scores(run)
        assert found[FOUR_TASKS[0]] == before
        assert 1 <= found["tiny_talk"]["score,none"] <= 10
        assert files_with(run, KEY) == []
        again = submit(user, suite, "http://127.0.0.1:9/v1", "rerun")
        assert scores(again) == found, "what a judge has said is not asked again"
