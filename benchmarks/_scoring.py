"""The ways to score choices, on items in the shapes of well-known datasets.

Items are made of random tokens; `scored_tokens.py` describes them, and the ways.
"""

import multiprocessing
import random
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

from coordinate_eval.evaluators.engines.base import Loading
from coordinate_eval.evaluators.engines.vllm import VllmEngine
from coordinate_eval.records import Request, RequestKind, Response


class Shape(NamedTuple):
    """The tokens of a dataset's items; a pair is the fewest and the most."""

    name: str
    question: tuple[int, int]
    """Tokens before the choices differ."""
    choices: int
    answer: tuple[int, int]
    """Tokens of a choice from the first that differs on."""
    same_examples: bool
    """Whether all items have the same few-shot examples."""
    question_is_scored: bool
    """Whether each choice is a whole text: the question is a part of what is scored."""


SHAPES = (
    Shape("MMLU", (60, 160), 4, (1, 1), same_examples=True, question_is_scored=False),
    Shape("HellaSwag", (40, 100), 4, (15, 40), same_examples=False, question_is_scored=False),
    Shape("XNLI", (15, 45), 3, (10, 22), same_examples=False, question_is_scored=True),
)


class Way(NamedTuple):
    """A way to score the choices of an item."""

    name: str
    together: bool
    """Whether the choices of an item are scored together."""
    cached: bool
    """Whether the prefix cache is read."""
    by_ids: bool
    """Whether a token is scored by its id where that is less work."""


WAYS = (
    Way("alone", together=False, cached=False, by_ids=False),
    Way("alone, cached", together=False, cached=True, by_ids=False),
    Way("together", together=True, cached=True, by_ids=False),
    Way("together, by ids", together=True, cached=True, by_ids=True),
)
"""The first is that of vLLM by default, and so of the harness; the last is that of trials."""


class Scored(NamedTuple):
    """One way's answers to a dataset, by item and choice, and what they took."""

    responses: dict[tuple[int, int], Response]
    asked: int
    """Requests to vLLM."""
    computed: int
    """Tokens that were not read from the prefix cache."""
    seconds: float


def scored(
    datasets: Sequence[Sequence[Request]],
    model: Path,
    max_length: int,
    args: Mapping[str, Any],
    *,
    here: bool = False,
) -> list[list[Scored]]:
    """Score datasets one after the other in each of `WAYS`.

    Each engine has a process of its own, since one gives the memory of a GPU back when it ends.
    With `here`, both are in this process, which imports vLLM once. See `VllmEngine` for the
    arguments.
    """
    spawn = multiprocessing.get_context("spawn")
    found: dict[Way, list[Scored]] = {}
    for cached in (False, True):
        ways = [way for way in WAYS if way.cached == cached]
        work = (ways, datasets, model, max_length, {**args, "enable_prefix_caching": cached})
        if here:
            found |= _by_one_engine(*work)
            continue
        with ProcessPoolExecutor(1, spawn) as pool:
            found |= pool.submit(_by_one_engine, *work).result()
    return [found[way] for way in WAYS]


def _by_one_engine(
    ways: Sequence[Way],
    datasets: Sequence[Sequence[Request]],
    model: Path,
    max_length: int,
    args: dict[str, Any],
) -> dict[Way, list[Scored]]:
    engine = VllmEngine(Loading(model, 1, max_length, args))
    most_ids = engine.most_ids
    found: dict[Way, list[Scored]] = {}
    for way in ways:
        engine.most_ids = most_ids if way.by_ids else 0
        engine._engine.reset_prefix_cache()  # type: ignore[union-attr]  # it is not closed
        found[way] = [_one(engine, requests, together=way.together) for requests in datasets]
    engine.close()
    return found


def _one(engine: VllmEngine, requests: Sequence[Request], *, together: bool) -> Scored:
    # What belongs to different documents is never scored together.
    given = [
        one if together else one.model_copy(update={"doc": number})
        for number, one in enumerate(requests)
    ]
    asked, computed, began = engine.asked, engine.computed_tokens, time.perf_counter()
    responses = {(r.item, r.index): r for r in engine.run(iter(given))}
    seconds = time.perf_counter() - began
    return Scored(responses, engine.asked - asked, engine.computed_tokens - computed, seconds)


def difference(one: Scored, other: Scored) -> float:
    """Return the largest difference of a log-likelihood, in nats."""
    pairs = ((found.logprob, other.responses[key].logprob) for key, found in one.responses.items())
    return max(abs((a or 0.0) - (b or 0.0)) for a, b in pairs)


def greedy_flips(one: Scored, other: Scored) -> int:
    """Return the number of choices whose greedy flags differ."""
    return sum(r.greedy != other.responses[key].greedy for key, r in one.responses.items())


def scored_items(shape: Shape, shots: int, count: int, vocabulary: int) -> Iterator[Request]:
    """Yield the log-likelihoods of `count` items, the same ones at each call.

    Args:
        shape: of the items.
        shots: number of examples before each question.
        count: number of items.
        vocabulary: number of token ids; the first three are special.
    """
    dice = random.Random(f"{shape.name} {shots}")  # noqa: S311  # a workload, not a secret

    def text(tokens: tuple[int, int]) -> list[int]:
        return [dice.randrange(3, vocabulary) for _ in range(dice.randint(*tokens))]

    def examples() -> list[int]:
        return [token for _ in range(shots) for token in text(shape.question) + text(shape.answer)]

    for_all = examples()
    for item in range(count):
        context = [0, *(for_all if shape.same_examples else examples())]
        question, letters = text(shape.question), dice.sample(range(3, vocabulary), shape.choices)
        for index, letter in enumerate(letters):
            answer = [letter, *text(shape.answer)[1:]]
            yield Request(
                dataset=shape.name,
                item=item,
                task=shape.name,
                doc=item,
                index=index,
                prompt_hash="",
                kind=RequestKind.LOGLIKELIHOOD,
                tokens=context if shape.question_is_scored else context + question,
                continuation=question + answer if shape.question_is_scored else answer,
            )
