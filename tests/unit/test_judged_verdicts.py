"""What a judge's words mean, and the scores that verdicts make."""

import math
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("regex")

from coordinate_eval.coordinator.inputs.suites import rubric
from coordinate_eval.coordinator.inputs.yaml_file import Place
from coordinate_eval.evaluators.judged.verdicts import (
    Bound,
    Lack,
    Mean,
    MeanOfItems,
    Verdict,
    battles,
    document_metrics,
    look_for_verdict,
    metrics_of,
    side_preferred,
)
from coordinate_eval.records import Message, Rubric


def find_verdict(words: str, rubric: Rubric) -> list[float] | None:
    return look_for_verdict(words, rubric).verdict


RATING = Rubric(
    name="rating",
    prompts={"turn_1": [Message(role="user", content="{{ answer }}")]},
    patterns=[r"\[\[(\d+\.?\d*)\]\]", r"\[(\d+\.?\d*)\]"],
    scale=(1, 10),
)
LABELS = Rubric(
    name="labels",
    prompts={"better": [Message(role="user", content="{{ answer_a }} {{ answer_b }}")]},
    pair=True,
    id="id",
    patterns=[r"\[\[([AB<>=]+)\]\]", r"\[([AB<>=]+)\]"],
    take="last",
    ignore_case=True,
    labels={"A>>B": [1, 1, 1], "A>B": [1], "A=B": [0.5], "B>A": [0], "B>>A": [0, 0, 0]},
)


@given(st.text())
def test_any_words_have_a_verdict_or_none(words: str) -> None:
    for rules in (RATING, LABELS):
        verdict = find_verdict(words, rules)
        assert verdict is None or all(math.isfinite(value) for value in verdict)


def test_without_a_scale_any_number_is_a_rating() -> None:
    free = RATING.model_copy(update={"scale": None})
    assert find_verdict("[[11]]", free) == [11.0]
    assert find_verdict("[[" + "9" * 400 + "]]", free) is None


def test_the_answer_is_side_b_first() -> None:
    baseline_wins, answer_wins = [1.0], [1.0, 1.0, 1.0]
    assert battles(baseline_wins, answer_wins) == [1.0, 1.0, 1.0, 0.0]
    assert battles(None, answer_wins) == battles(baseline_wins, None) == []


@pytest.mark.parametrize(
    ("first", "second", "followed"),
    [
        ([1.0], [1.0], 1.0),
        ([0.0, 0.0, 0.0], [0.0], 1.0),
        ([1.0], [0.0], 0.0),
        ([0.5], [0.5], 0.0),
        ([0.5], [1.0], 0.0),
        (None, [1.0], None),
    ],
)
def test_a_judge_may_follow_the_side(first: Verdict, second: Verdict, followed: float) -> None:
    assert side_preferred(first, second) == followed


ratings = st.integers(1, 10).map(float)


@given(st.lists(ratings, min_size=2))
def test_with_a_value_a_document_the_standard_error_is_that_of_a_mean(values: list[float]) -> None:
    documents = [[value] for value in values]
    assert Mean()(documents) == pytest.approx(statistics.fmean(values))
    usual = statistics.stdev(values) / math.sqrt(len(values))
    assert Mean().stderr(documents) == pytest.approx(usual, abs=1e-12)


@given(st.lists(st.lists(ratings, max_size=3)))
def test_a_mean_is_of_all_values(documents: list[list[float]]) -> None:
    values = [value for document in documents for value in document]
    mean = Mean()(documents)
    assert mean == statistics.fmean(values) if values else math.isnan(mean)


@pytest.mark.parametrize(
    ("aggregation", "score", "stderr"),
    [("mean", 4.0, None), ("median", 2.0, None), ("mean_of_items", 5.0, 4.0)],
)
def test_ratings_are_summed_up_as_the_rubric_says(
    aggregation: str, score: float, stderr: float | None
) -> None:
    metrics = metrics_of(RATING.model_copy(update={"aggregation": aggregation}))
    found, higher = metrics["score"]
    documents = [[1.0, 1.0], [], [9.0]] if aggregation == "mean_of_items" else [[1.0, 2.0], [9.0]]
    assert (found(documents), higher) == (score, True)
    assert math.isnan(found([[], []]))
    if stderr is not None:
        assert isinstance(found, MeanOfItems)
        assert found.stderr(documents) == stderr


def test_values_that_repeat_within_documents_tell_no_more() -> None:
    assert Mean().stderr([[1.0] * 4, [3.0] * 4]) == pytest.approx(Mean().stderr([[1.0], [3.0]]))
    assert math.isnan(Mean().stderr([[1.0, 2.0]]))


