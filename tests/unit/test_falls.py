"""Falls and stalls of simulated series: what the past does not explain is told, and no rise is."""

import numpy as np
import pytest

from coordinate_eval.coordinator.history.falls import Floats, falls
from coordinate_eval.coordinator.history.stalls import stalls

RATE = 0.0004
NOISE = 0.0025
COUNT = 60


def series(levels: Floats, seed: int) -> tuple[Floats, Floats, Floats]:
    """Steps, scores with noise around these levels, and their errors."""
    noise = np.random.default_rng(seed).normal(0, NOISE, len(levels))
    steps: Floats = 1000 * np.arange(len(levels), dtype=np.float64)
    return steps, levels + noise, np.full_like(steps, NOISE)


TIME: Floats = np.arange(COUNT, dtype=np.float64)
SHAPES: dict[str, Floats] = {
    "flat": np.full(COUNT, 0.5),
    "power law": 0.6 - 0.3 * np.exp(-0.4 * np.log(1 + TIME)),
    "a step up": 0.4 + np.where(TIME >= 25, 0.06, 0.0),
    "saturating at once": 0.6 - 0.3 * np.exp(-TIME / 2),
    "a warm-up": 0.3 + 0.2 / (1 + np.exp(-(TIME - 20) / 4)),
    "a decay of the learning rate": 0.4 + 0.0005 * TIME + 0.04 * np.clip((TIME - 30) / 3, 0, 1),
    "rising": 0.3 + 0.003 * TIME,
}


@pytest.mark.parametrize("shape", SHAPES)
def test_a_healthy_series_neither_falls_nor_stalls(shape: str) -> None:
    told = 0
    for seed in range(20):
        steps, values, errors = series(SHAPES[shape], seed)
        told += len(falls(steps, values, errors, RATE)) + len(stalls(steps, values))
    assert told <= 20 * COUNT / 100  # one in a hundred checkpoints


@pytest.mark.parametrize("shape", SHAPES)
def test_a_drop_is_found_within_two_checkpoints_also_soon_after_a_rise(shape: str) -> None:
    at = 40
    found = 0
    for seed in range(20):
        steps, values, errors = series(SHAPES[shape] - np.where(at <= TIME, 0.02, 0.0), seed)
        told = falls(steps[: at + 2], values[: at + 2], errors[: at + 2], RATE)
        found += any(each.first in (at, at + 1) and each.kind == "drop" for each in told)
    assert found >= 18


def test_a_drop_three_checkpoints_after_a_step_up_is_found() -> None:
    steps, values, errors = series(
        0.4 + np.where(TIME >= 30, 0.06, 0.0) - np.where(TIME >= 33, 0.02, 0.0), 1
    )
    told = falls(steps, values, errors, RATE)
    assert [each.first for each in told] in ([33], [34])
    assert told[0].expected == pytest.approx(0.46, abs=5 * NOISE)


def test_a_fall_ends_where_scores_are_back_or_where_the_lower_level_lasts() -> None:
    for length, last in ((4, 43), (20, 50)):
        low: Floats = np.where((TIME >= 40) & (40 + length > TIME), 0.45, 0.5)
        (told,) = falls(*series(low, 2), RATE)
        assert (told.first, told.last) == (40, last)


def test_a_stall_is_told_once_with_its_beginning_and_ends_where_scores_rise() -> None:
    time: Floats = np.arange(100, dtype=np.float64)
    stops = 0.3 + 0.004 * np.minimum(time, 40)
    stops += 0.004 * np.maximum(time - 70, 0)
    for seed in range(5):
        steps, values, _ = series(stops, seed)
        (told,) = stalls(steps, values)
        assert 40 < told.told <= 60
        assert 36 <= told.first <= 52
        assert 70 <= told.last <= 90
        assert told.now < told.before / 4
        assert 1000 * told.before == pytest.approx(0.004, rel=0.4)


def test_scores_that_bend_into_a_ceiling_or_reach_it_have_not_stalled() -> None:
    time: Floats = np.arange(100, dtype=np.float64)
    bent = [stalls(*series(0.7 - 0.3 * np.exp(-time / 15), seed)[:2]) for seed in range(20)]
    full = [stalls(*series(np.minimum(0.5 + 0.01 * time, 0.97), seed)[:2]) for seed in range(20)]
    assert sum(map(len, bent)) <= 2  # of 2,000 checkpoints
    assert not any(full)
