"""A judge behind an OpenAI-compatible server: one question in, one answer out.

`evaluators/servers/` tells apart what a server may do to a client. A server that does not support a
parameter is asked all questions without it, and answers say so.
"""

import asyncio
import json
import time
from collections.abc import Mapping
from typing import Any, Final

from coordinate_eval.errors import ServerRefuses, ServerSilent
from coordinate_eval.evaluators.judged.completions import Completion, read_reply
from coordinate_eval.evaluators.judged.prompts import question_of
from coordinate_eval.evaluators.judged.thinking import BEGIN, begun_before, spoken
from coordinate_eval.evaluators.servers.access import Access
from coordinate_eval.evaluators.servers.connection import Odd, Server
from coordinate_eval.evaluators.servers.replies import (
    Declined,
    Reply,
    TooMuch,
    TryAgain,
    is_refused_parameter,
    json_value,
)
from coordinate_eval.records import Answer, Question

CHECK_SECONDS: Final = 10.0
"""Time for the answer to whether key and model are known."""

TRIAL_SECONDS: Final = 60.0
"""Time for the answer to a test question. What is wrong with one is said at once; a judge that
thinks for longer has taken it."""

MOST_TOKENS: Final = 1_000_000
"""Most tokens of an answer that can be asked for."""

_ENVELOPE_BYTES, _BYTES_PER_TOKEN = 1 << 16, 64
"""An answer may have this many bytes besides, and for each of its tokens. Tokens have some 4 bytes;
in JSON a character may take 12."""

_CHARACTERS_PER_TOKEN = 4
"""Assumed size of a token where a server does not count them."""

_SPELLINGS: Final = {
    "max_tokens": ("max_tokens", "max_completion_tokens"),
    "temperature": ("temperature",),
}
"""Parameters of a question, and the names under which servers know them. Newer ones refuse the
first name of an answer's limit, older ones the second; and some models have a fixed temperature."""


def is_question(question: Question, judge: str) -> bool:
    """Return whether a question is one to this judge, and is what its id says."""
    if question != question_of(judge, question.content):
        return False
    asked = json_value(question.content)
    return (
        isinstance(asked, dict)
        and isinstance(asked.get("messages"), list)
        and isinstance(asked.get("max_tokens"), int)
        and 0 < asked["max_tokens"] <= MOST_TOKENS
    )


class Endpoint(Server):
    """A judge that is asked over HTTP. Enter it before asking.

    Args:
        access: where it is.
        most_tokens: longest answer that it is asked for.
        extra: parameters of this server that every question gets.
        begins_thinking: its prompts begin the thinking, so that answers have only its end.
    """

    def __init__(
        self,
        access: Access,
        *,
        most_tokens: int = MOST_TOKENS,
        extra: Mapping[str, object] | None = None,
        begins_thinking: bool = False,
        **limits: Any,  # noqa: ANN401
    ) -> None:
        super().__init__(access, **limits)
        self._most_tokens, self._extra = most_tokens, dict(extra or {})
        self._names: dict[str, str | None] = {name: of[0] for name, of in _SPELLINGS.items()}
        """The name of each parameter on this server; None if it knows none."""
        self._begins_thinking = begins_thinking

    async def ask(self, question: Question) -> Answer:
        """Return the judge's answer, or why it will never answer this question.

        Raises:
            ServerRefuses: it would answer no question.
            ServerSilent: it gave no usable answer to this one in a bounded time.
        """
        asked = json.loads(question.content)
        asked["max_tokens"] = min(asked["max_tokens"], self._most_tokens)
        try:
            return await self.insist(lambda: self._try(question, asked))
        except Odd as odd:
            return Answer(id=question.id, passed=False, result=f"refused: {odd}", seconds=0.0)

    async def check(self) -> int | None:
        """Ask once whether the judge knows key and model. Return the tokens of its context.

        A server that does not list its models, or not all, gets a question of one word. Few tell
        their context; vLLM does. None if it is unknown.

        Raises:
            ServerRefuses: the judge does not know them.
            ServerSilent: the judge gave no usable answer.
        """
        try:
            async with asyncio.timeout(CHECK_SECONDS):
                listed = await self.models()
                if listed is None:
                    asked = {"messages": [{"role": "user", "content": "Say OK."}], "max_tokens": 16}
                    await self._complete(asked)
        except TryAgain as failure:
            raise ServerSilent(str(failure)) from None
        except TimeoutError:
            where = self.access.base_url
            raise ServerSilent(f"no answer within {CHECK_SECONDS:g} s from {where}") from None
        length = (listed or {}).get(self.access.model, {}).get("max_model_len")
        return length if type(length) is int else None

    async def try_out(self, asked: Mapping[str, Any]) -> Completion | None:
        """Ask a question once, to see whether the judge takes it with its parameters.

        Returns:
            what it says; None if it is still thinking after a while, or declines.

        Raises:
            ServerRefuses: it would answer no such question.
            ServerSilent: it gave no usable answer.
        """
        try:
            async with asyncio.timeout(TRIAL_SECONDS):
                return await self._complete(asked)
        except TooMuch as error:
            raise ServerRefuses(f"the judge answers no such questions: {error}") from None
        except TryAgain as failure:
            raise ServerSilent(str(failure)) from None
        except (Declined, TimeoutError):
            return None

    async def _try(self, question: Question, asked: Mapping[str, Any]) -> Answer:
        """Ask once, and again without what the server does not support."""
        began = time.monotonic()
        try:
            passed, said = True, await self._complete(asked)
        except Declined as declined:
            passed, said = False, Completion(f"refused: {declined}", 0)
        return Answer(
            id=question.id,
            passed=passed,
            result=said.words,
            seconds=time.monotonic() - began,
            tokens=said.tokens or 0,
            cut=said.cut,
            without=list(said.without),
        )

    async def _complete(self, asked: Mapping[str, Any]) -> Completion:
        """Return what the judge says, and the tokens that it read and wrote."""
        most_bytes = _ENVELOPE_BYTES + _BYTES_PER_TOKEN * int(asked["max_tokens"])
        while True:
            names = {name: self._names[name] for name in _SPELLINGS if name in asked}
            body = {"model": self.access.model, "messages": asked["messages"]}
            body |= {known: asked[name] for name, known in names.items() if known} | self._extra
            reply = await self.request("POST", "/chat/completions", most_bytes, body)
            if not self._learns_from(reply, names):
                break
        said = read_reply(reply, self.access)
        words, tokens = said.words, said.tokens
        if begun_before(words):
            self._begins_thinking = True
        elif said.cut and self._begins_thinking and spoken(words) == words:
            words = BEGIN + words
        if tokens is None:
            length = sum(len(str(message.get("content"))) for message in asked["messages"])
            tokens = (length + len(words)) // _CHARACTERS_PER_TOKEN + 1
        without = tuple(name for name, known in names.items() if known is None)
        return Completion(words, tokens, said.cut, without)

    def _learns_from(self, reply: Reply, names: Mapping[str, str | None]) -> bool:
        """Return whether the server refuses a name of a parameter: it is not used from now on."""
        refused = [
            (parameter, name)
            for parameter, name in names.items()
            if name and is_refused_parameter(reply, name, value=parameter != "max_tokens")
        ]
        for parameter, name in refused:
            if self._names[parameter] == name:  # else another question was first
                known = _SPELLINGS[parameter]
                self._names[parameter] = next(iter(known[known.index(name) + 1 :]), None)
        return bool(refused)