@given(st.lists(st.sampled_from([0.0, 0.5, 1.0]), min_size=1, max_size=200))
def test_the_interval_is_always_the_same_and_holds_the_mean(values: list[float]) -> None:
    low, high = (Bound(quantile)([values]) for quantile in (0.05, 0.95))
    assert (low, high) == tuple(Bound(quantile)([values]) for quantile in (0.05, 0.95))
    assert low - 1e-9 <= statistics.fmean(values) <= high + 1e-9


def test_the_interval_is_that_of_a_mean() -> None:
    values = [[0.0] * 400, [1.0] * 600]
    half = 1.645 * math.sqrt(0.6 * 0.4 / 1000)
    assert Bound(0.05)(values) == pytest.approx(0.6 - half, abs=0.004)
    assert Bound(0.95)(values) == pytest.approx(0.6 + half, abs=0.004)


def test_a_document_counts_by_turn_and_by_group() -> None:
    rubric = RATING.model_copy(update={"prompts": {"turn_1": [], "turn_2": []}})
    found = document_metrics(rubric, "maths", {"turn_1": [[[7.0]]], "turn_2": [[None]]})
    assert found == {
        "score": [7.0],
        "score_turn_1": [7.0],
        "score_turn_2": [],
        "score_maths": [7.0],
        "no_verdict": [0.0, 1.0],
    }


def test_a_pair_without_one_verdict_counts_in_no_mean() -> None:
    found = document_metrics(LABELS, None, {"better": [[[1.0], None], [[0.0], [1.0]]]})
    assert found["win_rate"] == [1.0, 1.0]
    assert found["position_bias"] == [0.0]
    assert found["no_verdict"] == [0.0, 1.0, 0.0, 0.0]
    assert found.keys() == metrics_of(LABELS).keys()


def _shipped(name: str) -> Rubric:
    return rubric.load(name, Place("suite.yaml", 1))


@pytest.mark.parametrize("name", ["mt_bench", "vicuna_bench"])
@pytest.mark.parametrize(
    ("words", "verdict"),
    [
        ("A good answer. Rating: [[8]]", [8.0]),
        ("[[8.5]], not [[3]]", [8.5]),
        ("[[٣]]", [3.0]),
        ("[[11]] [5]", None),  # no other pattern is tried
        ("[[8.]]", [8.0]),
        ("**Rating: [[8]]**\n\nAs in [1], [[2]]", [8.0]),
        ("As in [1], I say [[8]]", [8.0]),
        ("Rating: [8]", [8.0]),
        ("[8] or [9]", [8.0]),
        ("Rating: [[85]]", None),  # the published evaluator knows no scale, its prompts do
        ("[[0]]", None),
        ("[[10.5]] [[8]]", None),
        ("[[8,5]]", None),
        ("【【8】】", None),
        ("【8】", None),
        ("［［8］］", None),
        ("[[８]]", [8.0]),
        ("[[8]/10]", [8.0]),  # by the second pattern, as published
        ("[[rating: 8]]", None),
        ("[[**8**]]", None),
        ("Rating: **[[8]]**", [8.0]),
        ("Rating: \\[\\[8\\]\\]", None),
        ("&#91;&#91;8&#93;&#93;", None),
        ("8/10", None),
        ("[[8/10]]", None),
        ("[[-8]]", None),
        ("[[ 8 ]]", None),
        ("[[8, 9]]", None),
        ("[[rating]]", None),
        ("Rating: 8", None),
        ("[[" + "8" * 1_000_000, None),
    ],
)
def test_a_rating_of_mt_bench(name: str, words: str, verdict: Verdict) -> None:
    assert find_verdict(words, _shipped(name)) == verdict


@pytest.mark.parametrize("name", ["arena_hard", "arena_hard_v2"])
@pytest.mark.parametrize(
    ("words", "verdict"),
    [
        ("My final verdict is: [[A>>B]]", [1, 1, 1]),
        ("[[A=B]] [A>B]", [0.5]),
        ("[[B=A]]", [0.5]),
        ("[[B>A]]", [0]),
        ("[[B>>A]]", [0, 0, 0]),
        ("[[A<B]]", [0]),
        ("[[A<<B]]", [0, 0, 0]),
        ("[[B<A]]", [1]),
        ("[[B<<A]]", [1, 1, 1]),
        ("[[a>b]]", [1]),
        ("At first [[A>B]], but no: [[B>>A]]", [0, 0, 0]),
        ("[[A>B]], or [B>A]", [1]),
        ("[B>A]", [0]),
        ("[[A>B]] and [[A<>B]]", None),
        ("[[A >> B]]", None),
        ("[[A>>>B]]", None),
        ("[[A≫B]]", None),
        ("[[A&gt;&gt;B]]", None),
        ("[[Assistant A>B]]", None),
        ("[[B]]", None),
        ("**[[A>>B]]**", [1, 1, 1]),
        ("A is better", None),
        ("", None),
    ],
)
def test_a_label_of_arena_hard(name: str, words: str, verdict: Verdict) -> None:
    assert find_verdict(words, _shipped(name)) == verdict


