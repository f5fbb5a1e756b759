"""The requests of an engine to an OpenAI-compatible server, and its replies.

Prompts are sent as token ids where the server takes them, so that scores are equal to those of an
engine in this process; else as text. Log-probabilities of a prompt come in one of two ways:
`prompt_logprobs` (vLLM), or `echo` with `logprobs` (SGLang and others).

Servers differ in the parameters that they know beyond OpenAI's. One that a server refuses is left
out from then on, unless a request depends on it.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, NamedTuple

from coordinate_eval.errors import EngineError
from coordinate_eval.evaluators.engines import common
from coordinate_eval.evaluators.engines.scoring import Ask
from coordinate_eval.evaluators.servers.access import Access
from coordinate_eval.evaluators.servers.connection import Server
from coordinate_eval.evaluators.servers.replies import (
    Declined,
    Reply,
    TryAgain,
    check_status,
    clean,
    is_refused_parameter,
    json_value,
    words_of,
)
from coordinate_eval.records import Request

_NEUTRAL: Final[Mapping[str, object]] = {
    "top_p": 1.0,
    "top_k": -1,
    "min_p": 0.0,
    "repetition_penalty": 1.0,
    "skip_special_tokens": False,
    "spaces_between_special_tokens": False,
    "return_token_ids": True,
}
"""Parameters that not every server knows, with the values without which a server can do: it has
them by itself, or a text hardly depends on them."""

_REFUSED: Final = (400, 422)

_ENVELOPE_BYTES, _BYTES_PER_TOKEN = 1 << 16, 1 << 10
"""A reply may have this many bytes besides, and for each token of prompt and output."""

ScoringWay = Literal["prompt_logprobs", "echo", ""]


class Logprob(NamedTuple):
    """The log-probability of a token, as vLLM's have it."""

    logprob: float


@dataclass(frozen=True)
class Choice:
    """The answer to one prompt."""

    text: str
    finish_reason: Literal["stop", "length"]
    tokens: int
    """The number of generated tokens, with one that ended the text."""
    given: Mapping[str, Any] = field(repr=False)
    """The choice as the server gave it."""
    whole: Mapping[str, Any] = field(repr=False)
    """The reply that it came in."""

    @property
    def token_ids(self) -> list[int] | None:
        """Return the tokens that were generated; None if the server does not tell them."""
        ids = self.given.get("token_ids")
        if not isinstance(ids, list) or len(ids) != self.tokens:
            return None
        return ids if all(type(each) is int for each in ids) else None


class Scores(NamedTuple):
    """The part of an output of vLLM that `scoring` reads."""

    outputs: Sequence["FirstToken"] = ()
    prompt_logprobs: Sequence[Mapping[int, Logprob]] = ()
    num_cached_tokens: int = 0


class FirstToken(NamedTuple):
    """The first token of an answer, and the log-probabilities in its place."""

    token_ids: Sequence[int]
    logprobs: Sequence[Mapping[int, Logprob]]


