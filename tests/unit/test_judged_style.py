"""Style control: what length and Markdown add to a win rate is taken out of it."""

import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coordinate_eval.evaluators.judged.verdicts import (
    StyleControlled,
    StyleControlledBound,
    differences,
)

PLAIN = "one two three four"
RICH = "# Title\n\n- one\n2. two\n**three** __four__ five\n```\n# no title\n- no entry\n```\n"


def test_style_is_length_and_markdown_outside_code() -> None:
    assert differences(PLAIN, PLAIN) == [0, 0, 0, 0]
    assert differences(f"{PLAIN} {PLAIN}", PLAIN) == [(8 - 4) / (8 + 4), 0, 0, 0]
    words = len(RICH.split())
    marks = [count / (words + 1) for count in (1, 2, 2)]
    expected = [(words - 4) / (words + 4), *(mark / (mark + 1) for mark in marks)]
    assert differences(RICH, PLAIN) == pytest.approx(expected)
    assert differences("", "") == [0, 0, 0, 0]


@given(st.text(), st.text())
def test_sides_are_opposite(one: str, other: str) -> None:
    there, back = differences(one, other), differences(other, one)
    assert there == pytest.approx([-value for value in back])
    assert all(-1 <= value <= 1 for value in there)


def test_without_differences_it_is_the_win_rate() -> None:
    battles = [[outcome, 0.0, 0.0, 0.0, 0.0] for outcome in (1, 1, 1, 0.5, 0)]
    assert StyleControlled()([battles[:2], battles[2:]]) == pytest.approx(0.7)
    assert math.isnan(StyleControlled()([[]]))


def test_a_judge_that_likes_length_is_corrected() -> None:
    """Battles drawn with a strength of 0.3 and a liking for length of 2 for each deviation."""
    draw = random.Random(0)
    lengths = [draw.gauss(0.5, 0.2) for _ in range(20_000)]
    mean = sum(lengths) / len(lengths)
    chances = [1 / (1 + math.exp(-(0.3 + 2 * (each - mean) / 0.2))) for each in lengths]
    battles = [
        [float(draw.random() < chance), length, 0.0, 0.0, 0.0]
        for chance, length in zip(chances, lengths, strict=True)
    ]
    assert StyleControlled()([battles]) == pytest.approx(1 / (1 + math.exp(-0.3)), abs=0.02)


@pytest.mark.parametrize("outcome", [0.0, 1.0])
def test_who_always_wins_has_a_rate_near_the_end(outcome: float) -> None:
    battles = [[outcome, n / 10, 0.0, 0.0, 0.0] for n in range(10)]
    assert StyleControlled()([battles]) == pytest.approx(outcome, abs=0.001)


def test_the_interval_of_battles_without_style_is_that_of_their_mean() -> None:
    """With 400 battles and a share of 0.25, the standard error is 0.0217."""
    battles = [[float(n % 4 == 0), 0.0, 0.0, 0.0, 0.0] for n in range(400)]
    low, high = (StyleControlledBound(quantile)([battles]) for quantile in (0.05, 0.95))
    assert low == pytest.approx(0.25 - 1.645 * 0.0217, abs=0.006)
    assert high == pytest.approx(0.25 + 1.645 * 0.0217, abs=0.006)
    assert low == StyleControlledBound(0.05)([battles])
    assert math.isnan(StyleControlledBound(0.05)([[]]))


@settings(max_examples=10)
@given(st.lists(st.tuples(st.sampled_from([0.0, 0.5, 1.0]), st.floats(-1, 1)), min_size=1))
def test_an_interval_is_within_bounds_and_in_order(found: list[tuple[float, float]]) -> None:
    battles = [[outcome, length, 0.0, 0.0, 0.0] for outcome, length in found]
    low, high = (StyleControlledBound(quantile)([battles]) for quantile in (0.05, 0.95))
    assert 0 <= low <= high <= 1
