"""Predictions of the copy of the weights from copies that were made, on one node and several."""

import itertools
import math
import random
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.observed import NOW, on

from coordinate_eval.coordinator.planning.plan import Capacity
from coordinate_eval.priors import staging
from coordinate_eval.priors.observations import StageSeen
from coordinate_eval.priors.staging import Link

SIZE = 14_000_000_000
GUESS = 25.0

ALONE = 20.0
"""Seconds of a lone copy."""


def copy(seconds: float, nodes: float = 1.0, size: int = SIZE) -> StageSeen:
    return StageSeen(
        run="r", time=NOW, conditions=on(), node="n", storage="/ckpts", bytes=size,
        seconds=seconds, at_once=nodes, converted=False,
    )  # fmt: skip


def fitted(*seen: StageSeen) -> Link:
    return staging.fit(seen, [1.0] * len(seen), GUESS)


def runs(seconds: Callable[[int], float], *nodes: int) -> list[StageSeen]:
    """Copies of runs of so many nodes each, every node one."""
    return [copy(seconds(n), n) for n in nodes for _ in range(n)]


def test_with_nothing_seen_it_is_the_configured_link() -> None:
    assert staging.fit([], [], GUESS) == Link(GUESS, 0.0)
    assert Link(GUESS).seconds(SIZE, 64) == pytest.approx(SIZE * 8 / 25e9)


def test_a_link_of_each_nodes_own_serves_any_number() -> None:
    link = fitted(*runs(lambda n: ALONE, 1, 4, 16))
    for nodes in (1, 4, 16, 64):
        assert link.seconds(SIZE, nodes) == pytest.approx(ALONE, rel=0.05)


def test_a_link_that_one_node_fills_is_shared() -> None:
    link = fitted(*runs(lambda n: ALONE * n, 1, 4, 16))
    for nodes in (1, 2, 8, 64):
        assert link.seconds(SIZE, nodes) == pytest.approx(ALONE * nodes, rel=0.1)


def test_between_the_two_no_number_of_nodes_is_far_off() -> None:
    # Six nodes fill the storage's link.
    link = fitted(*runs(lambda n: ALONE * max(1, n / 6), 1, 4, 12))
    for nodes in (1, 4, 6, 12, 24):
        truth = ALONE * max(1, nodes / 6)
        assert truth / 1.6 < link.seconds(SIZE, nodes) < 1.6 * truth


@given(st.floats(0, 1), st.integers(0, 1000))
def test_what_copies_were_made_with_is_found(shared: float, seed: int) -> None:
    dice = random.Random(seed)
    truth = Link(SIZE * 8 / ALONE / 1e9, shared)
    link = fitted(*runs(lambda n: truth.seconds(SIZE, n) * math.exp(dice.gauss(0, 0.03)), 1, 2, 8))
    for nodes in (1, 2, 4, 8, 16):
        found = link.seconds(SIZE, nodes)
        assert found == pytest.approx(truth.seconds(SIZE, nodes), rel=0.2)


@pytest.mark.parametrize("nodes", [1, 8])
def test_one_number_of_nodes_says_nothing_of_sharing(nodes: int) -> None:
    link = fitted(*runs(lambda n: ALONE, nodes))
    assert link.shared == 0
    assert link.seconds(SIZE, nodes) == pytest.approx(ALONE, rel=0.1)


def test_two_runs_that_differ_a_little_prove_no_sharing() -> None:
    link = fitted(copy(ALONE, 1), copy(1.03 * ALONE, 2))
    assert link.seconds(SIZE, 16) < 1.6 * ALONE


def test_a_copy_behind_others_counts_once() -> None:
    link = fitted(*[copy(ALONE) for _ in range(9)], copy(50 * ALONE))
    assert link.seconds(SIZE, 1) < 1.6 * ALONE


def test_what_counts_little_stays_near_the_configured_link() -> None:
    link = staging.fit([copy(100 * ALONE)], [0.001], GUESS)
    assert link.gigabits_per_node == pytest.approx(GUESS, rel=0.2)
    assert link.shared == 0


@given(
    st.lists(
        st.tuples(
            st.floats(1e-6, 1e11), st.floats(1, 1e6), st.integers(1, 10**17), st.floats(1e-30, 1)
        ),
        min_size=1,
        max_size=12,
    ),
    st.floats(1e-3, 1e6),
)
def test_whatever_was_seen_a_plan_can_be_made_with_it(
    rows: list[tuple[float, float, int, float]], gigabits: float
) -> None:
    seen = [copy(seconds, nodes, size) for seconds, nodes, size, _ in rows]
    link = staging.fit(seen, [row[3] for row in rows], gigabits)
    Capacity(
        nodes=[],
        gpus_per_trial=1,
        engine_start_seconds=1,
        storage_gigabits_per_node=link.gigabits_per_node,
        storage_shared=link.shared,
        metric_cpus=1,
    )
    waits = [link.seconds(SIZE, nodes) for nodes in (1, 2, 100)]
    assert all(0 < a <= b < math.inf for a, b in itertools.pairwise(waits))