THINKING = [
    ("<think>", "</think>"),
    ("\n<THINK>\n", "</THINK>"),
    ("<thinking>", "</thinking>"),
    ("<thought>", "</thought>"),
    ("<reasoning>", "</reasoning>"),
    ("<seed:think>", "</seed:think>"),
    ("<longcat_think>", "</longcat_think>"),
    ("[THINK]", "[/THINK]"),
    ("◁think▷", "◁/think▷"),
    ("<|channel|>analysis<|message|>", "<|end|><|start|>assistant<|channel|>final<|message|>"),
    ("<|start|>assistant<|channel|>analysis", "<|channel|>final <|constrain|>text<|message|>"),
    ("analysisWe rate: ", "assistantfinal"),
    ("<|channel>thought\n", "<channel|>"),
    ("<|open|>think<|sep|>", "<|close|>think<|sep|><|open|>response<|sep|>"),
    ("<unused94>thought\n", "<unused95>"),
    ("<|begin_of_thought|>", "<|end_of_thought|>"),
    ("<|START_THINKING|>", "<|END_THINKING|><|START_RESPONSE|>"),
    ("[unused16]", "[unused17]"),
    ("Here is my thought process:\n", "Here is my response:\n"),
]  # fmt: skip
"""Marks of public models around their thinking."""


@pytest.mark.parametrize(("begin", "end"), THINKING)
def test_thinking_is_not_rated(begin: str, end: str) -> None:
    weighed = "A weak one is Rating: [[3]], a perfect one [[10]], or [[A>>B]]. "
    mt_bench, arena = _shipped("mt_bench"), _shipped("arena_hard")
    assert find_verdict(f"{begin}{weighed}{end}\nGood.\n\nRating: [[8]]", mt_bench) == [8.0]
    assert find_verdict(f"{begin}{weighed}{end}\nMy verdict: [[B>A]]", arena) == [0]
    assert look_for_verdict(f"{begin}{weighed}", mt_bench) == (None, Lack.UNENDED)
    assert look_for_verdict(f"{begin}{weighed}", arena) == (None, Lack.UNENDED)
    assert look_for_verdict(f"{begin}{weighed}{end}\n", mt_bench) == (None, Lack.EMPTY)
    assert look_for_verdict(f"{begin}{weighed}{end}Well.", mt_bench) == (None, Lack.NO_MATCH)
    if not begin.startswith("Here"):  # a template may have begun it
        assert find_verdict(f"{weighed}{end}\nRating: [[8]]", mt_bench) == [8.0]


@pytest.mark.parametrize(
    ("words", "verdict"),
    [
        ("Rating: [[7]]. It shows its `</think>`.", [7.0]),
        ('It ends with "</think>". Rating: [[7]]', [7.0]),
        ("The answer shows a <think> and no end. Rating: [[7]]", [7.0]),
        ("It thinks aloud. Here is my response: Rating: [[7]]", [7.0]),
        ("analysis: good. Rating: [[7]]", [7.0]),
        ("<think>It has `</think>`, so [[3]]</think>Rating: [[7]]", [7.0]),
        ("<think>[[1]]</think>Hm. [[2]] <think>No.</think>Rating: [[7]]", [7.0]),
        ("I weigh [[3]].\n[BEGIN FINAL RESPONSE]\nRating: [[7]]\n[END FINAL RESPONSE]", [7.0]),
        ("<think>[[1]]</think><think>[[2]]</think>Rating: [[7]]", [7.0]),
        ("Rating: [[7]]\n<reasoning>One could say [[3]].</reasoning>\n", [7.0]),
        ("<think>[[1]]</think>Rating: [[7]]<reason>Not [[3]].</reason>", [7.0]),
    ],
)
def test_marks_may_be_spoken_of_and_come_more_than_once(words: str, verdict: Verdict) -> None:
    assert find_verdict(words, _shipped("mt_bench")) == verdict


def test_any_number_of_marks_takes_no_time() -> None:
    for mark in (
        "<think>",
        "</think>",
        "<|channel|>",
        "<",
        "<reason>",
        "</reason>",
        "here is my thought process:",
    ):
        assert find_verdict(mark * 200_000, _shipped("mt_bench")) is None


@pytest.mark.parametrize(
    ("words", "lack"),
    [
        ("[[8]]", None),
        ("", Lack.EMPTY),
        (" \n", Lack.EMPTY),
        ("[[11]]", Lack.OUT_OF_RANGE),
        ("[[11]] [[8]]", Lack.OUT_OF_RANGE),
        ("eight", Lack.NO_MATCH),
        ("[[8/10]]", Lack.NO_MATCH),
    ],
)
def test_words_without_a_verdict_say_why(words: str, lack: Lack | None) -> None:
    assert look_for_verdict(words, _shipped("mt_bench")).lack == lack
