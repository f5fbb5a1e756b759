"""Log-likelihoods from vLLM, with as few tokens computed as its prefix cache allows.

The choices of one item share most of their tokens. They are asked for together, in one of two ways:

- `Ask.ids`: a text is computed, and the probabilities of some tokens after it are returned. All
  choices of one token after the same context take one such request. vLLM has it from 0.25 on, as
  `logprob_token_ids`.
- No `ids`: a text is computed, and each of its tokens is scored (`prompt_logprobs`).

In the second way, what is read from the prefix cache has no scores: if `n` tokens were cached, the
first score is that of token `n + 1`, counted from 0. By default vLLM therefore reads no cache for
such requests. Here it does, and scores that are missing are taken from other choices that begin
with the same tokens. What no other choice has, such as the first token after a context of exactly
so many blocks, is asked for in the first way; where vLLM lacks it, the text is computed again
without the cache.

Checked in the sources of vLLM 0.19, 0.25, 0.28 and 0.32, for both model runners (V1 and V2):

- Blocks are found in the cache from the moment in which their computation is scheduled, so choices
  that are scheduled in the same step share them.
- `prompt_logprobs` has a row for each token of the prompt (V1; rows of cached tokens are not
  initialized) or only for those computed (V2): rows are counted from the end. A last step of one
  token changes nothing.
- V2 forgets the rows of a prompt that it stops to make room, and goes on from the cache: fewer rows
  come than `num_cached_tokens` says. They count as missing. Without the cache, all come.
- `logprobs` must equal the number of `logprob_token_ids`. Requests of one batch may have different
  numbers. The values are those of the softmax of the unchanged logits in both ways.
"""
# The libraries of the extras have no types here: they may be absent while types are checked.
# ruff: noqa: ANN401

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, islice
from typing import Any, NamedTuple

from coordinate_eval.errors import EngineError
from coordinate_eval.evaluators.engines import common
from coordinate_eval.records import Request, RequestKind, Response

MOST_IDS = 128
"""Most ids of one request that vLLM takes."""

MOST_TOGETHER = 128
"""Most requests of an item that wait for each other."""

_REASONS = (
    "engine arguments may prevent it (max_logprobs, speculative_config, enable_prefix_caching), or "
    "its version"
)


class Score(NamedTuple):
    """The score of one token of a text."""

    logprob: float
    """In nats, given the tokens before it."""
    greedy: bool
    """True if no other token is likelier."""


@dataclass(frozen=True)
class Ask:
    """One request to vLLM: tokens to compute, and what to score."""

    tokens: list[int]
    ids: tuple[int, ...] = ()
    """Tokens to score after `tokens`; none if the tokens themselves are scored."""
    start: int = 0
    """The first of `tokens` that is scored."""
    read_cache: bool = True

    def settings(self) -> dict[str, Any]:
        """Return the arguments of `SamplingParams` that score."""
        wanted = {"max_tokens": 1, "temperature": 0.0, "flat_logprobs": True}
        # Rows of cached tokens may not even hold valid token ids.
        wanted |= {"detokenize": False}
        if self.ids:
            return wanted | {"logprobs": len(self.ids), "logprob_token_ids": list(self.ids)}
        return wanted | {
            "prompt_logprobs": 1,  # of the token itself, and of the likeliest one
            "skip_reading_prefix_cache": not self.read_cache,
        }

    def scores(self, output: Any) -> dict[int, Score]:
        """Return the scores in a finished `RequestOutput`.

        With `ids` they are by token, otherwise by the place of a token in `tokens`.

        Raises:
            EngineError: the output lacks what was asked for.
        """
        if self.ids:
            (answer,) = output.outputs
            if not answer.logprobs:
                raise EngineError(f"vLLM returned no log-probabilities: {_REASONS}")
            row = answer.logprobs[0]
            likeliest = row[answer.token_ids[0]].logprob
            found = {token: row[token].logprob for token in self.ids}
            return {t: Score(logprob, logprob >= likeliest) for t, logprob in found.items()}
        rows = output.prompt_logprobs or []
        # The first row stands for the first token of a prompt, which has no score.
        first = max(
            self.start, (output.num_cached_tokens or 0) + 1, len(self.tokens) - len(rows) + 1
        )
        return {
            place: Score(
                row[self.tokens[place]].logprob,
                row[self.tokens[place]].logprob >= max(rival.logprob for rival in row.values()),
            )
            for place, row in enumerate(rows[len(rows) + first - len(self.tokens) :], first)
        }


def together(requests: Iterator[Request]) -> Iterator[list[Request]]:
    """Yield log-likelihoods of the same item together, and other requests alone.

    It pulls one request more than it has yielded.
    """
    for scored, members in groupby(requests, _item):
        while chunk := list(islice(members, MOST_TOGETHER if scored else 1)):
            yield chunk


