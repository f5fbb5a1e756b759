"""The answers of a server, and what it can do: found out by a few small requests before the first.

Servers differ in what they take as a prompt, token ids or text, and in how they tell the
log-probabilities of a prompt, if they tell them at all.
"""
# The libraries of the extras have no types here: they may be absent while types are checked.
# ruff: noqa: ANN401

import asyncio
import contextlib
import functools
import itertools
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from coordinate_eval._format import brief
from coordinate_eval._text_config import text_config
from coordinate_eval.errors import EngineError, ServerRefuses, ServerSilent, UserError
from coordinate_eval.evaluators import own_code
from coordinate_eval.evaluators.engines import common
from coordinate_eval.evaluators.engines.scoring import Scoring
from coordinate_eval.evaluators.engines.server_requests import Choice, Completions, ScoringWay
from coordinate_eval.evaluators.engines.turns import Decoder, Turns, tokens_of
from coordinate_eval.evaluators.servers.connection import Odd
from coordinate_eval.evaluators.servers.replies import Declined
from coordinate_eval.records import Request, RequestKind, Response

_MOST_IDS: Final = 20
"""Most tokens that one request scores by their ids: vLLM's servers give no more by default."""


async def find_model(server: Completions, max_length: int, *, of_others: bool) -> str:
    """Return the model's name, empty if the server lists none. Check that its context is enough."""
    models, where = await server.models(), server.access.base_url
    name = server.access.model
    if not name:
        if of_others and models is not None and len(models) > 1:
            raise UserError(
                f"the server at {where} has several models: set [engine.args] model to one of "
                f"{brief(', '.join(sorted(models)))}"
            )
        name = next(iter(models or {}), "")
    length = (models or {}).get(name, {}).get("max_model_len")
    if type(length) is int and length < max_length:
        raise UserError(
            f"the server at {where} has a context of {length:,} tokens, and this run's is "
            f"{max_length:,}: give its command {{max_length}}, or set [trial] max_length"
        )
    return name


