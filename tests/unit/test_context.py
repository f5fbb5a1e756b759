"""The context of engines: as long as a run's requests need, and so that no answer changes."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.plans import CHECKPOINT, changed, reviewed, unplanned_run

from coordinate_eval.coordinator.display.summary import summary
from coordinate_eval.coordinator.planning.context import Need, needs, with_context
from coordinate_eval.evaluators.engines.turns import Turns
from coordinate_eval.records import (
    Dataset,
    DatasetRequests,
    Request,
    RequestKind,
    Suite,
    context_tokens,
)


def built(**tokens: int) -> dict[str, DatasetRequests]:
    return {
        name: DatasetRequests(
            dataset=name, key="", items=1, requests=1, prompt_tokens=1, generate_requests=0,
            max_output_tokens=0, longest_output_tokens=0, asks=False, offsets=[],
            context_tokens=each,
        )
        for name, each in tokens.items()
    }  # fmt: skip


def context(tokens: dict[str, int], max_length: int = 1_000_000, **model: Any) -> int:
    suite = Suite(name="s", digest="", datasets=[Dataset(name=name) for name in tokens])
    run = changed(
        unplanned_run(), suite=suite, max_length=max_length, checkpoint=changed(CHECKPOINT, **model)
    )
    return with_context(run, built(**tokens)).engine_context


def test_it_is_what_the_longest_request_needs() -> None:
    assert context({"a": 3000, "b": 900}) == 4096
    assert context({"a": 3000, "b": 5000}) == 8192
    assert context({"a": 3000, "b": 5000}, max_length=6000) == 6000


def test_requests_of_which_it_is_not_known_may_need_all() -> None:
    assert context({"a": 3000, "b": 0}, max_length=131_072) == 131_072


def test_a_model_that_computes_otherwise_in_long_contexts_keeps_one() -> None:
    assert context({"a": 3000}, max_length=131_072, same_from=32_768) == 36_864
    assert context({"a": 3000}, max_length=32_768, same_from=32_768) == 4096


def test_before_prompts_are_built_it_is_expected() -> None:
    long = Dataset(name="ruler", items=5, metadata={"max_seq_lengths": [4096, 131_072]})
    suite = Suite(name="s", digest="", datasets=[Dataset(name="gsm8k"), long])
    run = changed(unplanned_run(), suite=suite, max_length=1_000_000)
    first, second = needs(run, {})
    assert first == (131_072, "ruler", 0)
    assert second.dataset == "gsm8k"
    assert 1000 < second.tokens < 10_000
    assert with_context(run, {}).context == 131_072


def test_a_plan_says_what_its_model_costs_and_what_decides_the_context() -> None:
    made = reviewed(datasets=2)
    model = changed(
        made.plan.checkpoint, parameters=671_000_000_000, active_parameters=37_000_000_000,
        experts=256, experts_per_token=8, kv_bytes_per_token=70_272, quantization="fp8",
        doubt="they are guessed",
    )  # fmt: skip
    plan = changed(
        made.plan, checkpoint=model, context=8192, max_length=163_840, gpus_per_trial=8,
        tensor_degrees=[4, 8], expert_parallel=True,
    )  # fmt: skip
    needed = [Need(8000, "long"), Need(900, "short", cut=3)]
    shown = " ".join(words for _, words in summary(replace(made, plan=plan, needs=needed)))
    for words in (
        "37,000,000,000 parameters active (8 of 256 experts), fp8 weights, 68.6 KiB of cache",
        "they are guessed",
        "8 for each with whole experts (possible: 4, 8)",
        "8,192 tokens, enough for long (the others need 900 at most); prompts are cut to 163,840",
        "lose their beginning: short 3",
    ):
        assert words in shown


@given(
    prompt=st.integers(1, 30),
    limit=st.integers(1, 20),
    follow_ups=st.lists(st.lists(st.just(7), min_size=1, max_size=9), max_size=3),
    most=st.integers(1, 200),
    data=st.data(),
)
def test_a_conversation_loses_nothing_more_in_a_shorter_context(
    prompt: int, limit: int, follow_ups: list[list[int]], most: int, data: st.DataObject
) -> None:
    request = Request(
        dataset="d", item=0, task="t", doc=0, index=0, repeat=0, window=0, prompt_hash="",
        kind=RequestKind.GENERATE, tokens=[1] * prompt, continuation=[], max_tokens=limit,
        stop=[], sampling={}, follow_ups=follow_ups,
    )  # fmt: skip
    whole, short = Turns(request, most), Turns(request, min(most, context_tokens(request)))
    for _ in follow_ups:
        said = [2] * data.draw(st.integers(0, limit))
        for turns in (whole, short):
            turns.add("", len(said), "stop", lambda said=said: said)  # type: ignore[misc]
        assert whole.prompt == short.prompt


@pytest.mark.parametrize(("continuation", "limit", "tokens"), [(2, 0, 13), (0, 5, 15)])
def test_a_request_needs_its_prompt_and_its_output(
    continuation: int, limit: int, tokens: int
) -> None:
    kind = RequestKind.GENERATE if limit else RequestKind.LOGLIKELIHOOD
    request = Request(
        dataset="d", item=0, task="t", doc=0, index=0, repeat=0, window=0, prompt_hash="",
        kind=kind, tokens=[1] * 10, continuation=[1] * continuation, max_tokens=limit, stop=[],
        sampling={}, follow_ups=[],
    )  # fmt: skip
    assert context_tokens(request) == tokens
