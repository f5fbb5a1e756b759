"""A judge behind an OpenAI-compatible server: one question in, one answer out.

What a server may do to a client is told apart here, in one place:

- It answers, or says that it will never answer this question: `Answer`.
- It is slow, busy, broken or away, or says something that is no answer: the question is asked
  again, less and less often, for a bounded time. Then `JudgeSilent`.
- It would answer no question, because of the key, the model's name or the address: `JudgeRefuses`.
- It does not support a parameter: all questions are asked without it, and answers say so.

Nothing that the server sends is trusted: not its size, its shape, its headers, or where it wants
to be asked instead. The key goes into one header, and into no text.
"""

import asyncio
import contextlib
import http.cookiejar
import json
import random
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, Self
from urllib.parse import urlsplit

from coordinate_eval import __version__
from coordinate_eval._format import brief
from coordinate_eval.errors import JudgeRefuses, JudgeSilent
from coordinate_eval.evaluators.judged.access import (
    LEAST_SECRET,
    Access,
    is_loopback,
    spellings,
)
from coordinate_eval.evaluators.judged.pacing import Gate, Pace
from coordinate_eval.evaluators.judged.prompts import question_of
from coordinate_eval.evaluators.judged.replies import (
    MOST_WORDS,
    Completion,
    Declined,
    Reply,
    TooMuch,
    TryAgain,
    check_status,
    decompressed,
    is_compressed,
    is_refused_parameter,
    json_value,
    read_bounded,
    read_reply,
    real_status,
    reason_of,
    unknown_model,
)
from coordinate_eval.evaluators.judged.thinking import BEGIN, begun_before, spoken
from coordinate_eval.records import Answer, Question

if TYPE_CHECKING:
    import httpx

FIRST_PAUSE_SECONDS: Final = 0.5
"""Wait before a question is asked again. It doubles each time."""

MOST_PAUSE_SECONDS: Final = 30.0
"""Longest wait before a question is asked again, unless the server asks for a longer one."""

MOST_RETRY_AFTER_SECONDS: Final = 120.0
"""Longest wait that a server is granted with `Retry-After`."""

CHECK_SECONDS: Final = 10.0
"""Time for the answer to whether key and model are known."""

TRIAL_SECONDS: Final = 60.0
"""Time for the answer to a test question. What is wrong with one is said at once; a judge that
thinks for longer has taken it."""

CONNECT_SECONDS: Final = 10.0

POOL: Final = 16
"""Connections of one pool: for each request, a pool looks at all pairs of its connections."""

MOST_MODELS_BYTES: Final = 8 << 20
"""Largest list of models that is read."""

MOST_TOKENS: Final = 1_000_000
"""Most tokens of an answer that can be asked for."""

_ENVELOPE_BYTES, _BYTES_PER_TOKEN = 1 << 16, 64
"""An answer may have this many bytes besides, and for each of its tokens. Tokens have some 4 bytes;
in JSON a character may take 12."""

_CHARACTERS_PER_TOKEN = 4
"""Assumed size of a token where a server does not count them."""

MOST_ODD: Final = 4
"""Replies of a question that are whole and no answer, after which it has none. Others are due to a
server that is busy or broken: they may come until the patience is over."""

_SPELLINGS: Final = {
    "max_tokens": ("max_tokens", "max_completion_tokens"),
    "temperature": ("temperature",),
}
"""Parameters of a question, and the names under which servers know them. Newer ones refuse the
first name of an answer's limit, older ones the second; and some models have a fixed temperature."""

_NO_COOKIES = http.cookiejar.DefaultCookiePolicy(allowed_domains=[])


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


