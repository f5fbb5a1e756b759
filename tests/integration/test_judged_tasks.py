"""Judged datasets: what a judge is asked about answers, and the results that its words make."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("lm_eval")
pytest.importorskip("transformers")

from tests.judged_datasets import Judged, said
from tests.own_tasks import write_task
from tests.runs import until
from tests.scoring import make_scorable, start_scorer, wait_for

from coordinate_eval import _files
from coordinate_eval.coordinator.inputs.suites import rubric
from coordinate_eval.coordinator.run.paths import RunDir
from coordinate_eval.errors import RecordError, UserError
from coordinate_eval.records import (
    Answer,
    Dataset,
    DatasetRequests,
    Question,
    Rubric,
)

SINGLE = """\
prompts:
  rating:
  - {role: system, content: You rate.}
  - {role: user, content: "{{ question }} {{ form.format(answer=answer) }}"}
patterns: ['\\[\\[(\\d+)\\]\\]', '\\[(\\d+)\\]']
scale: [1, 10]
by: kind
"""
PAIR = """\
pair: true
id: n
prompts: {better: "{{ question }} A: {{ answer_a }} B: {{ answer_b }}"}
patterns: '\\[\\[([AB<>=]+)\\]\\]'
take: last
labels: {A>>B: [1, 1, 1], A>B: [1], A=B: [0.5], B>A: [0], B>>A: [0, 0, 0]}
"""
DOCUMENTS = [
    {"n": n, "question": f"Q{n}?", "kind": "xy"[n % 2], "form": "<{answer}>"} for n in range(6)
]


@pytest.fixture
def tasks(tmp_path: Path) -> Path:
    folder = tmp_path / "tasks"
    folder.mkdir()
    write_judged(folder)
    return folder


def write_judged(folder: Path, **changes: Any) -> None:
    """Write the task `t`, whose own metric is not what counts."""
    written = {
        "doc_to_text": "question",
        "doc_to_target": "",
        "generation_kwargs": {"until": ["STOP"], "max_gen_toks": 10},
        "filter_list": [{"name": "strict", "filter": [{"function": "take_first"}]}],
    }
    write_task(folder, DOCUMENTS, "t", **written | changes)


def test_an_answer_takes_half_of_a_short_context(tmp_path: Path) -> None:
    write_judged(tmp_path, generation_kwargs={"until": [], "max_gen_toks": 4096})
    assert {request.max_tokens for request in judged_by(SINGLE, tmp_path).requests} == {512}


def read(text: str) -> Rubric:
    return rubric.parse(text, where="r.yaml", name="r")


def judged_by(text: str, tasks: Path, baselines: Path | None = None, **more: Any) -> Judged:
    """The dataset `t` with this rubric."""
    return Judged(Dataset(name="t", task="t", rubric=read(text)), [str(tasks)], baselines, **more)


def messages(question: Question) -> list[tuple[str, str]]:
    content = json.loads(question.content)
    assert (content["temperature"], content["max_tokens"]) == (0.0, 2048)
    return [(message["role"], message["content"]) for message in content["messages"]]


def test_a_judge_is_asked_about_each_answer(tasks: Path) -> None:
    hostile = "{question} {{ 7 * 7 }} {0.__class__} STOP and more"
    judged = judged_by(SINGLE, tasks, texts=[hostile])
    assert judged.index.asks
    assert DatasetRequests.model_validate_json(judged.index.model_dump_json()).judged
    questions = judged.questions()
    assert messages(questions[2]) == [
        ("system", "You rate."),
        ("user", "Q2? <{question} {{ 7 * 7 }} {0.__class__} >"),
    ]
    assert {question.judge for question in questions} == {"judge@r1"}


def test_ratings_make_the_results(tasks: Path) -> None:
    words = ["[[8]]", "[[4]] [[9]]", "[2]", "no number", "[[11]]", None]
    found = judged_by(SINGLE, tasks).results(lambda _, n: words[n])
    scores = found.results["t"]
    assert scores["score,none"] == pytest.approx(14 / 3)
    assert scores["score_stderr,none"] == pytest.approx(1.7638342)
    assert (scores["score_x,none"], scores["score_y,none"]) == (5.0, 4.0)
    assert scores["no_verdict,none"] == 3
    assert "exact_match,strict" not in scores
    assert list(scores)[-2:] == ["no_verdict,none", "no_verdict_stderr,none"]
    assert found.higher_is_better["t"]["score"] is True
    judge = found.judge
    assert (judge["model"], judge["revision"], judge["rubric"]) == ("judge", "r1", "r")
    assert (judge["questions"], judge["without_verdict"], judge["refused"]) == (6, 3, 1)


def test_without_any_verdict_there_is_no_score(tasks: Path) -> None:
    found = judged_by(SINGLE, tasks).results(lambda *_: "I would rather not")
    assert found.results["t"]["score,none"] == "N/A"
    assert found.results["t"]["no_verdict,none"] == 6


def test_scores_wait_for_all_answers(tasks: Path) -> None:
    judged = judged_by(SINGLE, tasks)
    with pytest.raises(RecordError, match="6 questions of its metric have no answer"):
        judged.evaluator.finish(judged.dataset, judged.responses(), {})


def test_a_part_is_scored_alone(tasks: Path) -> None:
    judged = judged_by(SINGLE, tasks)
    some = judged.responses()[:3]
    answers = said(judged.evaluator.questions(judged.dataset, some), lambda *_: "[[6]]")
    found = judged.evaluator.finish(judged.dataset, some, answers, part=True)
    assert (found.items, found.results["t"]["score,none"]) == (3, 6.0)


def test_digests_are_of_what_all_checkpoints_share(tasks: Path) -> None:
    one = judged_by(SINGLE, tasks)
    first = one.results(lambda *_: "[[6]]").judge
    one.texts = ["other"]
    assert one.results(lambda *_: "[[7]]").judge == first
    other = (
        judged_by(SINGLE.replace("You rate", "You grade"), tasks).results(lambda *_: "[[6]]").judge
    )
    assert other["prompts_digest"] != first["prompts_digest"]


def _baseline(folder: Path, count: int = 6) -> Path:
    folder.mkdir()
    lines = [json.dumps({"id": str(n), "answers": [f"base {n}"]}) for n in range(count)]
    (folder / "t.jsonl").write_text("\n".join(lines) + "\n")
    return folder


def test_a_pair_plays_two_games(tasks: Path, tmp_path: Path) -> None:
    judged = judged_by(PAIR, tasks, _baseline(tmp_path / "baselines"))
    assert judged.index.question_ids == [str(n) for n in range(6)]
    assert judged.told()[:2] == [["Q0? A: base 0 B: answer"], ["Q0? A: answer B: base 0"]]

    def judge(question: Question, number: int) -> str:
        words = ["[[A>B]] [[B>>A]]", "[[A=B]]", "?", "[[A>B]]", "[[A>B]]", "[[A>B]]"]
        return words[number] if number < len(words) else "[[A=B]]"

    found = judged.results(judge)
    scores = found.results["t"]
    won = [1, 1, 1, 0.5] + [0, 1] + 6 * [0.5]
    assert scores["win_rate,none"] == sum(won) / len(won)
    assert scores["win_rate_low,none"] < scores["win_rate,none"] < scores["win_rate_high,none"]
    assert scores["position_bias,none"] == 1 / 5
    assert (scores["no_verdict,none"], found.judge["pairs_left_out"]) == (1, 1)


def test_a_win_rate_without_style_has_an_interval(tasks: Path, tmp_path: Path) -> None:
    rubric = PAIR + "style_control: true\n"
    judged = judged_by(rubric, tasks, _baseline(tmp_path / "baselines"))
    found = judged.results(lambda question, number: "[[A>B]]" if number % 3 else "[[B>A]]")
    low, rate, high = (
        found.results["t"][f"win_rate_style_controlled{end},none"] for end in ("_low", "", "_high")
    )
    assert low < rate < high
    assert list(found.results["t"])[-1].startswith(("no_verdict", "position_bias"))


def test_a_missing_answer_of_the_baseline_is_named(tasks: Path, tmp_path: Path) -> None:
    judged = judged_by(PAIR, tasks, _baseline(tmp_path / "baselines", 4))
    with pytest.raises(UserError, match="the baseline has no answer to '4'"):
        judged.questions()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (SINGLE.replace("question }}", "query }}"), "'query' is undefined"),
        (SINGLE.replace("question }}", "doc.query }}"), "no attribute 'query'"),
        (SINGLE.replace("answer=answer", "text=answer"), "'answer' is undefined"),
        (SINGLE.replace("answer=answer", "answer=answers[1]"), "no element 1"),
        (SINGLE.replace("by: kind", "by: sort"), "needs the field 'sort'"),
        (PAIR.replace("id: n", "id: m"), "needs the field 'm'"),
        (PAIR.replace("{{ question", "{{ answer"), "'answer' is undefined"),
        (PAIR.replace("id: n", "id: kind"), "two documents have the kind 'x'"),
    ],
)
def test_what_does_not_suit_the_documents_is_said_while_building(
    tasks: Path, text: str, words: str
) -> None:
    with pytest.raises(UserError) as caught:
        judged_by(text, tasks)
    assert words in str(caught.value)
    assert "dataset 't'" in str(caught.value)


def test_a_rubric_needs_text(tasks: Path) -> None:
    write_judged(tasks, output_type="loglikelihood", doc_to_target="kind")
    with pytest.raises(UserError, match="a rubric needs a task with output_type generate_until"):
        judged_by(SINGLE, tasks)


def test_a_task_without_targets_says_so(tasks: Path) -> None:
    write_judged(tasks, doc_to_target=None)
    with pytest.raises(UserError, match=r"'t'.*no doc_to_target; without targets, set it to \"\""):
        judged_by(SINGLE, tasks)


def test_a_prompt_that_is_empty_is_not_asked(tasks: Path) -> None:
    text = SINGLE.replace("{{ question }}", "{% if n > 3 %}{{ question }}")
    judged = judged_by(text.replace('answer) }}"', 'answer) }}{% endif %}"'), tasks)
    assert len(judged.questions()) == 2


def test_an_answer_without_end_has_no_verdict(tasks: Path) -> None:
    long = SINGLE.replace("=answer)", "=answer * 4001)")
    judged = judged_by(long, tasks, texts=["x" * 1000, *["y"] * 5])
    assert len(judged.questions()) == 5
    found = judged.results(lambda *_: "[[6]]")
    assert found.results["t"]["score,none"] == 6
    assert (found.judge["without_verdict"], found.judge["refused"]) == (1, 1)


def test_a_judged_run_is_scored_in_confined_processes(tasks: Path, tmp_path: Path) -> None:
    run_dir = make_scorable(
        tmp_path / "run",
        tasks,
        {"t": ["good", "bad \ufffd"]},
        {"t": read(SINGLE)},
        judge={"base_url": "http://127.0.0.1:9/v1", "model": "judge"},
    )
    scorer = start_scorer(run_dir, {"HOME": str(tmp_path)})
    _answer_all(run_dir, lambda text: "[[9]]" if "good" in text else "[[1]]")
    scored = wait_for(scorer, run_dir)
    assert scored.results["t"].results["t"]["score,none"] == 5
    assert scored.results["t"].judge["model"] == "judge"


def test_a_confined_process_sees_the_baseline(tasks: Path, tmp_path: Path) -> None:
    run_dir = make_scorable(
        tmp_path / "run",
        tasks,
        {"t": ["good"]},
        {"t": read(PAIR)},
        judge={"base_url": "http://127.0.0.1:9/v1", "model": "judge"},
    )
    _baseline(run_dir.baselines_folder)
    scorer = start_scorer(run_dir, {"HOME": str(tmp_path)})
    _answer_all(run_dir, lambda text: "[[A>B]]" if "A: good B: base" in text else "[[B>A]]")
    scored = wait_for(scorer, run_dir)
    assert scored.results["t"].results["t"]["win_rate,none"] == 1


def _answer_all(run_dir: RunDir, judge: Callable[[str], str]) -> None:
    """Wait for the questions of the run's only portion, and answer them."""
    folder = run_dir.root / "questions" / "t"
    until(lambda: [*folder.glob("*.jsonl")], "the questions are there")
    for path in folder.glob("*.jsonl"):
        asked = [Question.model_validate_json(line) for line in _files.lines(path)]
        assert asked and {question.judge for question in asked} == {"judge"}
        answers = [
            Answer(id=q.id, passed=True, result=judge(q.content), seconds=0.1) for q in asked
        ]
        target = run_dir.root / "answers" / "t" / path.name
        _files.write(target, "".join(answer.line() for answer in answers))
