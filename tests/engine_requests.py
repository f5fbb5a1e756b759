"""Requests to engines that run the tiny model, and their responses."""

import math

from coordinate_eval.evaluators.engines.base import Engine
from coordinate_eval.evaluators.engines.common import probe
from coordinate_eval.records import Request, RequestKind, Response, Turn
from tests.tiny import MAX_LENGTH, tiny_model, tokenizer

RUNNING = 8
"""Sequences that the vLLM under test runs at once."""

BLOCK = 32
"""Tokens of a block of its prefix cache: the fewest on a CPU, where 128 is the default."""

BATCH = 4
"""Batch size of the transformers under test."""

THEN = "</s>\n<|turn|>one two</s>"
"""A follow-up: the end of an answer, and a question, in the words of a template."""


def ids(text: str) -> list[int]:
    found: list[int] = tokenizer(tiny_model()).encode(text).ids
    return found


def request(number: int, kind: RequestKind, prompt: str, **fields: object) -> Request:
    return probe(kind, ids(prompt), **{"item": number, "task": "a task", "doc": number} | fields)


def write(number: int, prompt: str, **fields: object) -> Request:
    return request(number, RequestKind.GENERATE, prompt, **({"max_tokens": 24} | fields))


def score(number: int, prompt: str, then: str, **fields: object) -> Request:
    wanted = {"continuation": ids(then)} | fields
    return request(number, RequestKind.LOGLIKELIHOOD, prompt, **wanted)


def run(engine: Engine, requests: list[Request]) -> dict[int, Response]:
    """The responses by item, each request answered once."""
    responses = list(engine.run(iter(requests)))
    assert sorted(r.item for r in responses) == sorted(r.item for r in requests)
    return {response.item: response for response in responses}


def work_of(vllm: Engine, *runs: list[Request]) -> tuple[int, int]:
    """The steps that vLLM takes for these runs, one after the other, and the tokens it computes."""
    steps, tokens = vllm.steps, vllm.computed_tokens  # type: ignore[attr-defined]  # vLLM's own
    for requests in runs:
        run(vllm, requests)
    return vllm.steps - steps, vllm.computed_tokens - tokens  # type: ignore[attr-defined]


def mixed(count: int) -> list[Request]:
    """Requests of both kinds and many lengths."""
    words = [
        "the",
        "cat",
        "sat",
        "on",
        "a",
        "mat",
        "one",
        "two",
        "Grüße",
        "東京",
        "🙂",
        "def",
        "b):",
    ]
    requests = []
    for number in range(count):
        prompt = " ".join(words[number % 5 : number % 5 + 1 + number % 9])
        if number % 2:
            requests.append(write(number, prompt, max_tokens=1 + number * 7 % 40))
        else:
            requests.append(score(number, prompt * (1 + number % 7), " " + words[number % 12]))
    return requests


def same(left: dict[int, Response], right: dict[int, Response]) -> None:
    """Equal texts and counts; log-likelihoods equal but for the order of float32 sums."""
    for number, response in left.items():
        other = right[number]
        assert response.model_copy(update={"logprob": None}) == other.model_copy(
            update={"logprob": None}
        )
        if response.logprob is not None and other.logprob is not None:
            assert math.isclose(response.logprob, other.logprob, abs_tol=1e-4)
        else:
            assert response.logprob is None and other.logprob is None


def choices(item: int, context: list[int], texts: list[list[int]]) -> list[Request]:
    """The requests of one item, in the order in which the evaluator builds them."""
    fields = {"item": item, "doc": item, "tokens": context}
    return [score(0, "", "", **fields, continuation=then, index=n) for n, then in enumerate(texts)]


def conversations(count: int, **fields: object) -> list[Request]:
    """Requests of one to three turns, and many lengths."""
    return [
        write(
            n,
            "the cat sat " * (1 + n % 7),
            follow_ups=[ids(THEN)] * (n % 3),
            **({"max_tokens": 1 + n * 5 % 30} | fields),
        )
        for n in range(count)
    ]


def by_hand(engine: Engine, request: Request, max_length: int = MAX_LENGTH) -> Response:
    """The response to a conversation, from single requests with prompts made by hand.

    Answers are made into tokens again, so their texts must have the tokens that were generated.
    """
    prompt, turns = request.tokens, []
    for follow_up in [*request.follow_ups, None]:
        single = request.model_copy(update={"tokens": prompt, "follow_ups": []})
        turns.append(run(engine, [single])[request.item])
        text = turns[-1].text
        assert text is not None
        prompt = [*prompt, *ids(text), *(follow_up or [])]
        prompt = prompt[-(max_length - request.max_tokens) :]
    first, *others = turns
    later = [Turn(text=t.text or "", tokens=t.tokens, finish="length") for t in others]
    return first.model_copy(update={"turns": later})


def plain(response: Response) -> bool:
    texts = [response.text or "", *(turn.text for turn in response.turns)]
    return all(text and len(ids(text)) == 1 for text in texts)
