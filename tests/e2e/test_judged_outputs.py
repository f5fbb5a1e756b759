"""A judge that comes and goes, what people see of its words, and what another judge says."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.judges import Judge, Reply, says
from tests.runs import Workspace, lasting_port, published, results, scores
from tests.tiny import tiny_model

RUBRIC = """\
prompts: {rating: "Rate from 1 to 10. Q: {{ question }} A: {{ answer }}"}
patterns: '\\[\\[(\\d+)\\]\\]'
scale: [1, 10]
"""
KEY = "sk-a-secret-of-the-judge"
WORDS = "It is <b>fair</b>: [[5]]"


def other(body: dict[str, Any], number: int) -> Reply:
    return says("[[7]]")


def files_with(run: Path, text: str) -> list[Path]:
    files = [path for path in run.rglob("*") if path.is_file()]
    return [path for path in files if text.encode() in path.read_bytes()]


@pytest.fixture(scope="module")
def away(user: Workspace) -> Path:
    """A run whose judge was away."""
    suite = user.suite("tiny_talk", "tiny_choice")
    content = yaml.safe_load(suite.read_text())
    content["datasets"][0]["rubric"] = "rubric.yaml"
    suite.write_text(yaml.safe_dump(content))
    (suite.parent / "rubric.yaml").write_text(RUBRIC)
    user.call(
        "run", tiny_model(), "--suite", suite, "--run-dir", user.folder / "judged",
        "--judge-url", f"http://127.0.0.1:{lasting_port()}/v1", "--judge-model", "judge",
        status=1,
        COORDINATE_EVAL_SUPERVISOR_PATIENCE_SECONDS="20",
        COORDINATE_EVAL_JUDGE_API_KEY_ENV="JUDGE_KEY", JUDGE_KEY=KEY,
    )  # fmt: skip
    return user.folder / "judged"


@pytest.fixture(scope="module")
def judged(user: Workspace, away: Path) -> Path:
    """The same run, whose judge is somewhere else now, and finds every answer fair."""
    ended = results(away)
    assert list(ended["missing"]) == ["tiny_talk"]
    why = ended["missing"]["tiny_talk"]
    assert "waits for its judge: connection refused at http://127.0.0.1" in why
    assert "coordinate-eval resume" in why
    refused = user.call("resume", away, status=2)
    assert "JUDGE_KEY" in refused.stderr, "the key is not in this shell"
    with Judge(lambda body, number: says(WORDS), models=["judge"], key=KEY) as server:
        user.call("resume", away, "--judge-url", server.url, "--json", JUDGE_KEY=KEY)
    assert scores(away)["tiny_choice"] == ended["results"]["tiny_choice"]
    assert files_with(away, KEY) == []
    return away


def test_a_run_whose_judge_is_away_goes_on_with_one_that_has_moved(judged: Path) -> None:
    assert scores(judged)["tiny_talk"]["score,none"] == 5


def test_samples_have_the_judge_s_words(user: Workspace, judged: Path) -> None:
    lines = user.call("samples", judged, "--dataset", "tiny_talk", "--json").stdout.splitlines()
    assert {tuple(json.loads(line)["judge"]) for line in lines} == {(WORDS,)}
    worst = user.call("samples", judged, "--dataset", "tiny_talk", "--wrong")
    assert "the worst first" in worst.stderr
    assert "score 5" in worst.stdout
    assert "\njudge\n" in worst.stdout
    assert WORDS in worst.stdout


def test_another_judge_rates_the_same_answers(user: Workspace, judged: Path) -> None:
    with Judge(other, models=["other"]) as server:
        user.call(
            "rescore", judged, "--only", "tiny_talk", "--judge-url", server.url,
            "--judge-model", "other", "--json", JUDGE_KEY=KEY,
        )  # fmt: skip
    name = json.loads((judged / "run.json").read_text())["id"]
    again = judged.with_name(f"{name}-rescored-1")
    found = json.loads((again / "results.json").read_text())
    assert scores(again)["tiny_talk"]["score,none"] == 7
    assert found["judge"]["tiny_talk"]["model"] == "other"
    assert found["rescored"]["changed"]["tiny_talk"]["tiny_talk"]["score,none"] == {
        "before": 5.0, "now": 7.0,
    }  # fmt: skip
    assert "judge by rubric" in found["rescored"]["judges"]["tiny_talk"]
    assert "its judges differ" in user.call("status", again).stdout
    assert not (again / "trials").exists()
    answers = (judged / "outputs" / "tiny_talk").glob("*.jsonl")
    assert [path.name for path in published(again)] == sorted(path.name for path in answers)
    refused = user.call(
        "samples", judged, "--dataset", "tiny_talk", "--diff", again, status=2
    ).stderr
    assert "its judges differ" in refused
