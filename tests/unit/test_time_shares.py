"""Shares of an engine's time: they add up, follow the work, and what waits pays nothing."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinate_eval.priors.time_shares import Shares
from coordinate_eval.records import Request, RequestKind


class Clock:
    """A clock that is moved by hand."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def scored(item: int, tokens: int = 10) -> Request:
    return Request(
        dataset="d", item=item, task="t", doc=item, prompt_hash="",
        kind=RequestKind.LOGLIKELIHOOD, tokens=[1] * (tokens - 1), continuation=[1],
    )  # fmt: skip


def generated(item: int, tokens: int = 10, limit: int = 100) -> Request:
    return Request(
        dataset="d", item=item, task="t", doc=item, prompt_hash="", kind=RequestKind.GENERATE,
        tokens=[1] * tokens, max_tokens=limit,
    )  # fmt: skip


Step = tuple[str, float, int]
"""Pull or answer, seconds that pass before, and the tokens pulled or which one is answered."""

STEPS = st.lists(
    st.tuples(st.sampled_from(["pull", "answer"]), st.floats(0, 100), st.integers(2, 1000)),
    max_size=80,
)


def play(steps: list[Step]) -> tuple[dict[int, float], float]:
    """Each request's share under continuous batching, and the time in which any was in flight;
    all are answered.
    """
    clock = Clock()
    shares = Shares(256, clock)
    flight: list[Request] = []
    found: dict[int, float] = {}
    busy, pulled = 0.0, 0
    for what, seconds, which in [*steps, *[("answer", 1.0, 0)] * len(steps)]:
        clock.now += seconds
        busy += seconds if flight else 0.0
        if what == "pull":
            flight.append(scored(pulled, which))
            shares.pulled(flight[-1])
            pulled += 1
        elif flight:
            answered = flight.pop(which % len(flight))
            found[answered.item] = shares.answered(answered, None)
    assert not flight
    return found, busy


@given(STEPS)
def test_shares_add_up_to_the_time_in_which_the_engine_worked(steps: list[Step]) -> None:
    found, busy = play(steps)
    assert sum(found.values()) == pytest.approx(busy)
    assert all(seconds >= 0 for seconds in found.values())


@given(
    st.lists(st.tuples(st.integers(2, 500), st.floats(0, 50)), min_size=1, max_size=40),
    st.integers(1, 7),
    st.integers(1, 4),
)
def test_shares_of_batches_add_up_too(work: list[tuple[int, float]], size: int, ahead: int) -> None:
    """An engine that pulls some batches ahead, sorts them, and answers one batch at a time."""
    clock = Clock()
    shares = Shares(256, clock)
    requests = [scored(item, tokens) for item, (tokens, _) in enumerate(work)]
    total = busy = 0.0
    for start in range(0, len(requests), size * ahead):
        window = requests[start : start + size * ahead]
        for request in window:
            shares.pulled(request)
        window.sort(key=lambda r: len(r.tokens))
        for first in range(0, len(window), size):
            batch = window[first : first + size]
            clock.now += (passed := work[batch[0].item][1])
            paid = sum(shares.answered(request, batch) for request in batch)
            assert paid == pytest.approx(passed)
            total, busy = total + paid, busy + passed
    assert total == pytest.approx(busy)


@given(st.permutations(range(6)), st.booleans())
def test_answers_of_one_moment_may_come_in_any_order(order: list[int], batched: bool) -> None:
    clock = Clock()
    shares = Shares(256, clock)
    requests = [scored(item) for item in range(6)]
    for request in requests:
        shares.pulled(request)
    clock.now += 12.0
    batch = requests if batched else None
    assert [shares.answered(requests[i], batch) for i in order] == pytest.approx([2.0] * 6)


def test_who_has_more_to_compute_pays_more() -> None:
    clock = Clock()
    shares = Shares(256, clock)
    for request in (short := scored(0, 10), long := scored(1, 90)):
        shares.pulled(request)
    clock.now += 5.0
    assert shares.answered(short, None) == pytest.approx(0.5)
    assert shares.answered(long, None) == pytest.approx(4.5)