class Completions(Server):
    """A server that completes prompts. Enter it before asking.

    Args:
        access: where it is.
        concurrency: requests at the same time, at most.
        patience_seconds: time without a usable answer after which it is given up.
    """

    def __init__(self, access: Access, *, concurrency: int, patience_seconds: float) -> None:
        # No limit for one answer: a long text may wait for hundreds of others. A server that says
        # nothing at all is an engine that hangs.
        super().__init__(
            access,
            concurrency=concurrency,
            timeout_seconds=None,
            patience_seconds=patience_seconds,
        )
        self.model = access.model
        self.prompt_of: Callable[[list[int]], object] = lambda tokens: tokens
        """Returns a prompt as this server takes it."""
        self.counts_prompts = True
        """It has as many tokens of a prompt as were sent."""
        self.scoring: ScoringWay = ""
        self._unknown: set[str] = set()

    async def write(self, prompt: list[int], request: Request, most: int) -> Choice:
        """Return how a prompt goes on, for at most so many tokens."""
        wanted = common.sampling(request)
        body: dict[str, Any] = {
            "max_tokens": most,
            "temperature": wanted["temperature"],
            "repetition_penalty": wanted["repetition_penalty"],
            "skip_special_tokens": False,
            "spaces_between_special_tokens": False,
            "return_token_ids": True,
        }
        if stops := common.stops(request):
            body["stop"] = stops
        if wanted["temperature"] >= common.GREEDY_BELOW:
            body |= {name: wanted[name] for name in ("top_p", "min_p", "seed")}
            body["top_k"] = wanted["top_k"] if wanted["top_k"] > 0 else -1
        else:
            body["temperature"] = 0.0
        return await self.insist(lambda: self._complete(prompt, body))

    async def score(self, ask: Ask) -> Scores:
        """Return the log-probabilities of tokens, as vLLM would."""
        return await self.insist(lambda: self._score(ask))

    async def once(self, prompt: object, body: Mapping[str, Any]) -> Reply:
        """Send one request, again without what the server refuses. Return the reply.

        Raises:
            TryAgain: no reply came.
            EngineError: the server does not know a parameter on which the answer depends.
        """
        most = int(body["max_tokens"]) + (len(prompt) if isinstance(prompt, list) else 0)
        while True:
            for name in body.keys() & self._unknown:
                if body[name] != _NEUTRAL[name]:
                    raise EngineError(
                        f"the server at {self.access.base_url} does not take {name}, which a "
                        f"request sets to {body[name]}"
                    )
            sent = {name: value for name, value in body.items() if name not in self._unknown}
            reply = await self.request(
                "POST",
                "/completions",
                _ENVELOPE_BYTES + _BYTES_PER_TOKEN * (most + 1),
                {"model": self.model, "prompt": prompt, **sent},
            )
            extras = sent.keys() & _NEUTRAL.keys()
            refused = {name for name in extras if is_refused_parameter(reply, name, value=True)}
            if not refused:
                return reply
            self._unknown |= refused

    def forget_extras(self) -> None:
        """Send nothing any more that not every server knows."""
        self._unknown |= _NEUTRAL.keys()

    async def _complete(self, tokens: list[int], body: Mapping[str, Any]) -> Choice:
        reply = await self.once(self.prompt_of(tokens), body)
        check_status(reply, self.access)
        choice = self.read(reply, int(body["max_tokens"]))
        if self.counts_prompts and (found := _count(choice.whole, "prompt_tokens")) != len(tokens):
            raise self._odd(f"an answer to a prompt of {found} tokens in place of {len(tokens)}")
        return choice

    async def _score(self, ask: Ask) -> Scores:
        body: dict[str, Any] = {"max_tokens": 1, "temperature": 0.0}
        if ask.ids:
            body |= {"logprobs": len(ask.ids), "logprob_token_ids": list(ask.ids)}
            body["return_tokens_as_token_ids"] = True
        elif self.scoring == "echo":
            body |= {"echo": True, "logprobs": 1}
        else:
            body |= {"prompt_logprobs": 1}
        choice = await self._complete(ask.tokens, body)
        try:
            if ask.ids:
                return _by_ids(choice)
            rows = _echoed(choice) if self.scoring == "echo" else _of_prompt(choice)
            return Scores(prompt_logprobs=_checked(rows, ask))
        except (KeyError, ValueError, TypeError, IndexError, AttributeError) as error:
            kind = type(error).__name__
            raise self._odd(f"no log-probabilities of its tokens ({kind}: {error})") from None

    def read(self, reply: Reply, most: int) -> Choice:
        """Return the answer in a reply.

        Raises:
            TryAgain: there is none, or none to one prompt with so many tokens at most.
        """
        if reply.cut:
            raise self._odd(f"more than {len(reply.text) >> 10} KiB")
        value = json_value(reply.text)
        choices = value.get("choices") if isinstance(value, dict) else None
        if not isinstance(value, dict) or not isinstance(choices, list):
            said = words_of(reply.text) or "nothing"
            raise TryAgain(f"no answer but {said!r} from {self.access.base_url}")
        if len(choices) != 1 or not isinstance(choices[0], dict):
            raise self._odd(f"{len(choices)} choices in place of one")
        choice = choices[0]
        text, finish = choice.get("text"), choice.get("finish_reason")
        if not isinstance(text, str) or finish not in ("stop", "length"):
            raise self._odd(f"an answer that ended for reason {finish!r}")
        tokens = _count(value, "completion_tokens")
        if tokens is None or not 0 <= tokens <= most:
            raise self._odd(f"an answer of {tokens} tokens, where at most {most} were asked for")
        return Choice(clean(text), finish, tokens, choice, value)

    def _odd(self, what: str) -> TryAgain:
        return TryAgain(f"{what} from {self.access.base_url}", odd=True)

    async def takes_prompt(self, prompt: object) -> int | None:
        """Return the tokens that the server finds in a prompt; None if it counts none.

        Raises:
            TryAgain: it gave no usable answer.
            Declined: it does not take this prompt.
            ServerRefuses: it answers no such question.
        """
        body = {"max_tokens": 1, "temperature": 0.0, **_NEUTRAL}
        reply = await self.once(prompt, body)
        if reply.status in _REFUSED and not self._unknown >= _NEUTRAL.keys():
            self.forget_extras()
            reply = await self.once(prompt, body)
        if reply.status in _REFUSED or (reply.status == 500 and isinstance(prompt, list)):
            raise Declined(words_of(reply.text) or f"HTTP {reply.status}")
        check_status(reply, self.access)
        return _count(self.read(reply, 1).whole, "prompt_tokens")


