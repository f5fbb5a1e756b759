"""Conversations in engines: how a turn follows from the one before, and what the whole counts."""

import itertools
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinate_eval.coordinator.run.measurements import Tally
from coordinate_eval.evaluators.engines import common
from coordinate_eval.evaluators.engines.simulated import WORDS, SimulatedEngine, answer
from coordinate_eval.evaluators.engines.turns import Turns, tokens_of
from coordinate_eval.priors import catalogue, time_shares
from coordinate_eval.records import (
    Dataset,
    Request,
    RequestKind,
    Response,
    Span,
    Turn,
    computed_by_turns,
    prompt_lengths,
)


def ask(item: int = 0, **fields: Any) -> Request:
    wanted = {"item": item, "doc": item, "max_tokens": 30} | fields
    return common.probe(RequestKind.GENERATE, [1, 2, item], **wanted)


def chars(text: str) -> list[int]:
    return list(map(ord, text))


def said(text: str, tokens: list[str], stop: str) -> str:
    """The text that the next turn sees of these tokens, each with its characters."""
    whole = "".join(tokens)
    ends = list(itertools.accumulate(map(len, tokens)))
    found = tokens_of(whole[: whole.index(stop)], list(range(1000, 1000 + len(ends))), ends, chars)
    return "".join(tokens[t - 1000] if t >= 1000 else chr(t) for t in found)


@pytest.mark.parametrize(
    ("tokens", "kept"),
    [
        (["one", " two", "\n", "\n"], "one two"),
        (["one", " two", ".\n\n"], "one two."),  # the stop string begins within a token
        (["\n\n"], ""),
        (["one", "", "", "é\n\nA"], "oneé"),  # characters of several tokens are known at the last
        (["one", "", "\n", "\n"], "one"),
    ],
)
def test_an_answer_is_cut_before_its_stop_string(tokens: list[str], kept: str) -> None:
    assert said("", tokens, "\n\n") == kept


@given(st.lists(st.text("ab", max_size=3), min_size=1), st.data())
def test_a_cut_answer_has_the_text_before_the_cut(tokens: list[str], data: st.DataObject) -> None:
    whole = "".join(tokens)
    text = whole[: data.draw(st.integers(0, len(whole)))]
    ends = list(itertools.accumulate(map(len, tokens)))
    found = tokens_of(text, list(range(1000, 1000 + len(ends))), ends, chars)
    assert "".join(tokens[t - 1000] if t >= 1000 else chr(t) for t in found) == text
    kept = [t for t in found if t >= 1000]
    assert found[: len(kept)] == kept == list(range(1000, 1000 + len(kept)))


def test_a_text_that_has_others_before_it_begins_with_no_space_of_the_tokenizer() -> None:
    tokenizers = pytest.importorskip("tokenizers")
    vocabulary = {"▁": 0, "a": 1, "b": 2, ".": 3, "▁a": 4, "▁ab": 5}
    merges = [("▁", "a"), ("▁a", "b")]
    made = tokenizers.Tokenizer(tokenizers.models.BPE(vocabulary, merges))
    made.pre_tokenizer = tokenizers.pre_tokenizers.Metaspace(prepend_scheme="always")

    def encode(text: str) -> list[int]:
        found: list[int] = made.encode(text, add_special_tokens=False).ids
        return found

    assert encode(".b") == [0, 3, 2]
    assert common.inner_tokens(encode, ".b") == [3, 2]
    assert common.inner_tokens(encode, " a") == [4]
    assert common.inner_tokens(encode, "b") == encode("b")  # with a letter before it, it is another
    assert common.inner_tokens(encode, "") == []


def test_a_turn_follows_prompt_and_answer() -> None:
    turns = Turns(ask(follow_ups=[[50, 51], [60]]), max_length=100)
    assert turns.add("a", 3, "stop", lambda: [7, 8]) is None
    assert turns.prompt == [1, 2, 0, 7, 8, 50, 51]
    assert turns.add("b", 2, "length", lambda: [9]) is None
    assert turns.prompt == [1, 2, 0, 7, 8, 50, 51, 9, 60]

    def never() -> list[int]:
        raise AssertionError("nothing follows the last answer")

    response = turns.add("c", 1, "stop", never)
    assert response is not None
    assert (response.text, response.tokens, response.finish) == ("a", 3, "stop")
    assert [(t.text, t.tokens, t.finish) for t in response.turns] == [
        ("b", 2, "length"),
        ("c", 1, "stop"),
    ]


