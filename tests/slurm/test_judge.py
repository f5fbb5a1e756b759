"""Judged datasets on a real controller, with a judge that comes and goes."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.dev_cluster import DevCluster
from tests.judges import RATING_RUBRIC, Judge, Reply, rate
from tests.runs import (
    Workspace,
    kill,
    lasting_port,
    processes,
    published,
    results,
    scores,
    until,
)
from tests.slurm.runs import FOUR_TASKS

KEY = "sk-a-secret-of-the-judge"


def rate_three(body: dict[str, Any], number: int) -> Reply:
    """Answer the test question and three others, and then none for days."""
    reply = rate(body, number)
    reply.after_seconds = 0.0 if number < 4 else 1e6
    return reply


@pytest.fixture(scope="module")
def user(slurm_cluster: DevCluster, tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    return Workspace(tmp_path_factory.mktemp("judged"))


@pytest.fixture(autouse=True)
def nothing_kept(user: Workspace) -> Iterator[None]:
    """The judge has answered nothing yet."""
    yield
    for folder in (user.folder / "cache").glob("judged-*"):
        shutil.rmtree(folder)


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


def kept(user: Workspace) -> list[Path]:
    """Return the answers that are kept for later runs."""
    folders = (user.folder / "cache").glob("judged-*")
    return [path for folder in folders for path in folder.rglob("*.json")]


@pytest.fixture(scope="module")
def undisturbed(user: Workspace, suite: Path) -> tuple[dict[str, Any], int]:
    """Scores with a judge that is always there, and the number of its questions."""
    with Judge(rate, models=["judge"], key=KEY) as server:
        run = submit(user, suite, server.url, "undisturbed")
        found = scores(run)
        assert 1 <= found["tiny_talk"]["score,none"] <= 10
        assert files_with(run, KEY) == []
        asked = len(server.asked)
    for folder in (user.folder / "cache").glob("judged-*"):
        shutil.rmtree(folder)
    return found, asked


def test_a_judge_that_is_killed_and_comes_back_changes_no_score(
    user: Workspace, suite: Path, undisturbed: tuple[dict[str, Any], int]
) -> None:
    expected, questions = undisturbed
    with Judge(rate_three, models=["judge"], key=KEY, port=lasting_port()) as first:
        run = submit(user, suite, first.url, "killed")
        # Two at once: when the last one is asked, three answers have come. They are kept then.
        until(lambda: len(first.asked) == 6 and len(kept(user)) == 3, "some questions and answers")
    kill(processes("_judge", str(run)))
    answered = len(published(run, "answers"))
    with Judge(rate, models=["judge"], key=KEY, port=first.port) as second:
        assert scores(run) == expected
    assert answered == 0, "the judge was lost in the middle of a portion"
    assert len(first.asked) + len(second.asked) <= questions + 2, "only what was in flight"


def test_a_run_whose_judge_is_away_goes_on_with_one_that_has_moved(
    user: Workspace, suite: Path, undisturbed: tuple[dict[str, Any], int]
) -> None:
    expected, _ = undisturbed
    patience = {"COORDINATE_EVAL_SUPERVISOR_PATIENCE_SECONDS": "30"}
    gone = f"http://127.0.0.1:{lasting_port()}/v1"
    run = submit(user, suite, gone, "moved", **patience)
    ended = results(run)
    assert list(ended["missing"]) == ["tiny_talk"]
    why = ended["missing"]["tiny_talk"]
    assert "waits for its judge: connection refused at http://127.0.0.1" in why
    assert "coordinate-eval resume" in why
    assert ended["results"][FOUR_TASKS[0]] == expected[FOUR_TASKS[0]]
    refused = user.call("resume", run, status=2)
    assert "JUDGE_KEY" in refused.stderr, "the key is not in this shell"
    with Judge(rate, models=["judge"], key=KEY) as server:
        user.call("resume", run, "--judge-url", server.url, JUDGE_KEY=KEY)
        until(lambda: results(run)["complete"], "all results, in place of the incomplete ones")
        assert scores(run) == expected
        assert files_with(run, KEY) == []
        again = submit(user, suite, "http://127.0.0.1:9/v1", "rerun")
        assert scores(again) == expected, "what a judge has said is not asked again"
