"""The engines on a real, tiny model: they answer alike, and stay full."""

import math
from collections.abc import Callable, Iterator

import pytest
from benchmarks._scoring import SHAPES, Shape, scored_items
from tests.engine_requests import (
    BATCH,
    BLOCK,
    RUNNING,
    THEN,
    by_hand,
    choices,
    conversations,
    ids,
    mixed,
    plain,
    run,
    same,
    score,
    work_of,
    write,
)
from tests.tiny import MAX_LENGTH, VOCABULARY

from coordinate_eval.errors import EngineError
from coordinate_eval.evaluators.engines.base import Engine
from coordinate_eval.records import Request, RequestKind, computed_before
from coordinate_eval.records import requests as of_requests

SHARED = "question: what is the capital of France? answer: Paris\n" * 12
"""Few-shot examples, longer than a block of vLLM's prefix cache."""


@pytest.fixture(scope="module", params=["vllm", "transformers"])
def engine(request: pytest.FixtureRequest) -> Engine:
    found: Engine = request.getfixturevalue(request.param)
    return found


def test_engines_agree(vllm: Engine, transformers: Engine) -> None:
    requests = mixed(80)
    first = run(vllm, requests)
    same(first, run(transformers, requests))
    assert {r.finish for r in first.values()} == {"stop", "length", "scored"}


def test_only_the_likeliest_continuation_is_greedy(engine: Engine) -> None:
    context: list[int] = ids("the cat sat on")
    told: list[int] = []
    for _ in range(2):
        tried = [
            score(token, "", "", tokens=context + told, continuation=[token])
            for token in range(VOCABULARY)
        ]
        responses = run(engine, tried).values()
        (likeliest,) = (response for response in responses if response.greedy)
        assert likeliest.logprob == max(r.logprob for r in responses if r.logprob is not None)
        told.append(likeliest.item)
    several = [told, [told[0] - 1, told[1]], [told[0], told[1] - 1]]
    responses = run(
        engine,
        [score(n, "", "", tokens=context, continuation=then) for n, then in enumerate(several)],
    ).values()
    assert [r.greedy for r in sorted(responses, key=lambda r: r.item)] == [True, False, False]


def test_prefix_cache_changes_no_score(vllm: Engine, transformers: Engine) -> None:
    # Twice the same, so that the cache reaches as far into the scored tokens as it ever can; and
    # continuations of any length, so that it does so at every offset from its blocks.
    context, rest = SHARED, "the dog sat on the log " * 20
    requests = [score(n, context, rest[: 10 * n + 1]) for n in range(40)]
    requests += [score(40 + n, "the", context[: 50 * n + 1]) for n in range(10)]
    once = run(vllm, requests)
    again = run(vllm, requests)
    plain = run(transformers, requests)
    same(once, plain)
    same(again, plain)


def test_a_shared_prefix_is_computed_once(vllm: Engine) -> None:
    unseen = "seven eight nine ten eleven twelve\n" * 40
    (several, _), (one, _) = (work_of(vllm, [score(0, unseen, n)]) for n in (" one", " two"))
    assert several > 2
    assert one == 1


