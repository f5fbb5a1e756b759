"""The stand-in for `code_eval`: what it asks, what it believes, what it leaves alone."""

import hashlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.tiny import need

from coordinate_eval.evaluators.harness.code_eval import (
    AnswerBook,
    CodeEval,
    Collector,
    answered_by,
    asks_code_eval,
    pass_at,
    stand_in,
)
from coordinate_eval.records import Answer

TESTS = ["assert f() == 1", "assert g() == 2"]
PROGRAMS = [["def f(): return 1", "def f(): return 0"], ["def g(): return 2", "def g(): return 2"]]


def _ask(**options: object) -> Collector:
    collector = Collector()
    with answered_by(collector):
        CodeEval().compute(references=TESTS, predictions=PROGRAMS, k=[1], **options)  # type: ignore[arg-type]  # options of many types
    return collector


def _answers(collector: Collector, passing: str) -> dict[str, Answer]:
    return {
        question.id: Answer(
            id=question.id, passed=passing in question.content, result="said so", seconds=0.1
        )
        for question in collector.questions
    }


def test_each_different_program_is_asked_once_with_its_test() -> None:
    questions = _ask().questions
    assert [question.content for question in questions] == [
        "def f(): return 1\nassert f() == 1",
        "def f(): return 0\nassert f() == 1",
        "def g(): return 2\nassert g() == 2",
    ]
    assert {question.timeout_seconds for question in questions} == {3.0}


def test_a_question_is_known_by_kind_content_and_timeout() -> None:
    first, *_ = _ask(timeout=7).questions
    canonical = json.dumps(["program", first.content, 7.0], separators=(",", ":"))
    assert first.id == hashlib.sha256(canonical.encode()).hexdigest()
    assert first.timeout_seconds == 7.0
    assert first.id != _ask().questions[0].id


def test_collecting_scores_nothing() -> None:
    with answered_by(Collector()):
        scores, _ = CodeEval().compute(references=TESTS, predictions=PROGRAMS, k=[1, 2])
    assert scores == {"pass@1": 0.0, "pass@2": 0.0}


def test_answers_become_scores() -> None:
    book = AnswerBook(_answers(_ask(), "return 1"))
    with answered_by(book):
        scores, verdicts = CodeEval().compute(references=TESTS, predictions=PROGRAMS, k=[1, 2, 3])
    assert scores == {"pass@1": 0.25, "pass@2": 0.5}  # nobody has three samples
    assert [entry["passed"] for _, entry in verdicts[0]] == [True, False]
    assert not book.missing


def test_a_program_without_answer_is_missed_even_if_the_task_swallows_everything() -> None:
    answers = _answers(_ask(), "return")
    lost = answers.popitem()[0]
    book = AnswerBook(answers)
    with answered_by(book):
        CodeEval().compute(references=TESTS, predictions=PROGRAMS, k=1)
    assert book.missing == {lost}


def test_outside_of_scoring_everything_passes() -> None:
    """Tasks try the metric out when they are imported."""
    scores, _ = CodeEval().compute(references=["assert add(2, 3)==5"], predictions=[["nonsense("]])
    assert scores == {"pass@1": 1.0}


@given(samples=st.integers(1, 40), data=st.data())
def test_pass_at_k_is_the_chance_to_draw_a_correct_one(samples: int, data: st.DataObject) -> None:
    from math import comb

    correct = data.draw(st.integers(0, samples))
    k = data.draw(st.integers(1, samples))
    exact = 1 - comb(samples - correct, k) / comb(samples, k)
    assert pass_at(k, samples, correct) == pytest.approx(exact, abs=1e-12)


def test_only_code_eval_is_stood_in_for() -> None:
    need("evaluate", "harness")
    import evaluate

    stand_in()
    assert isinstance(evaluate.load("code_eval"), CodeEval)
    assert isinstance(evaluate.load("evaluate-metric/code_eval"), CodeEval)
    with pytest.raises(FileNotFoundError):
        evaluate.load("/nowhere/at/all/some_metric.py")


def test_a_function_that_loads_the_metric_at_the_last_moment_is_seen() -> None:
    def late(references: list[str], predictions: list[list[str]]) -> object:
        import evaluate

        metric = evaluate.load("code_eval")
        return metric.compute(references=references, predictions=predictions)

    assert asks_code_eval(late)
    assert asks_code_eval(CodeEval().compute)
    assert not asks_code_eval(len)
    assert not asks_code_eval(None)
