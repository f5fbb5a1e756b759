"""A loss that goes wrong for good is found, and nothing else is."""

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
from benchmarks._loss_curves import RIGHT, WRONG, curve
from hypothesis import given, settings
from hypothesis import strategies as st

from coordinate_eval.coordinator.training.points import Point
from coordinate_eval.coordinator.training.spikes import Detector, Spike


def training(
    change: Callable[[int], float] = lambda step: 0.0,
    *,
    steps: int = 1000,
    every: int = 1,
    scale: float = 1.0,
    seed: int = 0,
) -> list[Point]:
    """A loss that falls with noise, and what a change adds to it."""
    noise = random.Random(seed)
    return [
        Point(n, scale * (2 + 6 * (1 + n / 20) ** -0.5 + noise.gauss(0, 0.03) + change(n)))
        for n in range(every, steps + 1, every)
    ]


def follow(points: Sequence[Point]) -> Detector:
    detector = Detector()
    detector.take(points)
    return detector


def decided(points: Sequence[Point]) -> Spike:
    found = follow(points).open
    assert found is not None and found.decided is not None, found
    return found


@pytest.mark.parametrize("every", [1, 10, 50])
@pytest.mark.parametrize("scale", [0.001, 1.0, 1000.0])
def test_a_divergence_is_found_at_any_scale_and_interval(every: int, scale: float) -> None:
    steps = 1000 * max(1, every // 10)
    start = steps * 3 // 4

    found = decided(
        training(lambda n: max(0, n - start) / 40, steps=steps, every=every, scale=scale)
    )

    assert abs(found.onset - start) <= 50
    assert found.before < found.onset and found.kind == "divergence"


@pytest.mark.parametrize(("every", "bad", "onset"), [(1, 60, 501), (1, 40, None), (10, 60, 501)])
def test_gradients_that_stay_no_numbers_are_found_although_the_loss_is_one(
    every: int, bad: int, onset: int | None
) -> None:
    points = [
        replace(each, gradient_norm=math.nan if 500 < each.step <= 500 + bad else 1.0)
        for each in training(every=every)
    ]
    during = follow([each for each in points if each.step <= 500 + bad])
    assert (during.open and during.open.onset) == onset
    after = follow(points)
    assert after.open is None and len(after.found) == (onset is not None)
    never = [replace(each, gradient_norm=math.nan) for each in points]
    assert follow(never).open is None


def test_a_plateau_after_a_jump_is_found_where_it_begins() -> None:
    found = decided(training(lambda n: 0.4 * (n >= 700)))

    assert abs(found.onset - 700) <= 3 and found.kind == "plateau"
    assert found.decided is not None and found.decided < 800


def test_a_spike_that_recovers_is_noted_and_is_none() -> None:
    detector = follow(training(lambda n: 3 * math.exp(-(n - 600) / 20) * (n >= 600)))

    assert detector.open is None
    (noted,) = detector.found
    assert abs(noted.onset - 600) <= 3 and noted.decided is None
    assert noted.recovered is not None and 640 < noted.recovered < 800


@pytest.mark.parametrize("half", [100, 300])
def test_a_spike_that_recovers_slowly_is_none(half: int) -> None:
    points = training(lambda n: 2 * 0.5 ** ((n - 600) / half) * (n >= 600), steps=3000)

    detector = follow(points[:700])
    for start in range(700, 3000, 100):
        detector.take(points[start : start + 100])
        assert detector.open is None or detector.open.decided is None


def test_a_spike_that_begins_before_the_last_is_over_is_none_either() -> None:
    detector = follow(
        training(lambda n: sum(2 * math.exp((at - n) / 25) * (n >= at) for at in (600, 640, 680)))
    )

    assert detector.open is None
    assert all(spike.decided is None for spike in detector.found)


def test_a_jump_that_goes_part_of_the_way_back_and_stays_is_found() -> None:
    found = decided(training(lambda n: (n >= 700) * (0.8 + math.exp((700 - n) / 20)), steps=1200))

    assert abs(found.onset - 700) <= 3


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_loss_that_is_no_number_is_decided_by_the_second_report(bad: float) -> None:
    once = follow([*training(steps=300), Point(301, bad), *training(steps=330)[301:]])
    twice = decided([*training(steps=300), Point(301, bad), Point(302, bad)])
    first = decided([Point(1, bad), Point(2, bad)])

    assert once.open is None and once.found[0].kind == "not a number"
    assert (twice.kind, twice.onset, twice.before) == ("not a number", 301, 300)
    assert first.onset == 1


def test_outliers_and_a_rate_that_warms_up_again_are_no_divergence() -> None:
    noise = random.Random(1)
    outliers = follow(training(lambda n: 5.0 * (noise.random() < 0.02), steps=3000))
    warmed = follow(training(lambda n: 0.02 * (n >= 500), steps=3000))

    assert outliers.open is None and warmed.open is None


def test_a_restart_that_repeats_steps_begins_anew_from_there() -> None:
    bad = training(lambda n: max(0, n - 700) / 40, steps=800)
    detector = follow([*bad, *training(steps=1000)[600:]])

    assert detector.open is None
    assert detector.found[-1].recovered is None  # the training left it, and it did not pass


def test_the_norm_of_the_gradients_is_told_with_it() -> None:
    points = [
        Point(p.step, p.loss, 1.0 + 0.1 * math.sin(p.step) + 30 * (p.step >= 700))
        for p in training(lambda n: 0.5 * (n >= 700))
    ]

    assert decided(points).gradient is not None


@settings(deadline=None, max_examples=30)
@given(st.sampled_from([*WRONG, *RIGHT]), st.integers(0, 10**6), st.data())
def test_a_detector_goes_on_from_its_state(kind: str, seed: int, data: st.DataObject) -> None:
    points = curve(kind, seed, 3600).points[:400]
    cut = data.draw(st.integers(0, len(points)))
    whole, first = follow(points), follow(points[:cut])

    second = Detector.model_validate_json(first.line())
    second.take(points[cut:])

    assert str(second.open) == str(whole.open)
    assert str(second.found) == str(whole.found)
    assert len(second.line()) < 50_000


@settings(deadline=None, max_examples=100)
@given(st.lists(st.tuples(st.integers(0, 500), st.floats(), st.none() | st.floats()), max_size=200))
def test_any_reports_are_followed_without_an_error(
    reports: list[tuple[int, float, float | None]],
) -> None:
    detector = follow([Point(step, loss, norm) for step, loss, norm in reports])

    if detector.open is not None:
        assert detector.open.before < detector.open.onset <= detector.open.last
