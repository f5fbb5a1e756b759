"""Shares of an engine's time: they add up, and what waits pays nothing."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinate_eval.priors.attribute import Shares


class Clock:
    """A clock that is moved by hand."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


Step = tuple[str, float, int]
"""Pull or answer, seconds that pass before, and which of those in flight is answered."""

STEPS = st.lists(
    st.tuples(st.sampled_from(["pull", "answer"]), st.floats(0, 100), st.integers(0, 1000)),
    max_size=80,
)


def play(steps: list[Step], at_once: int) -> tuple[dict[int, float], float]:
    """Each request's share, and the time in which any was in flight; all are answered."""
    clock = Clock()
    shares = Shares(at_once, clock)
    flight: list[int] = []
    found: dict[int, float] = {}
    busy, pulled = 0.0, 0
    for what, seconds, which in [*steps, *[("answer", 1.0, 0)] * len(steps)]:
        clock.now += seconds
        busy += seconds if flight else 0.0
        if what == "pull":
            shares.pulled(pulled)
            flight.append(pulled)
            pulled += 1
        elif flight:
            answered = flight.pop(which % len(flight))
            found[answered] = shares.answered(answered)
    assert not flight
    return found, busy


@given(STEPS, st.integers(1, 12))
def test_shares_add_up_to_the_time_in_which_the_engine_worked(
    steps: list[Step], at_once: int
) -> None:
    found, busy = play(steps, at_once)
    assert sum(found.values()) == pytest.approx(busy)
    assert all(seconds >= -1e-9 for seconds in found.values())


@given(st.permutations(range(6)))
def test_answers_of_one_moment_may_come_in_any_order(order: list[int]) -> None:
    clock = Clock()
    shares = Shares(8, clock)
    for request in range(6):
        shares.pulled(request)
    clock.now += 12.0
    assert [shares.answered(request) for request in order] == pytest.approx([2.0] * 6)


def test_a_long_request_pays_for_the_time_it_had_alone() -> None:
    clock = Clock()
    shares = Shares(8, clock)
    shares.pulled("short")
    shares.pulled("long")
    clock.now += 4.0
    assert shares.answered("short") == 2.0
    clock.now += 10.0
    assert shares.answered("long") == 12.0


def test_time_without_requests_is_nobodys() -> None:
    clock = Clock()
    shares = Shares(8, clock)
    shares.pulled("first")
    clock.now += 1.0
    assert shares.answered("first") == 1.0
    clock.now += 1000.0
    shares.pulled("second")
    clock.now += 2.0
    assert shares.answered("second") == 2.0


def test_what_waits_in_a_look_ahead_pays_nothing() -> None:
    """As an engine of batches does: it pulls four batches, sorts, and answers one at a time."""
    clock = Clock()
    shares = Shares(2, clock)
    for request in range(8):
        shares.pulled(request)
    found = {}
    for seconds, batch in ((10.0, (6, 7)), (2.0, (0, 3)), (4.0, (1, 5)), (6.0, (2, 4))):
        clock.now += seconds
        found[batch] = [shares.answered(request) for request in batch]
    assert found == {(6, 7): [5.0, 5.0], (0, 3): [1.0, 1.0], (1, 5): [2.0, 2.0], (2, 4): [3.0, 3.0]}


def test_an_answer_that_was_not_asked_for_costs_nothing() -> None:
    clock = Clock()
    shares = Shares(4, clock)
    shares.pulled("asked")
    clock.now += 3.0
    assert shares.answered("other") == 0.0
    assert shares.answered("asked") == 3.0