@pytest.mark.parametrize("by_ids", [True, False])
def test_choices_of_an_item_compute_their_context_once(
    vllm: Engine, transformers: Engine, by_ids: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not by_ids:  # as in vLLM before 0.25
        monkeypatch.setattr(vllm, "most_ids", 0)
    context = [(31 * n + by_ids) % 300 + 5 for n in range(200)]
    sets = {
        "one token": [choices(n, context[n : n + 96 + n], [[7], [9], [8], [7]]) for n in range(20)],
        "many": [choices(n, context[n : n + 80 + n], [[7, 8], [9] * 9, [7, 9]]) for n in range(20)],
        "no context": [
            choices(n, [0], [context[n : n + 70 + n] + then for then in ([7, 8, 9], [9, 8])])
            for n in range(20)
        ],
    }
    for name, items in sets.items():
        requests = [one for item in items for one in item]
        before: int = vllm.computed_tokens  # type: ignore[attr-defined]  # vLLM's own
        found = sorted(vllm.run(iter(requests)), key=lambda r: (r.item, r.index))
        computed = vllm.computed_tokens - before  # type: ignore[attr-defined]
        plain = sorted(transformers.run(iter(requests)), key=lambda r: (r.item, r.index))
        same(dict(enumerate(found)), dict(enumerate(plain)))
        once = sum(len(item[0].tokens) + len(item[0].continuation) for item in items)
        # A block at most, and what they don't share, for each of the others.
        others = sum(BLOCK + 9 for item in items for _ in item[1:])
        assert not by_ids or computed <= once + (0 if name == "one token" else others), name


def test_one_token_is_enough_of_a_context(engine: Engine) -> None:
    responses = run(engine, [score(0, "", "the cat", tokens=[0]), write(1, "", tokens=[0])])
    assert responses[0].logprob is not None and responses[0].logprob < 0
    assert responses[1].tokens > 0


def test_a_stop_string_ends_a_text(vllm: Engine, transformers: Engine) -> None:
    free = run(transformers, [write(0, "the cat", max_tokens=40)])[0]
    assert free.text is not None and len(free.text) > 12
    # Across tokens, at the very start, a special token's own text, none, and an empty one.
    stops = [free.text[5:9], free.text[:1], "<s>", "\N{SNOWMAN}", ""]
    requests = [write(n, "the cat", max_tokens=40, stop=[s, "☃☃"]) for n, s in enumerate(stops)]
    responses = run(transformers, requests)
    same(run(vllm, requests), responses)
    assert responses[0].finish == "stop" and responses[0].tokens < free.tokens
    assert responses[1].text == ""
    assert responses[3].text == responses[4].text == free.text


def test_a_text_ends_where_the_context_does(vllm: Engine, transformers: Engine) -> None:
    almost = [5 + n % 300 for n in range(MAX_LENGTH - 5)]
    last = [*almost, 7, 8, 9, 10]
    requests = [
        write(0, "", tokens=almost, max_tokens=50),
        write(1, "", tokens=last, max_tokens=50),
        write(2, "the cat", max_tokens=10**6),
        score(3, "", "", tokens=almost, continuation=[7, 8, 9, 10]),
    ]
    responses = run(transformers, requests)
    assert responses[0].tokens <= 5 and responses[1].tokens == 1
    assert all(responses[n].finish in ("length", "stop") for n in range(3))
    same(run(vllm, requests), responses)


@pytest.mark.parametrize(("name", "most"), [("vllm", -1), ("transformers", 1)])
def test_scores_as_much_as_its_harness_class_sends(
    name: str, most: int, request: pytest.FixtureRequest
) -> None:
    engine: Engine = request.getfixturevalue(name)
    context = [5 + n % 300 for n in range(MAX_LENGTH + most - 3)]
    fits = score(0, "", "", tokens=context, continuation=[7, 8, 9])
    assert run(engine, [fits])[0].tokens == 3
    with pytest.raises(EngineError, match="fit into a context"):
        run(engine, [fits.model_copy(update={"tokens": [*context, 5]})])


@pytest.mark.parametrize(
    ("fields", "wrong"),
    [
        ({"tokens": []}, "no tokens"),
        ({"tokens": [1] * MAX_LENGTH}, "fit into a context"),
        ({"tokens": [VOCABULARY]}, "token ids"),
        ({"tokens": [-1]}, "token ids"),
        ({"max_tokens": 0}, "asks for 0"),
        ({"sampling": {"temperature": 1.0, "beams": 4.0}}, "beams"),
        ({"sampling": {"top_p": 0.0}}, "top_p"),
        ({"sampling": {"top_k": 1.5}}, "top_k"),
        ({"sampling": {"temperature": math.nan}}, "temperature"),
        ({"kind": RequestKind.LOGLIKELIHOOD}, "continuation"),
        (
            {"kind": RequestKind.LOGLIKELIHOOD, "continuation": [3] * MAX_LENGTH},
            "fit into a context",
        ),
    ],
)
def test_what_cannot_be_answered_is_named(
    engine: Engine, fields: dict[str, object], wrong: str
) -> None:
    requests = [write(1, "the cat"), write(77, "the cat").model_copy(update=fields)]
    with pytest.raises(EngineError, match=wrong) as caught:
        list(engine.run(iter(requests)))
    assert "'a task', document 77" in str(caught.value)
    run(engine, requests[:1])  # and the engine is none the worse for it


def test_sampling_follows_its_seed(engine: Engine) -> None:
    def texts(*sampling: dict[str, float]) -> list[str | None]:
        requests = [write(n, "the cat", sampling=s) for n, s in enumerate(sampling)]
        return [response.text for _, response in sorted(run(engine, requests).items())]

    hot = {"temperature": 1.0, "top_p": 0.95, "top_k": 50.0, "min_p": 0.01}
    first = texts(hot | {"seed": 1.0}, hot | {"seed": 2.0}, hot | {"seed": 3.0})
    assert first == texts(hot | {"seed": 1.0}, hot | {"seed": 2.0}, hot | {"seed": 3.0})
    assert len(set(first)) == 3
    greedy, *forced = texts({}, {"temperature": 0.0}, {"top_k": 1.0}, {"top_p": 0.001})
    assert forced == [greedy] * 3


def test_repetition_penalty_is_the_same_in_both(vllm: Engine, transformers: Engine) -> None:
    sampling = {"temperature": 0.0, "repetition_penalty": 1.3}
    requests = [write(n, "the cat sat " * n, sampling=sampling) for n in range(1, 6)]
    same(run(vllm, requests), run(transformers, requests))


def test_engines_hold_the_same_conversations(vllm: Engine, transformers: Engine) -> None:
    free = conversations(24)
    # At stop strings, which may begin within a token; and among other requests.
    short = [one.model_copy(update={"item": 100 + one.item}) for one in conversations(24)]
    short = [one.model_copy(update={"stop": ["a", "ne", "\n", " t"]}) for one in short]
    others = [one.model_copy(update={"item": 200 + one.item}) for one in mixed(24)]
    requests = [*free, *short, *others]
    found = run(vllm, requests)
    same(found, run(transformers, requests))
    assert [len(found[n].turns) for n in range(24)] == [n % 3 for n in range(24)]
    later = [turn for one in found.values() for turn in one.turns]
    assert {turn.finish for turn in later} == {"stop", "length"}
    assert len({turn.text for turn in later}) > 12


def test_a_conversation_is_single_requests_with_longer_prompts(engine: Engine) -> None:
    requests = [request for request in conversations(60, max_tokens=1) if request.follow_ups]
    # Each token of these answers is a whole character, of which its text has that one token again.
    wanted = {one.item: one for one in (by_hand(engine, request) for request in requests)}
    requests = [request for request in requests if plain(wanted[request.item])]
    assert len(requests) > 5
    for item, found in run(engine, requests).items():
        assert [turn.text for turn in found.turns] == [turn.text for turn in wanted[item].turns]
        assert found.text == wanted[item].text


def test_a_conversation_that_outgrows_the_context_goes_on(
    vllm: Engine, transformers: Engine
) -> None:
    almost = [5 + n % 300 for n in range(MAX_LENGTH - 40)]
    requests = [
        write(0, "", tokens=almost, max_tokens=30, follow_ups=[ids(THEN), ids(THEN)]),
        write(1, "", tokens=almost, max_tokens=40, follow_ups=[almost * 2]),
        write(2, "the cat", max_tokens=MAX_LENGTH * 2, follow_ups=[ids(THEN)], stop=["a"]),
    ]
    responses = run(transformers, requests)
    assert [len(responses[n].turns) for n in range(3)] == [2, 1, 1]
    same(run(vllm, requests), responses)


def test_a_sampled_conversation_is_the_same_in_any_company(transformers: Engine) -> None:
    requests = conversations(12, sampling={"temperature": 1.0}, max_tokens=12)
    whole = run(transformers, requests)
    apart = {n: r for one in reversed(requests) for n, r in run(transformers, [one]).items()}
    assert whole == apart
    assert len({response.text for response in whole.values()}) > 6


def test_a_next_turn_goes_in_at_once_and_reads_the_cache(vllm: Engine) -> None:
    def unseen(n: int) -> list[int]:
        return [5 + (n * 41 + 7 * m) % 371 for m in range(4 * BLOCK)]

    count = 4 * RUNNING
    fields = {"max_tokens": 8, "sampling": {"temperature": 1.0}}
    single = [write(n, "", tokens=unseen(n), **fields) for n in range(2 * count)]
    double = [
        write(n, "", tokens=unseen(2 * count + n), follow_ups=[ids(THEN)], **fields)
        for n in range(count)
    ]
    (apart, each), (held, both) = work_of(vllm, single), work_of(vllm, double)
    assert held <= apart  # as many answers, and as full
    assert both < each / 2 + count * (len(ids(THEN)) + 8 + BLOCK)  # the first prompts once


def test_pulls_no_further_than_it_must(engine: Engine) -> None:
    pulled = 0
    ahead = getattr(engine, "most_in_flight", 16 * BATCH)

    def source() -> Iterator[Request]:
        nonlocal pulled
        for one in mixed(100):
            pulled += 1
            yield one

    answered = 0
    for _ in engine.run(source()):
        assert pulled <= answered + ahead
        answered += 1
    assert answered == 100


def test_stays_full_over_dataset_borders(vllm: Engine) -> None:
    # Each dataset has one long text, for which a run of its own would wait with empty places.
    sets = [
        [write(100 * n + m, f"{m} the cat", max_tokens=60 if m == 0 else 4) for m in range(6)]
        for n in range(5)
    ]
    together, _ = work_of(vllm, [one for dataset in sets for one in dataset])
    apart, _ = work_of(vllm, *sets)
    assert together < apart / 2


@pytest.mark.parametrize("shots", [0, 5])
@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.name)
def test_vllm_computes_as_many_tokens_as_are_counted_when_building(
    vllm: Engine, shape: Shape, shots: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(of_requests, "CACHE_BLOCK", BLOCK)
    requests = list(scored_items(shape, shots, 24, VOCABULARY))
    tokens = sum(len(r.tokens) + len(r.continuation) for r in requests)
    saved = sum(map(computed_before, requests[1:], requests))
    _, computed = work_of(vllm, requests)
    assert computed == pytest.approx(tokens - saved, rel=0.05)


def test_closing_midway_leaves_a_working_engine(engine: Engine) -> None:
    requests = mixed(40)
    generator = engine.run(iter(requests))
    next(generator)
    generator.close()  # type: ignore[attr-defined]  # every engine's run is a generator
    assert len(list(engine.run(iter([])))) == 0
    run(engine, requests)


def test_what_is_unwanted_is_not_computed_to_its_end(engine: Engine) -> None:
    requests = [write(n, "the cat sat", max_tokens=40) for n in range(6)] + [
        score(n, "the cat", " sat") if n % 2 else write(n, "a mat", max_tokens=5)
        for n in range(6, 12)
    ]
    looks = iter(range(9))

    def unwanted() -> Callable[[Request], bool] | None:
        return (lambda request: request.item < 6) if next(looks, 0) == 1 else None

    found = {response.item: response for response in engine.run(iter(requests), unwanted)}
    assert {n for n in found if n >= 6} == set(range(6, 12))
    assert len(found) < len(requests)
    same(found, run(engine, [each for each in requests if each.item in found]))


def test_an_error_of_the_source_is_its_own(engine: Engine) -> None:
    def source() -> Iterator[Request]:
        yield write(0, "the cat")
        raise KeyError("claim")

    with pytest.raises(KeyError, match="claim"):
        list(engine.run(source()))
    run(engine, [write(0, "the cat")])
