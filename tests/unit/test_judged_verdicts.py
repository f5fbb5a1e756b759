"""What a judge's words mean, and the scores that verdicts make."""

import math
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("regex")

from coordinate_eval.coordinator.inputs.suites import rubric
from coordinate_eval.coordinator.inputs.suites.located_yaml import Place
from coordinate_eval.evaluators.judged.verdicts import (
    Bound,
    Mean,
    MeanOfItems,
    Verdict,
    battles,
    document_metrics,
    find_verdict,
    metrics_of,
    side_preferred,
)
from coordinate_eval.records import Message, Rubric

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


@pytest.mark.parametrize(
    ("words", "verdict"),
    [
        ("Rating: [[7]]", [7.0]),
        ("[[7.5]], not [[3]]", [7.5]),
        ("[2] and then [[8]]", [8.0]),  # the first pattern wins wherever it matches
        ("[2] and then [3]", [2.0]),
        ("[[11]]", None),
        ("[[11]] [5]", None),  # no other pattern is tried
        ("[[0.5]]", None),
        ("seven", None),
        ("", None),
        ("[[" + "1" * 1_000_000, None),
        ("[[٣]]", [3.0]),
    ],
)
def test_a_rating_is_found(words: str, verdict: Verdict) -> None:
    assert find_verdict(words, RATING) == verdict


@pytest.mark.parametrize(
    ("words", "verdict"),
    [
        ("[[A>B]]", [1.0]),
        ("[[A>B]] … My final verdict is [[b>>a]]", [0.0, 0.0, 0.0]),
        ("[[A=B]] [A>B]", [0.5]),
        ("[B>A]", [0.0]),
        ("[[A<>B]]", None),
        ("[[C]]", None),
    ],
)
def test_a_label_is_found(words: str, verdict: Verdict) -> None:
    assert find_verdict(words, LABELS) == verdict


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
        ("[[8.5]]", [8.5]),
        ("[[8.]]", [8.0]),
        ("**Rating: [[8]]**\n\nAs in [1], [[2]]", [8.0]),
        ("As in [1], I say [[8]]", [8.0]),
        ("Rating: [8]", [8.0]),
        ("[8] or [9]", [8.0]),
        ("[[15]]", [15.0]),  # the published evaluator knows no scale
        ("[[0]]", [0.0]),
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
        ("[[A>B]]", [1]),
        ("[[A=B]]", [0.5]),
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
        ("A is better", None),
        ("", None),
    ],
)
def test_a_label_of_arena_hard(name: str, words: str, verdict: Verdict) -> None:
    assert find_verdict(words, _shipped(name)) == verdict
