"""Which samples are shown, and how much of them."""

import json
from typing import Any

import pytest

from coordinate_eval.coordinator.report.samples import (
    MOST_CHARACTERS,
    Shown,
    card,
    differing,
    is_graded,
    positions_of,
    select,
    shown_verdicts,
    worst_first,
)
from coordinate_eval.errors import UserError
from coordinate_eval.evaluators.confined.messages import LoggedSample, LoggedVerdict
from coordinate_eval.records import DatasetResults

RESULTS = DatasetResults(
    dataset="sums",
    items=3,
    results={"sums": {"exact_match,strict": 0.5, "exact_match,loose": 0.7}},
    higher_is_better={"sums": {"exact_match": True}},
)


def verdicts(*values: float, doc_hash: str = "h") -> list[LoggedVerdict]:
    """Those of two filters; the second one says that all are right."""
    return [
        LoggedVerdict(
            item=item, task="sums", filter=name, metrics={"exact_match": value}, doc_hash=doc_hash
        )
        for name, given in (("strict", values), ("loose", [1.0] * len(values)))
        for item, value in enumerate(given)
    ]


def sample(arguments: list[list[Any]], responses: Any, **more: Any) -> LoggedSample:
    content = {
        "doc_id": 0,
        "target": "7",
        "arguments": {
            f"gen_args_{n}": {f"arg_{m}": each for m, each in enumerate(given)}
            for n, given in enumerate(arguments)
        },
        "resps": responses,
        "filtered_resps": more.pop("filtered", responses),
    }
    return LoggedSample(
        item=0, task="sums", words=more.pop("words", []), content=json.dumps(content)
    )


def test_the_main_metric_decides() -> None:
    shown = shown_verdicts(verdicts(1, 0, 0.5), RESULTS)
    assert [verdict.right for verdict in shown.values()] == [True, False, False]
    assert shown[1] == Shown(1, "exact_match,strict", 0, "h")
    named = shown_verdicts(verdicts(1, 0, 0.5), RESULTS, "exact_match,loose")
    assert all(verdict.right for verdict in named.values())
    assert positions_of(verdicts(1, 0, 0.5), [1]) == [1, 4]


@pytest.mark.parametrize("value", [7.5, -1.0, float("nan")])
def test_a_metric_that_does_not_tell_right_from_wrong_grades(value: float) -> None:
    found = verdicts(1, 0, value)
    assert is_graded(shown_verdicts(found, RESULTS), RESULTS, found)


def test_right_and_wrong_is_no_grade() -> None:
    found = verdicts(1, 0, 0.5)
    assert not is_graded(shown_verdicts(found, RESULTS), RESULTS, found)
    with pytest.raises(UserError, match="no verdicts"):
        is_graded({}, RESULTS, found)


@pytest.mark.parametrize(("better", "order"), [(True, [3, 1, 0, 2]), (False, [3, 2, 0, 1])])
def test_the_worst_comes_first(better: bool, order: list[int]) -> None:
    found = verdicts(5, 2, 9.5, float("nan"))
    results = RESULTS.model_copy(update={"higher_is_better": {"sums": {"exact_match": better}}})
    assert worst_first(shown_verdicts(found, results), results, found) == order


def test_two_runs_are_compared_on_the_same_items_only() -> None:
    ours, theirs = (shown_verdicts(verdicts(*v), RESULTS) for v in ((1, 0, 1), (1, 1, 0)))
    assert differing(ours, theirs, "sums", graded=False) == [1, 2]
    for other in (verdicts(1, 1), verdicts(1, 1, 0, doc_hash="other")):
        with pytest.raises(UserError, match="not the same in these two runs"):
            differing(ours, shown_verdicts(other, RESULTS), "sums", graded=False)


def test_the_largest_difference_comes_first() -> None:
    nan = float("nan")
    ours, theirs = (shown_verdicts(verdicts(*v), RESULTS) for v in ((5, 7, 1, nan), (6, 7, 9, 3)))
    assert differing(ours, theirs, "sums", graded=True) == [3, 2, 0]


def test_items_keep_the_order_of_those_allowed() -> None:
    assert select(range(9), [], [8, 3, 5], 2, "d") == [8, 3]
    assert select(range(9), [5, 1, 5], range(9), None, "d") == [1, 5]
    with pytest.raises(UserError, match="has no item 9: it has items 0 to 8"):
        select(range(9), [9], range(9), None, "d")


def test_what_is_long_is_cut_and_says_so() -> None:
    prompt, answer = "p" * 10_000 + "END", "a" * 10_000
    shown = card(sample([[prompt, {"until": []}]], [[answer]], words=["w" * 10_000]), None)
    parts = dict(shown.parts)
    assert parts["prompt"].startswith("[8,003 characters before]")
    assert parts["prompt"].endswith("END")
    assert "[8,000 characters]" in parts["answer"]
    assert all(len(text) < MOST_CHARACTERS + 50 for text in parts.values())


def test_choices_are_shown_with_the_likeliest_marked() -> None:
    asked = [["q", " A"], ["q", " B\nb"]]
    shown = card(sample(asked, [[["-3.5", "False"]], [["-1.25", "True"]]]), None)
    assert dict(shown.parts)["choices (→ the likeliest)"].splitlines() == [
        "     -3.500  A",
        "→    -1.250  B b",
    ]
    many = [["q", f" {n}"] for n in range(40)]
    parts = dict(card(sample(many, [[["-1", "True"]]] * 40), None).parts)
    lines = parts["choices (→ the likeliest)"].splitlines()
    assert parts["target"] == "7: 7"
    assert lines[-1] == "  … 28 more"
    assert len(lines) == 13


def test_what_a_filter_took_and_who_said_what() -> None:
    given = sample([["q", {}]], [["It is 7."]], filtered=["7"], words=["[[9]]"])
    shown = card(given, Shown(0, "score,none", 9, ""), run="r", said_by="judge")
    assert shown.title == "r · item 0 · sums, document 0 · score 9"
    assert ("taken from it", "7") in shown.parts
    assert ("judge", "[[9]]") in shown.parts
    right = card(given, Shown(0, "acc,none", 1, ""))
    assert right.title.endswith("right: acc 1")


def test_a_conversation_is_read_turn_by_turn() -> None:
    given = sample([["Hello", {}, ["\n\nUser: And now?\n\nAssistant:"]]], [[["Hi.", "Well."]]])
    assert card(given, None).parts[:4] == [
        ("prompt", "Hello"),
        ("answer 1 of 2", "Hi."),
        ("then", "User: And now?\n\nAssistant:"),
        ("answer 2 of 2", "Well."),
    ]


@pytest.mark.parametrize(
    ("arguments", "responses"),
    [([], []), ([[]], [[]]), ([["q", "a"], ["q"]], []), ([["q", "a"], []], [["no"], [[], []]])],
)
def test_a_sample_that_makes_no_sense_is_shown_as_well_as_can_be(
    arguments: list[list[Any]], responses: Any
) -> None:
    assert card(sample(arguments, responses), None).title == "item 0 · sums, document 0"
