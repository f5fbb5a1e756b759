"""Differences of two checkpoints: against published formulas, and against simulated truth."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binomtest, bootstrap, ttest_rel

from coordinate_eval.coordinator.comparison.paired import (
    Floats,
    Stratum,
    detectable,
    difference,
    mcnemar,
    sign_flip,
    weighted_difference,
)


def of(first: Floats, second: Floats, clusters: list[int] | None = None) -> Stratum:
    """One task that is the whole dataset."""
    return Stratum(np.asarray(first, float), np.asarray(second, float), clusters or [], 1.0)


def pair(seed: int, groups: int, size: int, gain: float = 0.0) -> tuple[Floats, Floats, list[int]]:
    """Rights and wrongs of two checkpoints: what items of a passage share, they share in part."""
    draws = np.random.default_rng(seed)
    items = groups * size

    def shared() -> Floats:
        return np.repeat(draws.normal(size=groups), size)

    hardness = 0.7 * shared() + 0.7 * draws.normal(size=items)
    found = [
        (0.9 * hardness + 0.3 * draws.normal(size=items) + 0.3 * shared() + more > 0).astype(float)
        for more in (0.0, gain)
    ]
    return found[0], found[1], np.repeat(np.arange(groups), size).tolist()


@given(st.lists(st.tuples(st.booleans(), st.booleans()), min_size=2, max_size=60))
def test_right_and_wrong_have_the_p_value_of_mcnemar(answers: list[tuple[bool, bool]]) -> None:
    first, second = np.array(answers, float).T
    gained, lost = int((second > first).sum()), int((second < first).sum())
    expected = binomtest(gained, gained + lost).pvalue if gained + lost else 1.0
    found = difference([of(first, second)])
    assert found.p == pytest.approx(expected)
    assert found.p == mcnemar(gained, lost)
    assert found.value == pytest.approx(second.mean() - first.mean())
    assert -1 <= found.low <= found.value <= found.high <= 1


def test_intervals_are_those_of_the_paired_bootstrap() -> None:
    draws = np.random.default_rng(3)
    right, better, _ = pair(3, 1500, 1, 0.1)
    graded = draws.normal(size=900)
    for first, second in ((right, better), (graded, graded + draws.normal(0.02, 0.3, 900))):
        found = difference([of(first, second)])
        sampled = bootstrap(
            (second - first,), np.mean, n_resamples=4000, method="percentile", rng=draws
        )
        interval = sampled.confidence_interval
        wide = interval.high - interval.low
        assert found.high - found.low == pytest.approx(wide, rel=0.06)
        assert found.low == pytest.approx(interval.low, abs=0.06 * wide)


def test_graded_items_have_the_p_value_of_students_test() -> None:
    draws = np.random.default_rng(4)
    for count in (40, 3000):
        first = draws.normal(size=count)
        second = first + draws.normal(0.5 / math.sqrt(count), 0.3, count)
        found = difference([of(first, second)])
        assert found.p == pytest.approx(ttest_rel(second, first).pvalue, rel=0.15)


def test_few_graded_items_count_all_flips() -> None:
    assert sign_flip(np.array([0.1, 0.2, 0.3])) == 0.25  # 2 of the 8 flips: all, and none
    assert sign_flip(np.array([])) == 1.0


@pytest.mark.parametrize(("groups", "size"), [(400, 1), (200, 5), (50, 8)])
def test_equal_checkpoints_are_called_different_in_three_to_six_per_cent(
    groups: int, size: int
) -> None:
    pairs = [pair(seed, groups, size) for seed in range(1000)]
    found = [difference([of(a, b, c if size > 1 else [])]) for a, b, c in pairs]
    assert 30 <= sum(each.p < 0.05 for each in found) <= 60
    assert 30 <= sum(not each.low <= 0 <= each.high for each in found) <= 65
    if size > 1:  # as single items they are called so far too often
        alone = [difference([of(a, b)]) for a, b, _ in pairs]
        assert sum(each.p < 0.05 for each in alone) > 90


def test_a_detectable_difference_is_found_in_four_of_five_cases() -> None:
    large = [pair(seed, 20_000, 1, 0.1)[:2] for seed in range(5)]
    truth = np.mean([(second - first).mean() for first, second in large])
    # As many items as make this difference the detectable one.
    items = round(
        500 * (detectable(difference([of(*pair(9, 500, 1, 0.1)[:2])]).stderr) / truth) ** 2
    )
    found = [difference([of(*pair(seed, items, 1, 0.1)[:2])]) for seed in range(10, 310)]
    assert sum(each.p < 0.05 for each in found) / len(found) == pytest.approx(0.8, abs=0.08)


def test_tasks_are_weighted_and_clusters_reach_across_them() -> None:
    first, second, _ = pair(5, 60, 1, 0.5)
    parts = [(first[:20], second[:20]), (first[20:], second[20:])]
    alone = difference([Stratum(a, b, [], 0.5) for a, b in parts])
    assert alone.value == pytest.approx(np.mean([(b - a).mean() for a, b in parts]))
    twice = [Stratum(first, second, list(range(60)), 0.5) for _ in range(2)]
    once = difference([of(first, second)])
    # A translation tells nothing new.
    assert difference(twice).stderr == pytest.approx(once.stderr, rel=0.05)
    assert difference(twice).p == pytest.approx(once.p)
    assert difference(twice).clusters == 60


def test_one_cluster_tells_nothing_and_items_that_agree_tell_little() -> None:
    one = difference([of(np.array([0.0, 1.0]), np.array([1.0, 1.0]), [0, 0])])
    assert (one.clusters, one.p, math.isnan(one.stderr)) == (1, 1.0, True)
    agreed = difference([of(np.array([0.0, 1.0, 1.0]), np.array([0.0, 1.0, 1.0]))])
    assert agreed.low < -0.3 < 0.3 < agreed.high
    wrong = difference([of(np.zeros(20), np.zeros(20))])
    assert (wrong.value, wrong.p) == (0.0, 1.0)
    assert wrong.low < -0.1 < 0.1 < wrong.high


def test_the_mean_over_datasets_has_less_noise_than_each() -> None:
    parts = [difference([of(*pair(seed, 300, 1, 0.1)[:2])]) for seed in range(9)]
    mean = weighted_difference([(1 / len(parts), part) for part in parts])
    assert mean.value == pytest.approx(np.mean([part.value for part in parts]))
    assert mean.stderr == pytest.approx(np.mean([part.stderr for part in parts]) / 3, rel=0.1)
    assert mean.low < mean.value < mean.high