def _item(request: Request) -> tuple[object, ...]:
    """Return what the requests that are scored together have in common; empty for none."""
    if request.kind is not RequestKind.LOGLIKELIHOOD:
        return ()
    return request.dataset, request.item, request.task, request.doc, request.window


class Scoring:
    """The scores of some log-likelihoods that are asked for together.

    Args:
        most_ids: of one request to vLLM; 0 if it has no `logprob_token_ids`.
    """

    def __init__(self, requests: Sequence[Request], most_ids: int) -> None:
        self.requests = requests
        self._most_ids = most_ids
        self._texts = [[*request.tokens, *request.continuation] for request in requests]
        self._known: list[dict[int, Score]] = [{} for _ in requests]
        self._asked: list[Ask] = []
        self._waiting = 0

    def asks(self) -> list[Ask]:
        """Return what to ask first. Pass every output to `take`."""
        single = [n for n, r in enumerate(self.requests) if len(r.continuation) == 1]
        single = single if self._most_ids else []
        asks = self._after([(n, len(self._texts[n]) - 1) for n in single])
        asks += [self._whole(n) for n in range(len(self._texts)) if n not in single]
        self._asked = asks
        self._waiting = len(asks)
        return asks

    def take(self, ask: Ask, output: Any) -> tuple[list[Response], list[Ask]]:
        """Take a finished `RequestOutput`. Return the responses if all are known, or more asks.

        Raises:
            EngineError: the output lacks what was asked for.
        """
        scores = ask.scores(output)
        for text, known in zip(self._texts, self._known, strict=True):
            if not ask.ids and text == ask.tokens:
                known.update(scores)
            elif ask.ids and text[: len(ask.tokens)] == ask.tokens:
                token = text[len(ask.tokens)] if len(text) > len(ask.tokens) else -1
                known.update({len(ask.tokens): scores[token]} if token in scores else {})
        self._waiting -= 1
        if self._waiting:
            return [], []
        self._share()
        asks = self._for_missing()
        if any(one in self._asked for one in asks):
            raise EngineError(
                f"cannot answer {common.named(self.requests[0])}: vLLM returned no scores for some "
                f"of its tokens, also without its prefix cache: {_REASONS}"
            )
        self._asked = asks
        self._waiting = len(asks)
        return ([] if asks else [self._response(n) for n in range(len(self._texts))]), asks

    def _missing(self, number: int) -> list[int]:
        """Return the places in a text of which the score is missing."""
        first = len(self.requests[number].tokens)
        places = range(first, len(self._texts[number]))
        return [place for place in places if place not in self._known[number]]

    def _share(self) -> None:
        """Fill in what other texts with the same beginning have."""
        for number, text in enumerate(self._texts):
            missing = self._missing(number)
            for other, known in zip(self._texts, self._known, strict=True) if missing else ():
                same = _common(text, other)
                found = {
                    place: known[place] for place in missing if place < same and place in known
                }
                self._known[number].update(found)

    def _for_missing(self) -> list[Ask]:
        """Return asks for scores that no text has."""
        missing = {n: places for n in range(len(self._texts)) if (places := self._missing(n))}
        one = [(n, places[0]) for n, places in missing.items() if len(places) == 1]
        asks = self._after(one) if self._most_ids else []
        more = [n for n, places in missing.items() if len(places) > 1 or not self._most_ids]
        # What the first of these gets may be what the others lack.
        return asks + [self._whole(n, read_cache=False) for n in more[:1]]

    def _whole(self, number: int, *, read_cache: bool = True) -> Ask:
        """Return an ask for all that is scored of a text."""
        start = len(self.requests[number].tokens)
        return Ask(self._texts[number], start=start, read_cache=read_cache)

    def _after(self, places: list[tuple[int, int]]) -> list[Ask]:
        """Return asks for one token each of some texts: those after the same tokens together."""
        tokens: dict[tuple[int, ...], dict[int, None]] = {}
        for number, place in places:
            text = self._texts[number]
            tokens.setdefault(tuple(text[:place]), {})[text[place]] = None
        asks = []
        for before, after in tokens.items():
            ids = iter(after)
            while chunk := tuple(islice(ids, self._most_ids)):
                asks.append(Ask(list(before), chunk))
        return asks

    def _response(self, number: int) -> Response:
        request, known = self.requests[number], self._known[number]
        places = range(len(request.tokens), len(self._texts[number]))
        return common.respond(
            request,
            logprob=sum((known[place].logprob for place in places), 0.0),
            greedy=all(known[place].greedy for place in places),
            tokens=len(request.continuation),
            finish="scored",
        )


def _common(one: list[int], other: list[int]) -> int:
    """Return the number of tokens with which both begin."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((n for n, (a, b) in pairs if a != b), min(len(one), len(other)))
