"""Scores of choices, put together from what a vLLM with a prefix cache returns of them."""

import random
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinate_eval.errors import EngineError
from coordinate_eval.evaluators.engines.common import probe
from coordinate_eval.evaluators.engines.scoring import Ask, Scoring, together
from coordinate_eval.records import Request, RequestKind, Response

BLOCK = 4
"""Tokens of a block of the cache under test."""

TOKENS = range(5)


def model(before: Sequence[int]) -> dict[int, Any]:
    """A made-up model: what it gives to each token after a text."""
    made = random.Random(str(tuple(before)))
    return {token: SimpleNamespace(logprob=-made.randint(1, 9) / 8) for token in TOKENS}


class Vllm:
    """Answers as vLLM does: rows of cached tokens are missing, and it counts what it computes."""

    def __init__(self, *, obeys: bool = True, gives: bool = True, forgets: int = 0) -> None:
        self.cached: set[tuple[int, ...]] = set()
        self.computed = 0
        self.asked = 0
        self.obeys = obeys
        self.gives = gives
        self.forgets = forgets

    def answer(self, ask: Ask) -> Any:
        """Return what a `RequestOutput` has of it."""
        self.asked += 1
        tokens = tuple(ask.tokens)
        ends = range(BLOCK, len(tokens), BLOCK)  # at least the last token is computed
        found = [end for end in ends if tokens[:end] in self.cached]
        count = max(found, default=0) if ask.read_cache or not self.obeys else 0
        self.cached |= {tokens[:end] for end in range(BLOCK, len(tokens) + 1, BLOCK)}
        self.computed += len(tokens) - count
        rows = [model(tokens[:n]) for n in range(count + 1, len(tokens) + 1)]
        given = rows[self.forgets if ask.read_cache else 0 : -1]
        last = max(TOKENS, key=lambda token: rows[-1][token].logprob)
        answer = SimpleNamespace(token_ids=[last], logprobs=rows[-1:])
        return SimpleNamespace(
            outputs=[answer],
            prompt_logprobs=[None, *given] if self.gives else None,
            num_cached_tokens=count,
        )

    def score(self, requests: list[Request], most_ids: int = 128) -> list[Response]:
        """The responses to requests that are asked for together."""
        scoring = Scoring(requests, most_ids)
        asks, responses = scoring.asks(), list[Response]()
        while asks:
            assert not responses
            asks = [more for ask in asks for more in self.took(scoring, ask, responses)]
        return responses

    def took(self, scoring: Scoring, ask: Ask, responses: list[Response]) -> list[Ask]:
        done, more = scoring.take(ask, self.answer(ask))
        responses += done
        return more


def request(context: Sequence[int], then: Sequence[int], **fields: object) -> Request:
    asked = {"tokens": context, "continuation": then, **fields}
    return probe(RequestKind.LOGLIKELIHOOD, [], **asked)


def expected(one: Request) -> tuple[float, bool]:
    total, greedy = 0.0, True
    text = [*one.tokens, *one.continuation]
    for place in range(len(one.tokens), len(text)):
        row = model(text[:place])
        total += row[text[place]].logprob
        greedy = greedy and row[text[place]].logprob >= max(r.logprob for r in row.values())
    return total, greedy


texts = st.lists(st.sampled_from(TOKENS), min_size=1, max_size=3)
items = st.lists(
    st.tuples(st.integers(1, 10), st.lists(texts, min_size=1, max_size=5)), min_size=1, max_size=5
)


@given(items, st.sampled_from([0, 1, 2, 128]))
def test_scores_are_the_model_s_whatever_was_cached(
    made: list[tuple[int, list[list[int]]]], most_ids: int
) -> None:
    vllm = Vllm()
    for length, choices in made:
        context = [n % len(TOKENS) for n in range(length)]
        requests = [request(context, then * 3 if length % 2 else then) for then in choices]
        found = [(r.logprob, r.greedy) for r in vllm.score(requests, most_ids)]
        assert found == [expected(one) for one in requests]


def test_choices_of_one_token_take_one_request() -> None:
    vllm = Vllm()
    choices = [request([0, 1, 2, 3, 4], [token]) for token in TOKENS]
    assert [r.logprob for r in vllm.score(choices)] == [expected(one)[0] for one in choices]
    assert (vllm.asked, vllm.computed) == (1, 5)


@pytest.mark.parametrize(("length", "computed"), [(8, 8 + 3 + 2 * 3 + 4), (9, 9 + 3 + 2 * 4)])
def test_a_context_of_whole_blocks_is_computed_once(length: int, computed: int) -> None:
    vllm = Vllm()
    context = [n % 3 for n in range(length)]
    vllm.score([request(context, [token, 4, 4]) for token in range(3)])
    assert vllm.computed == computed


def test_choices_without_a_context_share_what_they_begin_with() -> None:
    vllm = Vllm()
    shared = [1, 2] * 10
    vllm.score([request([0], [*shared, token, 4, 4]) for token in range(3)])
    assert vllm.computed == 24 + 2 * 4


def test_without_ids_texts_are_computed_again() -> None:
    vllm = Vllm()
    requests = [request([1] * 8, [token, 2]) for token in range(3)]
    assert [r.logprob for r in vllm.score(requests, 0)] == [expected(one)[0] for one in requests]
    assert vllm.asked == 5


def test_missing_rows_are_an_error() -> None:
    deaf, mute = Vllm(obeys=False), Vllm(gives=False)
    one = request([1] * 8, [2, 2])
    deaf.score([one], 0)
    with pytest.raises(EngineError, match="enable_prefix_caching"):
        deaf.score([one], 0)
    with pytest.raises(EngineError, match="max_logprobs"):
        mute.score([one])


@pytest.mark.parametrize("most_ids", [0, 128])
@pytest.mark.parametrize("forgets", [1, 5, 9, 10, 11])
def test_rows_that_an_engine_forgot_are_asked_for_again(forgets: int, most_ids: int) -> None:
    requests = [request([1] * 8, [token, 2, 3]) for token in range(3)]
    found = Vllm(forgets=forgets).score(requests, most_ids)
    assert [r.logprob for r in found] == [expected(one)[0] for one in requests]


def test_only_scores_of_the_same_item_wait_for_each_other() -> None:
    made = [
        request([1], [2]), request([1], [3]), request([1], [2], item=1),
        request([1], [2], window=1),
        request([1], [], kind=RequestKind.GENERATE, max_tokens=1),
        request([1], [], kind=RequestKind.GENERATE, max_tokens=1, item=1),
    ]  # fmt: skip
    assert [len(group) for group in together(iter(made))] == [2, 1, 1, 1, 1]
