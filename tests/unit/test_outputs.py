"""Degenerate answers: what counts as one, and when people are told."""

import json

import pytest

from coordinate_eval.coordinator.report.samples import card
from coordinate_eval.coordinator.report.warnings import degenerate, odd_answers, warnings
from coordinate_eval.evaluators.confined.messages import LoggedSample
from coordinate_eval.evaluators.harness.results import (
    ReadResponses,
    is_other_script,
    is_repeated,
    letters,
    scripts_of,
    tally,
    texts_in,
)
from coordinate_eval.records import DatasetResults, Outputs, OwnAnswers, Response, Turn

PROSE = (
    "Janet sells the eggs that her ducks lay at the market, less the three that she eats for "
    "breakfast and the four that she bakes into muffins for her friends every single day."
)
CHINESE = (
    "珍妮特的鸭子每天下十六个蛋。她每天早上早餐吃三个，每天为朋友烤松饼用四个，其余的在集市上卖掉。"
)


@pytest.mark.parametrize(
    ("text", "repeated"),
    [
        (PROSE, False),
        (CHINESE, False),
        (f"{PROSE} " * 8, True),
        (CHINESE * 8, True),
        ("The answer is 4. " * 30, True),
        ("a" * 2000, True),
        ("!\n" * 40, True),
        ("no no no", False),  # too short to tell
        ("", False),
        (" ".join(map(str, range(2000))), False),
    ],
)
def test_an_answer_that_goes_round_in_circles(text: str, repeated: bool) -> None:
    assert is_repeated(text) == repeated


def test_the_script_of_an_answer() -> None:
    assert letters("Ünïcode ok 12") == {"LATIN": 9}
    assert letters("すし と 寿司") == {"CJK": 5}
    assert letters("１Ａ") == {"LATIN": 1}
    assert scripts_of([PROSE, CHINESE]) == ["CJK", "LATIN"]
    assert scripts_of([PROSE * 9, "α"]) == ["LATIN"]  # a letter of a formula is no script
    assert is_other_script(CHINESE, ["LATIN"])
    assert is_other_script(PROSE, ["CJK"])
    assert not is_other_script(PROSE, ["LATIN"])
    assert not is_other_script(f"{PROSE} ({CHINESE[:20]})", ["LATIN"])
    assert not is_other_script("是", ["LATIN"])  # too short to tell
    document = {"q": "a", "n": 3, "choices": ["b", {"text": "c"}], "none": None}
    assert list(texts_in(document)) == ["a", "b", "c"]


def test_answers_are_counted_by_their_tasks_and_turns() -> None:
    answers = [
        ("en", [PROSE]),
        ("en", [CHINESE]),
        ("zh", [CHINESE]),
        ("zh", ["  \n"]),
        ("unknown", [CHINESE]),
        ("en", [PROSE, ""]),  # a conversation
        ("en", [PROSE, PROSE * 9]),
    ]
    assert tally(answers, 2, {"en": ["LATIN"], "zh": ["CJK"]}) == Outputs(
        responses=7, empty=2, repeated=1, other_script=1, cut=2
    )
    assert tally([], 0, {}) is None


def test_what_is_read_twice_is_counted_once() -> None:
    def response(finish: str, *turns: str) -> Response:
        return Response.model_validate(
            {
                "dataset": "d", "item": 0, "task": "d", "doc": 0, "prompt_hash": "",
                "text": "", "tokens": 1, "finish": finish,
                "turns": [Turn.model_validate({"text": "", "tokens": 1, "finish": each})
                          for each in turns],
            }
        )  # fmt: skip

    every = [response("length"), response("stop"), response("stop", "stop", "length")]
    read = ReadResponses(every)
    assert [*read] == [*read] == every
    assert read.cut == 2


def test_people_are_told_of_many_degenerate_answers() -> None:
    assert degenerate("gsm8k", Outputs(responses=1319, empty=3, cut=501)) == [
        "gsm8k: 38% of answers are cut by length"
    ]
    assert degenerate("arc", None) == []


def test_people_are_told_of_questions_without_a_verdict() -> None:
    (line,) = odd_answers("mt_bench", {"questions": 160, "without_verdict": 7, "refused": 2})
    assert line.startswith("mt_bench: no verdict on 7 of 160 questions to the judge (2 refused):")
    assert "samples --dataset mt_bench" in line
    assert odd_answers("mt_bench", {"questions": 160, "without_verdict": 0}) == []
    assert odd_answers("arc", {}) == []


def test_people_are_told_what_is_odd_about_a_judges_answers() -> None:
    judge = {"questions": 160, "without_verdict": 9, "refused": 1}
    odd = {"cut": 15, "empty": 3, "out_of_range": 4, "thinking_unended": 1}
    (line,) = odd_answers("d", judge | {"odd": odd})
    assert (
        "(1 refused, 3 without words, 1 with thinking that does not end, 4 with a rating that the "
        "rubric does not allow)"
    ) in line
    _, cut, fixed = odd_answers("d", judge | {"odd": {"cut": 16, "without_temperature": 160}})
    assert "16 of 160 answers of the judge ended at the limit of their tokens" in cut
    assert "asked 160 of 160 questions without temperature" in fixed


def test_a_judged_sample_has_its_ratings_and_no_empty_target() -> None:
    content = {"doc_id": 3, "target": "", "arguments": {"gen_args_0": {"arg_0": "Q?", "arg_1": {}}},
               "resps": [["A"]], "filtered_resps": [["A"]], "metrics": ["score", "no_verdict"],
               "score": [4.0], "no_verdict": [0.0]}  # fmt: skip
    rated = LoggedSample(item=3, task="ours", words=["Fine. [[4]]"], content=json.dumps(content))
    shown = card(rated, None, said_by="judge")
    assert shown.title == "item 3 · ours, document 3 · score 4"
    assert [name for name, _ in shown.parts] == ["prompt", "answer", "judge"]
    silent = rated.model_copy(update={"content": json.dumps(content | {"score": []})})
    assert card(silent, None, said_by="judge").title.endswith("no verdict")


def test_items_that_show_their_own_answer_are_warned_of() -> None:
    def lines(own: int) -> list[str]:
        tasks = {"leaky": OwnAnswers(items=4, own=own)}
        return warnings(DatasetResults(dataset="leaky", items=4, results={}, own_answers=tasks))

    (line,) = lines(3)
    assert line.startswith("leaky: 3 of 4 items show their own answer among their few-shot")
    assert lines(0) == []