class Answering:
    """Requests of an engine, answered by a server.

    Args:
        server: which is asked.
        of_others: the server is not this engine's own.
        check_own: raises an error if another server answers in place of this engine's own.
    """

    unable: Mapping[RequestKind, str]
    """Kinds of requests that the server cannot answer, with the reason."""

    def __init__(
        self,
        server: Completions,
        model: Path,
        max_length: int,
        *,
        of_others: bool,
        check_own: Callable[[], None],
    ) -> None:
        self._server, self._model, self._max_length = server, model, max_length
        self._of_others, self._check_own = of_others, check_own
        config = text_config(own_code.json_object(model / "config.json"), model / "config.json")
        self._vocabulary = config.number("vocab_size", most=10**9) or 1 << 31
        self._most_ids = 0
        self.unable = {}

    async def find_out(self) -> None:
        """Find out what the server can do.

        Raises:
            TryAgain: it does not answer yet.
            EngineError, UserError: it cannot do what an engine has to.
        """
        name = await find_model(self._server, self._max_length, of_others=self._of_others)
        self._server.model = name or str(self._model)
        await self._find_prompts()
        self._check_own()
        await self._find_scoring()

    @property
    def _where(self) -> str:
        return self._server.access.base_url

    async def _find_prompts(self) -> None:
        """Find out whether the server takes token ids, or text with all of its tokens."""
        tokens = self._probed()
        try:
            if await self._server.takes_prompt(tokens) == len(tokens):
                return
            why = "it counts other tokens"
        except Declined as declined:
            why = str(declined)
        self._server.prompt_of = self._text_of
        try:
            count = await self._server.takes_prompt(self._text_of(tokens))
        except Declined as declined:
            raise UserError(
                f"the server at {self._where} takes neither token ids ({why}) nor text ({declined})"
            ) from declined
        self._server.counts_prompts = False
        self._adds = (count or 0) > len(tokens)
        self._why_no_scores(f"it takes no token ids ({why})")

    async def _find_scoring(self) -> None:
        """Find out how the server tells the log-probabilities of a prompt."""
        if self.unable:
            return
        tokens, whole, why = self._probed(), math.nan, ""
        ways: tuple[ScoringWay, ...] = ("prompt_logprobs", "echo")
        for way in ways:
            self._server.scoring = way
            try:
                whole = await self._scored(tokens[:2], tokens[2:])
                break
            except EngineError as error:
                why = str(error)
        else:
            self._why_no_scores(why)
            return
        self._most_ids = _MOST_IDS
        by_ids = math.nan
        with contextlib.suppress(EngineError):
            by_ids = await self._scored(tokens[:2], tokens[2:3])
            by_ids += await self._scored(tokens[:3], tokens[3:])
        # Batches of other sizes change values of 16 bits a little.
        if not math.isclose(by_ids, whole, rel_tol=0.05):
            self._most_ids = 0

    def _why_no_scores(self, why: str) -> None:
        self.unable = {
            RequestKind.LOGLIKELIHOOD: f"the server at {self._where} tells no log-probabilities "
            f"of prompts: {why}"
        }

    def _probed(self) -> list[int]:
        return [number % self._vocabulary for number in range(3, 7)]

    async def _scored(self, context: list[int], continuation: list[int]) -> float:
        """Return the log-likelihood of a continuation, asked for once.

        Raises:
            EngineError: the server tells none.
        """
        probe = common.probe(RequestKind.LOGLIKELIHOOD, context, continuation=continuation)
        return common.check_probed(*await self.answer([probe]))

    async def answer(self, group: list[Request]) -> list[Response]:
        """Answer requests that belong together.

        Raises:
            EngineError: the server does not answer, or cannot.
        """
        for request in group:
            common.check(
                request,
                max_length=self._max_length,
                most_scored=self._max_length - 1,  # a token is generated, also after scoring
                vocabulary=self._vocabulary,
            )
        if why := self.unable.get(group[0].kind):
            raise EngineError(f"cannot answer {common.named(group[0])}: {why}")
        try:
            if group[0].kind is RequestKind.LOGLIKELIHOOD:
                return await self._score(group)
            return [await self._write(*group)]
        except (Odd, Declined, ServerRefuses, ServerSilent) as error:
            raise EngineError(
                f"the server did not answer {common.named(group[0])}: {error}"
            ) from error

    async def _score(self, group: list[Request]) -> list[Response]:
        scoring = Scoring(group, self._most_ids)
        asks, responses = scoring.asks(), list[Response]()
        while asks:
            outputs = await asyncio.gather(*map(self._server.score, asks))
            more = [scoring.take(ask, each) for ask, each in zip(asks, outputs, strict=True)]
            responses += itertools.chain.from_iterable(found for found, _ in more)
            asks = [ask for _, following in more for ask in following]
        return responses

    async def _write(self, request: Request) -> Response:
        turns = Turns(request, self._max_length)
        while True:
            prompt = turns.prompt
            # Servers refuse what an engine in this process would cut.
            most = min(request.max_tokens, self._max_length - len(prompt))
            said = await self._server.write(prompt, request, most)
            tokens_said = functools.partial(self._said, prompt, said)
            response = turns.add(said.text, said.tokens, said.finish_reason, tokens_said)
            if response is not None:
                return response

    def _said(self, prompt: list[int], said: Choice) -> list[int]:
        """Return the tokens of an answer without what has ended it."""

        def encode(text: str) -> list[int]:
            return list(self._tokenizer.encode(text, add_special_tokens=False).ids)

        tokens = said.token_ids
        if tokens is None:
            return common.inner_tokens(encode, said.text)
        if said.finish_reason == "length":
            return tokens
        if not isinstance(said.given.get("stop_reason"), str):
            return tokens[:-1]
        decoder = Decoder(self._tokenizer, prompt)
        ends = list(itertools.accumulate(len(decoder.add(token)) for token in tokens))
        return tokens_of(said.text, tokens, ends, encode)

    @functools.cached_property
    def _tokenizer(self) -> Any:
        tokenizers = common.load("tokenizers", "coordinate-eval[transformers]")
        file = self._model / "tokenizer.json"
        try:
            return tokenizers.Tokenizer.from_file(str(file))
        except Exception as error:
            raise UserError(
                f"this server needs prompts as text, and {file} cannot be read: "
                f"{common.last_words(error)}"
            ) from error

    _adds = False
    """The server puts the tokens before a text that its tokenizer puts there."""

    def _text_of(self, tokens: list[int]) -> str:
        """Return a prompt as text, without what the server itself adds before it."""
        first = self._tokenizer.encode("").ids if self._adds else []
        own = tokens[len(first) :] if first and tokens[: len(first)] == first else tokens
        return str(self._tokenizer.decode(own, skip_special_tokens=False))
