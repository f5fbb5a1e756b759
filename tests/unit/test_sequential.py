"""Looks at a difference while items come in: published bounds, false alarms, and decisions."""

import numpy as np
import pytest

from coordinate_eval.coordinator.comparison.sequential import bounds, deviations, look, spent


@pytest.mark.parametrize(
    ("information", "published"),
    [
        # As tables of Lan and DeMets' function have them, 5 % to two sides.
        ([0.25, 0.5, 0.75, 1.0], [4.333, 2.963, 2.359, 2.014]),
        ([0.2, 0.4, 0.6, 0.8, 1.0], [4.877, 3.357, 2.680, 2.290, 2.031]),
        ([1.0], [1.960]),
    ],
)
def test_bounds_are_the_published_ones(information: list[float], published: list[float]) -> None:
    assert bounds(information) == pytest.approx(published, abs=1e-3)
    assert spent(1.0) == pytest.approx(0.05)


def test_information_that_hardly_grows_or_shrinks_is_borne() -> None:
    found = bounds([0.38, 0.8, 0.79, 0.79, 1.0])
    assert found[0] == pytest.approx(bounds([0.38])[0])
    assert all(1.9 < bound < 8.1 for bound in found)


@pytest.mark.parametrize("drift", [0.0, 2.8])
def test_looking_often_costs_neither_false_alarms_nor_power(drift: float) -> None:
    information = np.array([0.38, 0.8, 0.97, 1.0])
    draws = np.random.default_rng(1)
    steps = np.diff(information, prepend=0.0)
    scores = draws.normal(drift * steps, np.sqrt(steps), (3000, len(steps))).cumsum(axis=1)
    called, early, same = 0, 0, 0
    for walk in scores:
        full = abs(walk[-1]) > 1.96
        for number, share in enumerate(information):
            stderr = 1 / np.sqrt(share)
            value = walk[number] / share
            found = look(value, stderr, abs(value) / stderr, information[: number + 1].tolist())
            if found.decision:
                break
        called += found.decision == "different"
        early += number < 3
        same += (found.decision == "different") == full
    assert found.decision  # at the last look at the latest
    if drift:
        assert called / 3000 == pytest.approx(0.8, abs=0.04)
    else:
        assert called / 3000 < 0.055
    assert early / 3000 > 0.9
    assert same / 3000 > 0.93


def test_a_difference_that_is_far_from_both_sides_waits_for_items() -> None:
    undecided = look(0.01, 0.006, 0.01 / 0.006, [0.5])
    assert undecided.decision == "" and 0.05 < undecided.likely < 0.95
    assert look(0.01, 0.006, 0.01 / 0.006, [0.5, 1.0]).decision == "no difference"
    assert look(0.0, 0.006, 0.0, [0.8]).decision == "no difference"
    assert look(0.03, 0.006, 5.0, [0.38]).decision == "different"


def test_p_values_are_read_as_deviations() -> None:
    assert deviations(0.05) == pytest.approx(1.96, abs=1e-3)
    assert deviations(1.0) == pytest.approx(0.0)
    assert deviations(0.0) == float("inf")