class Endpoint:
    """A judge that is asked over HTTP. Enter it before asking.

    Args:
        access: where it is.
        concurrency: questions at the same time, at most. They become fewer while the server says
            that it is busy.
        requests_per_minute: questions that are begun within a minute; None for any number.
        timeout_seconds: for one answer.
        patience_seconds: time without any answer, after the first failure, after which the judge
            is given up; likewise of a single question while others are answered.
        most_tokens: longest answer that it is asked for.
        extra: parameters of this server that every question gets.
        begins_thinking: its prompts begin the thinking, so that answers have only its end.
    """

    def __init__(
        self,
        access: Access,
        *,
        concurrency: int = 1,
        requests_per_minute: float | None = None,
        timeout_seconds: float = 600.0,
        patience_seconds: float = 600.0,
        most_tokens: int = MOST_TOKENS,
        extra: Mapping[str, object] | None = None,
        begins_thinking: bool = False,
    ) -> None:
        self._access = access
        self._most_tokens, self._extra = most_tokens, dict(extra or {})
        self._timeout_seconds, self._patience_seconds = timeout_seconds, patience_seconds
        self._gate = Gate(concurrency)
        self._pace = Pace(requests_per_minute)
        self._names: dict[str, str | None] = {name: of[0] for name, of in _SPELLINGS.items()}
        """The name of each parameter on this server; None if it knows none."""
        self._begins_thinking = begins_thinking
        self._key = spellings(access.key) if len(access.key) >= LEAST_SECRET else None
        self._failing_since: float | None = None
        self._pools = -(-concurrency // POOL)
        self._clients: list[httpx.AsyncClient] = []
        self._used: list[int] = []
        self._open = contextlib.AsyncExitStack()
        self.said = ""
        """The reason of its last failure."""

    async def __aenter__(self) -> Self:
        import httpx

        key = self._access.key
        by_proxy = not is_loopback(urlsplit(self._access.base_url).hostname or "")
        certificates = httpx.create_ssl_context(trust_env=by_proxy)
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=POOL)
        socket = self._access.socket
        for _ in range(self._pools):
            client = httpx.AsyncClient(
                headers={
                    "User-Agent": f"coordinate-eval/{__version__}",
                    "Accept": "application/json",
                    "Accept-Encoding": "identity",
                    **({"Authorization": f"Bearer {key}"} if key else {}),
                },
                timeout=httpx.Timeout(None, connect=min(CONNECT_SECONDS, self._timeout_seconds)),
                limits=limits,
                transport=httpx.AsyncHTTPTransport(uds=socket, limits=limits) if socket else None,
                # What it has us keep would grow, and go back to it with each question.
                cookies=http.cookiejar.CookieJar(_NO_COOKIES),
                # It would be asked with the key wherever it sends us.
                follow_redirects=False,
                trust_env=by_proxy,
                verify=certificates,
            )
            self._clients.append(await self._open.enter_async_context(client))
        self._used = [0] * self._pools
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._open.aclose()

    @property
    def is_failing(self) -> bool:
        """Return whether nothing but failures came last."""
        return self._failing_since is not None

    @property
    def is_silent(self) -> bool:
        """Return whether nothing but failures came for the patience."""
        return self._is_over(self._failing_since)

    async def ask(self, question: Question) -> Answer:
        """Return the judge's answer, or why it will never answer this question.

        Raises:
            JudgeRefuses: it would answer no question.
            JudgeSilent: it gave no usable answer to this one in a bounded time.
        """
        asked = json.loads(question.content)
        asked["max_tokens"] = min(asked["max_tokens"], self._most_tokens)
        failing_since: float | None = None
        pause, odd = FIRST_PAUSE_SECONDS, 0
        while True:
            try:
                async with self._gate:
                    await self._pace.wait()
                    return await self._try(question, asked)
            except TryAgain as failure:
                now = time.monotonic()
                odd += failure.odd
                if odd >= MOST_ODD:
                    self._failing_since = None
                    why = f"refused: {failure}, {MOST_ODD} times"
                    return Answer(id=question.id, passed=False, result=why, seconds=0.0)
                self.said = str(failure)
                self._failing_since = self._failing_since or now
                failing_since = failing_since or now
                if self._is_over(failing_since) or self.is_silent:
                    raise JudgeSilent(self.said) from None
                if failure.retry_after is not None:
                    self._pace.rest(min(failure.retry_after, MOST_RETRY_AFTER_SECONDS))
            await asyncio.sleep(pause * random.uniform(0.5, 1.0))  # noqa: S311 - spreads tries
            pause = min(2 * pause, MOST_PAUSE_SECONDS)

    async def check(self) -> int | None:
        """Ask once whether the judge knows key and model. Return the tokens of its context.

        A server that does not list its models, or not all, gets a question of one word. Few tell
        their context; vLLM does. None if it is unknown.

        Raises:
            JudgeRefuses: the judge does not know them.
            JudgeSilent: the judge gave no usable answer.
        """
        try:
            async with asyncio.timeout(CHECK_SECONDS):
                listed = await self._listed_model()
                if listed is None:
                    asked = {"messages": [{"role": "user", "content": "Say OK."}], "max_tokens": 16}
                    await self._complete(asked)
        except TryAgain as failure:
            raise JudgeSilent(str(failure)) from None
        except TimeoutError:
            raise JudgeSilent(f"no answer within {CHECK_SECONDS:g} s from {self._where}") from None
        length = (listed or {}).get("max_model_len")
        return length if type(length) is int else None

    async def try_out(self, asked: Mapping[str, Any]) -> Completion | None:
        """Ask a question once, to see whether the judge takes it with its parameters.

        Returns:
            what it says; None if it is still thinking after a while, or declines.

        Raises:
            JudgeRefuses: it would answer no such question.
            JudgeSilent: it gave no usable answer.
        """
        try:
            async with asyncio.timeout(TRIAL_SECONDS):
                return await self._complete(asked)
        except TooMuch as error:
            raise JudgeRefuses(f"the judge answers no such questions: {error}") from None
        except TryAgain as failure:
            raise JudgeSilent(str(failure)) from None
        except (Declined, TimeoutError):
            return None

    @property
    def _where(self) -> str:
        return self._access.base_url

    def _is_over(self, since: float | None) -> bool:
        return since is not None and time.monotonic() - since >= self._patience_seconds

    async def _try(self, question: Question, asked: Mapping[str, Any]) -> Answer:
        """Ask once, and again without what the server does not support."""
        began = time.monotonic()
        try:
            said = await self._complete(asked)
        except Declined as declined:
            passed, said = False, Completion(f"refused: {declined}", 0)
        except TryAgain as failure:
            if failure.busy:
                self._gate.slow_down(began)
            raise
        else:
            passed = True
            self._gate.speed_up()
        self._failing_since = None
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
            body = {"model": self._access.model, "messages": asked["messages"]}
            body |= {known: asked[name] for name, known in names.items() if known} | self._extra
            reply = await self._request("POST", "/chat/completions", most_bytes, body)
            if not self._learns_from(reply, names):
                break
        said = read_reply(reply, self._access)
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

    async def _listed_model(self) -> Mapping[str, Any] | None:
        """Return what the server lists of the model. None if its list proves nothing.

        Raises:
            JudgeRefuses: it lists others, and all that it has.
        """
        reply = await self._request("GET", "/models", MOST_MODELS_BYTES)
        if reply.status in (401, 403):
            check_status(reply, self._access)
        listed = json_value(reply.text) if reply.status == 200 and not reply.cut else None
        entries = listed.get("data") if isinstance(listed, dict) else None
        if not isinstance(listed, dict) or not isinstance(entries, list) or not entries:
            return None
        models = {str(each.get("id")): each for each in entries if isinstance(each, dict)}
        if self._access.model in models:
            return models[self._access.model]
        if listed.get("has_more") or any("*" in name for name in models):
            return None
        raise unknown_model(self._access, f"it has {brief(', '.join(models), MOST_WORDS)}")

    async def _request(self, method: str, path: str, most_bytes: int, body: object = None) -> Reply:
        """Send one request and return the reply, as far as it is not longer than allowed.

        Raises:
            TryAgain: no reply came.
        """
        import httpx

        url = self._where + path
        pool = self._used.index(min(self._used))
        self._used[pool] += 1
        try:
            async with (
                asyncio.timeout(self._timeout_seconds),
                self._clients[pool].stream(method, url, json=body) as response,
            ):
                content, cut = await read_bounded(response.aiter_raw(), most_bytes)
        except TimeoutError:
            why = f"no answer within {self._timeout_seconds:g} s from {self._where}"
            raise TryAgain(why) from None
        except (httpx.HTTPError, httpx.StreamError, OSError) as error:
            raise TryAgain(f"{self._masked(reason_of(error))} at {self._where}") from None
        finally:
            self._used[pool] -= 1
        if is_compressed(response.headers):
            content, more = decompressed(content, most_bytes)
            cut |= more
        headers = {name: self._masked(value) for name, value in response.headers.items()}
        text = self._masked(content.decode(errors="replace"))
        status = real_status(response.status_code, text)
        return Reply(status, headers, text, cut)

    def _masked(self, text: str) -> str:
        """Return what the server sent without the key, which some servers repeat."""
        return self._key.sub("[key]", text) if self._key else text
