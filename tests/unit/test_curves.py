"""Smoothed curves: bands, slopes and change points hold on series whose truth is known."""

import json
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from tests.trainings import TRAINING, call, run_of

from coordinate_eval.coordinator.history.columns import item_error
from coordinate_eval.coordinator.history.curve import Curve, Point, smooth

TRUTHS: dict[str, Callable[[float], float]] = {
    "level": lambda part: 0.4,
    "line": lambda part: 0.3 + 0.2 * part,
    "saturating": lambda part: 0.25 + 0.3 * (1 - math.exp(-5 * part)),
    "late": lambda part: 0.25 + 0.4 / (1 + math.exp(-10 * (part - 0.5))),
}


def scored(
    truth: list[float], seed: int, items: int = 1000, own: float = 0.0, every: int = 1000
) -> list[Point]:
    """Scores of items that are right with these probabilities, and noise of each checkpoint."""
    draw = np.random.default_rng(seed)
    points = []
    for place, right in enumerate(truth):
        value = draw.binomial(items, min(0.999, max(0.001, right + draw.normal(0, own)))) / items
        points.append(
            Point(place * every, value, item_error(value, None, items) or _error(value, items))
        )
    return points


def _error(value: float, items: int) -> float:
    return math.sqrt(value * (1 - value) / items)


def fitted(points: list[Point]) -> Curve:
    curve = smooth(points, share=True)
    assert curve is not None
    return curve


@pytest.mark.parametrize("name", TRUTHS)
@pytest.mark.parametrize(
    ("count", "items", "own"),
    [(12, 1000, 0.0), (12, 1000, 0.01), (50, 100, 0.0), (50, 1000, 0.0), (50, 1000, 0.01)],
)
def test_the_band_has_the_truth_in_nineteen_of_twenty_places(
    name: str, count: int, items: int, own: float
) -> None:
    truth = [TRUTHS[name](place / (count - 1)) for place in range(count)]
    inside, slopes, jumped = [], [], 0
    for seed in range(20):
        curve = fitted(scored(truth, seed, items, own))
        inside += [
            low <= right <= high
            for low, right, high in zip(curve.low, truth, curve.high, strict=True)
        ]
        slopes.append(curve.slope_low <= (truth[-1] - truth[-2]) / 1000 <= curve.slope_high)
        jumped += bool(curve.changes)

    assert sum(inside) / len(inside) > 0.9
    assert sum(slopes) >= 18
    assert jumped <= 2


def test_the_band_is_narrower_than_single_scores() -> None:
    points = scored([0.4] * 50, seed=1)

    curve = fitted(points)

    assert curve.high[25] - curve.low[25] < points[25].stderr


@pytest.mark.parametrize(("own", "drop"), [(0.0, 0.06), (0.01, 0.09)])
def test_a_jump_is_found_within_a_checkpoint_of_where_it_is(own: float, drop: float) -> None:
    found = 0
    for seed in range(20):
        at = 15 + seed
        truth = [0.4 - drop * (place >= at) for place in range(50)]
        changes = fitted(scored(truth, seed, own=own)).changes
        found += any(
            abs(change.step / 1000 - at) <= 1 and change.low <= -drop <= change.high
            for change in changes
        )

    assert found >= 17


def test_a_bad_checkpoint_alone_does_not_bend_the_curve() -> None:
    truth = [0.3 + 0.002 * place for place in range(40)]
    points = scored(truth, seed=3)
    points[20] = points[20]._replace(value=0.1)

    curve = fitted(points)

    assert curve.alone == [20_000]
    assert not curve.changes
    assert curve.low[20] <= truth[20] <= curve.high[20]


def test_a_curve_needs_some_numbers_and_some_steps() -> None:
    points = scored([0.4] * 6, seed=1)
    no_numbers = [point._replace(value=math.nan) for point in points[:3]]

    assert smooth(points[:3]) is None
    assert smooth([*points[:3], *no_numbers]) is None
    assert smooth([point._replace(step=1) for point in points]) is None
    assert smooth([*points, *no_numbers]) == smooth(points)


def test_the_order_of_scores_does_not_matter_and_several_may_have_one_step() -> None:
    points = scored([0.4] * 20, seed=1)
    twice = [*points, points[7]._replace(value=0.41)]

    assert smooth(points[::-1]) == smooth(points)
    assert fitted(twice).steps.count(7000) == 2


@pytest.mark.parametrize("value", [0.0, 1.0])
@pytest.mark.parametrize("items", [1, 50])
def test_all_right_or_all_wrong_is_no_certainty(value: float, items: int) -> None:
    error = item_error(value, 0.0, items)
    curve = fitted([Point(step, value, error) for step in range(10)])

    assert 0 <= curve.low[5] <= value <= curve.high[5] <= 1
    assert curve.high[5] - curve.low[5] > 0.01
    assert item_error(0.3, 0.02, 50) == 0.02


def test_scores_without_an_error_are_smoothed_by_their_own_scatter() -> None:
    draw = np.random.default_rng(0)
    points = [Point(step, 20 - step / 10 + draw.normal(0, 0.5), 0.0) for step in range(40)]

    curve = fitted_plain(points)

    assert curve.slope_low < -0.1 < curve.slope_high < 0
    assert 0.1 < curve.high[20] - curve.low[20] < 1


def fitted_plain(points: list[Point]) -> Curve:
    curve = smooth(points)
    assert curve is not None
    return curve


def test_history_shows_slopes_and_change_points(tmp_path: Path) -> None:
    for place in range(20):
        run_of(
            tmp_path, 100 * (place + 1), {"a": 0.5 - 0.2 * (place >= 12), "b": 0.3 + place / 200}
        )

    text = call(tmp_path, "history", "--curve").stdout
    document = json.loads(call(tmp_path, "history", "--curve", "--json").stdout)
    refused = call(tmp_path, "history", "--curve", "--csv")

    assert "per 1,000 steps" in text
    assert "1,300" in text
    curve = document["curves"][TRAINING]["b"]
    assert len(curve["level"]) == len(curve["low"]) == 20
    assert curve["slope_low"] < 5e-5 < curve["slope_high"]
    assert [change["step"] for change in document["curves"][TRAINING]["a"]["changes"]] == [1300]
    assert "--curve" in str(refused.exception)


def test_few_checkpoints_have_no_curve_and_say_so(tmp_path: Path) -> None:
    for step in (100, 200):
        run_of(tmp_path, step, {"a": 0.5, "b": 0.3})

    assert "too few checkpoints" in call(tmp_path, "history", "--curve").stdout
    assert "curves" not in json.loads(call(tmp_path, "history", "--json").stdout)