def test_a_conversation_that_outgrows_the_context_loses_its_beginning() -> None:
    turns = Turns(ask(max_tokens=6, follow_ups=[[50, 51]]), max_length=12)
    turns.add("a", 5, "length", lambda: [3, 4, 5, 6, 7])
    assert turns.prompt == [4, 5, 6, 7, 50, 51]
    small = Turns(ask(max_tokens=60, follow_ups=[[50, 51]]), max_length=12)
    small.add("a", 1, "stop", lambda: [3])
    assert small.prompt == [51]


@given(st.integers(0, 3), st.integers(1, 9), st.integers(8, 60))
def test_a_conversation_is_single_requests_with_longer_prompts(
    more: int, limit: int, max_length: int
) -> None:
    whole = ask(max_tokens=limit, follow_ups=[[90 + n, n] for n in range(more)])
    found = answer(whole, max_length)
    prompt, texts = whole.tokens, []
    for number in range(more + 1):
        single = answer(ask(tokens=prompt, max_tokens=limit))
        texts.append((single.text, single.tokens, single.finish))
        follow_up = whole.follow_ups[number] if number < more else []
        words = [] if single.text is None else _words(single.text)
        prompt = [*prompt, *words, *follow_up][-max(1, max_length - limit) :]
    assert texts == [
        (found.text, found.tokens, found.finish),
        *((turn.text, turn.tokens, turn.finish) for turn in found.turns),
    ]


def _words(text: str) -> list[int]:
    return [WORDS.index(word) for word in text.split(" ")]


def test_conversations_are_answered_once_each_among_others() -> None:
    requests = [ask(n, follow_ups=[[5]] * (n % 3)) for n in range(50)]
    pulled = 0

    def source() -> Iterator[Request]:
        nonlocal pulled
        for request in requests:
            pulled += 1
            yield request

    found: dict[int, Response] = {}
    for response in SimulatedEngine(args={"concurrency": 4}).run(source()):
        assert pulled <= len(found) + 4
        found[response.item] = response
    assert [len(found[n].turns) for n in range(50)] == [n % 3 for n in range(50)]
    assert found == {n: answer(requests[n]) for n in range(50)}


def test_a_sampled_request_has_its_own_seed() -> None:
    hot = {"temperature": 1.0}
    seeds = [
        common.sampling(ask(doc, repeat=repeat, prompt_hash=prompt, sampling=hot))["seed"]
        for doc in range(3)
        for repeat in range(3)
        for prompt in "ab"
    ]
    assert len({*seeds}) == len(seeds) and min(seeds) >= 0
    again = ask(0, prompt_hash="a", sampling=hot, dataset="under another name")
    assert common.sampling(again)["seed"] == seeds[0]
    assert common.sampling(ask(sampling=hot | {"seed": 3.0}))["seed"] == 3


def test_all_turns_count() -> None:
    request = ask(tokens=[1] * 40, follow_ups=[[2] * 10, [3] * 20])
    assert prompt_lengths(request) == [40, 50, 70]
    assert computed_by_turns(request) == 32 + 48
    assert time_shares.steps(request) == 3 * time_shares.steps(ask())
    turn = Turn(text="x", tokens=5, finish="stop")
    response = common.respond(request, text="x", tokens=7, finish="stop", turns=[turn, turn])
    tally = Tally()
    tally.add(response, 1.0)
    tally.add(common.respond(ask(1), text="x", tokens=9, finish="stop"), 1.0)
    done = tally.to_line(Span("d", 0, 2))
    assert (done.requests, done.output_tokens, done.longest_output_tokens) == (4, 26, 17)


def test_the_longest_item_of_a_conversation_says_all_turns() -> None:
    entry = catalogue.entries()["mt_bench"]
    work = catalogue.predicted_work(Dataset(name="mt_bench"))
    assert entry.requests_per_item == 2 and work is not None
    assert work.requests == 160
    assert work.longest_output_tokens == 2 * entry.max_output_tokens