def test_what_a_prompt_shares_with_the_one_before_it_costs_nothing() -> None:
    clock = Clock()
    shares = Shares(256, clock)
    alone = generated(0, 160).model_copy(update={"tokens": [2] * 160, "max_tokens": 1})
    choices = [scored(1, 160 + length).model_copy(update={"index": length}) for length in (1, 9)]
    for request in (alone, *choices):
        shares.pulled(request)
    clock.now += 3.3
    first, second = (shares.answered(choice, None) for choice in choices)
    assert second < first / 10
    assert first == pytest.approx(shares.answered(alone, None), rel=0.1)


def test_a_prompt_costs_more_than_a_step_of_each_text_beside_it() -> None:
    """A full batch writes on, and one long prompt is scored in a single step."""
    clock = Clock()
    shares = Shares(256, clock)
    texts = [generated(item, limit=1000) for item in range(255)]
    for request in (*texts, prompt := scored(999, 1000)):
        shares.pulled(request)
    clock.now += 1.0
    assert 0.5 < shares.answered(prompt, None) < 0.8


def test_a_batch_is_paid_by_those_for_whom_it_goes_on() -> None:
    clock = Clock()
    shares = Shares(256, clock)
    batch = [generated(item, limit=200 if item < 4 else 10) for item in range(8)]
    for request in batch:
        shares.pulled(request)
    clock.now += 10.0
    paid = [shares.answered(request, batch) for request in batch]
    assert sum(paid) == pytest.approx(10.0)
    assert min(paid[:4]) > 10 * max(paid[4:])


def test_a_text_without_a_limit_is_no_error() -> None:
    clock = Clock()
    shares = Shares(256, clock)
    shares.pulled(generated(0, limit=0))
    clock.now += 1.0
    assert shares.answered(generated(0, limit=0), None) == 1.0


def test_a_long_request_pays_for_the_time_it_had_alone() -> None:
    clock = Clock()
    shares = Shares(256, clock)
    shares.pulled(generated(0))
    shares.pulled(generated(1))
    clock.now += 4.0
    assert shares.answered(generated(0), None) == pytest.approx(2.0)
    clock.now += 10.0
    assert shares.answered(generated(1), None) == pytest.approx(12.0)


def test_time_without_requests_is_nobodys() -> None:
    clock = Clock()
    shares = Shares(256, clock)
    shares.pulled(scored(0))
    clock.now += 1.0
    assert shares.answered(scored(0), None) == 1.0
    clock.now += 1000.0
    shares.pulled(scored(1))
    clock.now += 2.0
    assert shares.answered(scored(1), None) == pytest.approx(2.0)


def test_an_answer_that_was_not_asked_for_costs_nothing() -> None:
    clock = Clock()
    shares = Shares(256, clock)
    assert shares.answered(scored(7), None) == 0.0
    shares.pulled(scored(0))
    clock.now += 3.0
    assert shares.answered(scored(7), None) == 0.0
    assert shares.answered(scored(0), None) == pytest.approx(3.0)


def test_what_is_dropped_has_cost_its_share_until_then_and_nothing_later() -> None:
    clock = Clock()
    shares = Shares(256, clock)
    first, second, third = (scored(number) for number in range(3))
    for each in (first, second, third):
        shares.pulled(each)
    shares.answered(third, None)
    clock.now += 10
    shares.dropped("d", [first.identity(), scored(9).identity()])
    clock.now += 10
    assert shares.answered(second, None) == pytest.approx(15)
    assert shares.answered(first, None) == 0


def test_all_may_be_dropped() -> None:
    clock = Clock()
    shares = Shares(256, clock)
    shares.pulled(scored(0))
    shares.dropped("d", [scored(0).identity()])
    shares.pulled(scored(1))
    clock.now += 10
    assert shares.answered(scored(1), None) == pytest.approx(10)