def _count(value: Mapping[str, Any], name: str) -> int | None:
    usage = value.get("usage")
    count = usage.get(name) if isinstance(usage, dict) else None
    return count if type(count) is int else None


def _number(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError(f"{value!r} is no log-probability")
    return float(value)


def _by_ids(choice: Choice) -> Scores:
    """Return the scores of tokens after a prompt, which were asked for by their ids."""
    logprobs = choice.given["logprobs"]
    row = {
        int(name.removeprefix("token_id:")): Logprob(_number(value))
        for name, value in logprobs["top_logprobs"][0].items()
    }
    sampled = int(logprobs["tokens"][0].removeprefix("token_id:"))
    row.setdefault(sampled, Logprob(_number(logprobs["token_logprobs"][0])))
    return Scores(outputs=[FirstToken([sampled], [row])])


def _of_prompt(choice: Choice) -> list[Mapping[int, Logprob]]:
    given = choice.given.get("prompt_logprobs", choice.whole.get("prompt_logprobs"))
    return [
        {int(token): Logprob(_number(each["logprob"])) for token, each in (row or {}).items()}
        for row in given
    ]


_RIVAL: Final = -1
"""Stands for the likeliest token of a row, whose id the server does not tell."""


def _echoed(choice: Choice) -> list[Mapping[int, Logprob]]:
    logprobs = choice.given["logprobs"]
    own, top = logprobs["token_logprobs"], logprobs["top_logprobs"]
    rows: list[Mapping[int, Logprob]] = [{}]
    for logprob, rivals in zip(own[1:], top[1:], strict=True):
        value = _number(logprob)
        best = max([value, *map(_number, (rivals or {}).values())])
        rows.append({_OWN: Logprob(value), _RIVAL: Logprob(best)})
    return rows


_OWN: Final = -2
"""Stands for the token of a prompt in a row."""


def _checked(rows: list[Mapping[int, Logprob]], ask: Ask) -> list[Mapping[int, Logprob]]:
    """Return a row for each token of a prompt, with its own token in it."""
    if len(rows) < len(ask.tokens):
        raise ValueError(f"{len(rows)} of {len(ask.tokens)} tokens")
    found = rows[: len(ask.tokens)]
    for place in range(ask.start, len(found)):
        row = found[place]
        if _OWN in row:
            found[place] = {ask.tokens[place]: row[_OWN], _RIVAL: row[_RIVAL]}
        elif ask.tokens[place] not in row:
            raise ValueError(f"none for token {ask.tokens[place]} at {place}")
    return found
