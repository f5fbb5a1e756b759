"""The rubrics that the documentation shows: each works as it stands there."""

import json
import re
from pathlib import Path

import pytest
from tests.judged_datasets import Judged

pytest.importorskip("lm_eval")

from coordinate_eval.coordinator.inputs.suites import suite
from coordinate_eval.records import DatasetResults, Question

PAGE = Path(__file__).parents[2] / "docs" / "judges.md"
DOCUMENTS = [{"number": n, "question": f"Q{n}?", "topic": "ab"[n % 2]} for n in range(4)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The suite of the page, with its rubrics and a task."""
    section = PAGE.read_text().split("## A rubric of your own")[1].split("\n## ")[0]
    task, brief, better, listed = re.findall(r"```yaml\n(.*?)```", section, re.DOTALL)
    (tmp_path / "brief.yaml").write_text(brief)
    (tmp_path / "better.yaml").write_text(better)
    (tmp_path / "suite.yaml").write_text(listed)
    (tmp_path / "tasks").mkdir()
    data = tmp_path / "data.jsonl"
    data.write_text("".join(json.dumps(document) + "\n" for document in DOCUMENTS))
    text = task.replace("/data/questions.jsonl", str(data))
    (tmp_path / "tasks" / "our_questions.yaml").write_text(text)
    return tmp_path


def _judged(folder: Path, name: str, words: dict[str, str]) -> tuple[list[str], DatasetResults]:
    """Return what the judge is asked, and the results. It says the words of what it reads."""
    made = suite.load(str(folder / "suite.yaml"))
    dataset = next(each for each in made.datasets if each.name == name)
    lines = [json.dumps({"id": str(n), "answers": ["old"]}) + "\n" for n in range(4)]
    (folder / f"{name}.jsonl").write_text("".join(lines))
    judged = Judged(dataset, made.include_path, folder, texts=["new"])

    def judge(question: Question, _: int) -> str:
        text = json.loads(question.content)["messages"][-1]["content"]
        return next(said for part, said in words.items() if part in text)

    return [messages[-1] for messages in judged.told()], judged.results(judge)


def test_single_answers(folder: Path) -> None:
    words = {"Q0?": "[[5]]", "Q1?": "[[2]]", "Q2?": "[[9]]", "": "[[4]]"}
    told, found = _judged(folder, "ours_brief", words)
    assert told[0].endswith("Question: Q0?\nAnswer: new\n")
    scores = found.results["ours_brief"]
    assert scores["score,none"] == pytest.approx(11 / 3)
    assert (scores["score_a,none"], scores["score_b,none"]) == (5, 3)
    assert scores["no_verdict,none"] == 1


def test_pairs(folder: Path) -> None:
    words = {"Q0?\n\nA: new": "[A]", "Q0?": "I say [B]", "Q1?": "[A]", "": "[B], or rather [=]"}
    told, found = _judged(folder, "ours_better", words)
    assert told[0].startswith("Q0?\n\nA: old\n\nB: new\n\nWhich")
    scores = found.results["ours_better"]
    assert scores["win_rate,none"] == (2 + 1 + 1 + 1) / 8
    assert scores["position_bias,none"] == 0.25
