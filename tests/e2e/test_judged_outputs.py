"""What people see of a judged dataset, and what another judge says of the same answers."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.judges import Judge, Reply, says
from tests.runs import Workspace, published, scores
from tests.tiny import tiny_model

RUBRIC = """\
prompts: {rating: "Rate from 1 to 10. Q: {{ question }} A: {{ answer }}"}
patterns: '\\[\\[(\\d+)\\]\\]'
scale: [1, 10]
"""
WORDS = "It is <b>fair</b>: [[5]]"


def other(body: dict[str, Any], number: int) -> Reply:
    return says("[[7]]")


@pytest.fixture(scope="module")
def judged(user: Workspace) -> Path:
    """A run whose judge finds every answer fair."""
    suite = user.suite("tiny_talk", "tiny_choice")
    content = yaml.safe_load(suite.read_text())
    content["datasets"][0]["rubric"] = "rubric.yaml"
    suite.write_text(yaml.safe_dump(content))
    (suite.parent / "rubric.yaml").write_text(RUBRIC)
    with Judge(lambda body, number: says(WORDS), models=["judge"]) as server:
        user.call(
            "run", tiny_model(), "--suite", suite, "--run-dir", user.folder / "judged",
            "--judge-url", server.url, "--judge-model", "judge", "--json",
        )  # fmt: skip
    return user.folder / "judged"


def test_samples_have_the_judge_s_words(user: Workspace, judged: Path) -> None:
    shown = user.call("samples", judged, "--dataset", "tiny_talk", "--item", "0").stdout
    assert "score 5" in shown
    assert "\njudge\n" in shown
    assert WORDS in shown
    lines = user.call("samples", judged, "--dataset", "tiny_talk", "--json").stdout.splitlines()
    assert {tuple(json.loads(line)["judge"]) for line in lines} == {(WORDS,)}
    worst = user.call("samples", judged, "--dataset", "tiny_talk", "--wrong")
    assert "the worst first" in worst.stderr
    assert WORDS in worst.stdout


def test_another_judge_rates_the_same_answers(user: Workspace, judged: Path) -> None:
    with Judge(other, models=["other"]) as server:
        user.call(
            "rescore", judged, "--only", "tiny_talk", "--judge-url", server.url,
            "--judge-model", "other", "--json",
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
