"""A judge behind an OpenAI-compatible server: one question in, one answer out.

What a server may do to a client is told apart here, in one place:

- It answers, or says that it will never answer this question: `Answer`.
- It is slow, busy, broken or away, or says something that is no answer: the question is asked
  again, ever later, for a bounded time. Then `JudgeSilent`.
- It would answer no question, because of the key, the model's name or the address: `JudgeRefuses`.

Nothing that the server sends is trusted: not its size, its shape, its headers, or where it wants
to be asked instead. The key goes into one header, and into no text.
"""

import asyncio
import contextlib
import email.utils
import http.cookiejar
import ipaddress
import json
import os
import random
import re
import time
import zlib
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, Self
from urllib.parse import urlsplit

from coordinate_eval import __version__
from coordinate_eval._format import brief
from coordinate_eval.errors import JudgeRefuses, JudgeSilent, UserError
from coordinate_eval.evaluators.judged.prompts import question_of
from coordinate_eval.records import Answer, Question

if TYPE_CHECKING:
    import httpx

FIRST_PAUSE_SECONDS: Final = 0.5
"""Wait before a question is asked again. It doubles each time."""

MOST_PAUSE_SECONDS: Final = 30.0
"""Longest wait before a question is asked again, but for one that the server asks for."""

MOST_RETRY_AFTER_SECONDS: Final = 120.0
"""Longest wait that a server is granted with `Retry-After`."""

CHECK_SECONDS: Final = 10.0
"""Time for the answer to whether key and model are known."""

CONNECT_SECONDS: Final = 10.0

POOL: Final = 16
"""Connections of one pool: for each request, a pool looks at all pairs of its connections."""

MOST_MODELS_BYTES: Final = 8 << 20
"""Largest list of models that is read."""

MOST_TOKENS: Final = 1_000_000
"""Most tokens of an answer that can be asked for."""

MOST_WORDS: Final = 300
"""Characters of the server's own words within a message."""

LEAST_SECRET: Final = 8
"""Characters of a key that is a secret. A shorter one, such as "none", is also a usual word."""

_ENVELOPE_BYTES, _BYTES_PER_TOKEN = 1 << 16, 64
"""An answer may have this many bytes besides, and for each of its tokens. Tokens have some 4 bytes;
in JSON a character may take 12."""

_CHARACTERS_PER_TOKEN = 4
"""Taken for the size of a token where a server does not count them."""

_LIMIT_NAMES = ("max_tokens", "max_completion_tokens")
"""Names of the limit of an answer. Newer servers refuse the first, older ones the second."""

_TOO_LONG = re.compile(
    r"context.{0,3}(length|window|size)|maximum.{0,40}(token|length)|too (long|large|many tokens)"
    r"|exceed.{0,40}(token|length|context)|max_model_len",
    re.IGNORECASE | re.DOTALL,
)
_AGAINST_POLICY = re.compile(
    r"content.{0,3}(policy|filter|management)|moderation|flagged|usage polic|safety",
    re.IGNORECASE | re.DOTALL,
)
_NO_SUCH_MODEL = re.compile(
    r"model_not_found|invalid_model|unknown model|(no such|invalid) model"
    r"|model.{0,200}(does not exist|not (found|exist|available))",
    re.IGNORECASE | re.DOTALL,
)
_NO_COOKIES = http.cookiejar.DefaultCookiePolicy(allowed_domains=[])

_COMPRESSED = frozenset({"gzip", "x-gzip", "deflate"})
_ANY_HEADER = zlib.MAX_WBITS | 32
"""Lets zlib find out which of them it is."""

_UNKNOWN_NAME = re.compile(
    r"un(supported|recognized|known|expected)|not (supported|permitted|allowed|recognized)|extra"
    r"|instead",
    re.IGNORECASE,
)
_ASK_AGAIN = frozenset({408, 409, 425, 429})
_REFUSED = frozenset({413, 422})


@dataclass(frozen=True)
class Access:
    """Where a judge is, and what it is called there."""

    base_url: str
    model: str
    key: str = field(default="", repr=False)
    section: str = "judge"
    """Of the settings that name it."""

    @classmethod
    def of(
        cls,
        base_url: str,
        model: str,
        key_variable: str | None,
        environ: Mapping[str, str],
        section: str = "judge",
    ) -> Self:
        """Return the access that settings of a section and the environment give.

        Raises:
            UserError: the address is none, holds a secret, or the key is not there.
        """
        key = read_key(key_variable, environ, section)
        return cls(_checked(base_url, section), model, key, section)


def _checked(base_url: str, section: str) -> str:
    what = f"setting {section}.base_url {_without_secrets(base_url)!r}"
    try:
        parts = urlsplit(base_url)
        host, _ = parts.hostname, parts.port
    except ValueError:
        raise UserError(f"{what} is no address: give one such as http://host:8000/v1") from None
    if parts.scheme not in ("http", "https") or not host or not base_url.isprintable():
        raise UserError(f"{what} is no address: give one such as http://host:8000/v1")
    if parts.username or parts.password:
        raise UserError(
            f"{what} holds a password, which would stand in files of the run: put it into an "
            f"environment variable, and the variable's name into [{section}] api_key_env"
        )
    if parts.query or parts.fragment:
        raise UserError(f"{what} must end with its path, such as /v1")
    return base_url.rstrip("/")


def _without_secrets(base_url: str) -> str:
    return re.sub(r"//[^/]*@", "//…@", base_url.partition("?")[0])


def read_key(variable: str | None, environ: Mapping[str, str], section: str = "judge") -> str:
    """Return the key in an environment variable; an empty text if none is named.

    Raises:
        UserError: the variable is not set, or holds what cannot be a key.
    """
    if not variable:
        return ""
    key = environ.get(variable, "").strip()
    where = f"environment variable {brief(variable, 100)}, which [{section}] api_key_env names,"
    if not key:
        raise UserError(f"{where} is not set: export it, or leave out api_key_env")
    if not re.fullmatch(r"[!-~]+", key):
        raise UserError(f"{where} holds no key: it must be ASCII without spaces")
    return key


def is_question(question: Question, judge: str) -> bool:
    """Return whether a question is one to this judge, and is what its id says."""
    if question != question_of(judge, question.content):
        return False
    asked = _json(question.content)
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
    """

    def __init__(
        self,
        access: Access,
        *,
        concurrency: int = 1,
        requests_per_minute: float | None = None,
        timeout_seconds: float = 600.0,
        patience_seconds: float = 600.0,
    ) -> None:
        self._access = access
        self._timeout_seconds, self._patience_seconds = timeout_seconds, patience_seconds
        self._gate = _Gate(concurrency)
        self._pace = _Pace(requests_per_minute)
        self._limit_name = _LIMIT_NAMES[0]
        self._key = _spellings(access.key) if len(access.key) >= LEAST_SECRET else None
        self._failing_since: float | None = None
        self._pools = -(-concurrency // POOL)
        self._clients: list[httpx.AsyncClient] = []
        self._used: list[int] = []
        self._open = contextlib.AsyncExitStack()
        self.said = ""
        """What was wrong when it failed last."""

    async def __aenter__(self) -> Self:
        import httpx

        key = self._access.key
        by_proxy = not _is_loopback(urlsplit(self._access.base_url).hostname or "")
        certificates = httpx.create_ssl_context(trust_env=by_proxy)
        for _ in range(self._pools):
            client = httpx.AsyncClient(
                headers={
                    "User-Agent": f"coordinate-eval/{__version__}",
                    "Accept": "application/json",
                    "Accept-Encoding": "identity",
                    **({"Authorization": f"Bearer {key}"} if key else {}),
                },
                timeout=httpx.Timeout(None, connect=min(CONNECT_SECONDS, self._timeout_seconds)),
                limits=httpx.Limits(max_connections=None, max_keepalive_connections=POOL),
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
        """Whether nothing but failures came last."""
        return self._failing_since is not None

    @property
    def is_silent(self) -> bool:
        """Whether nothing but failures came for the patience."""
        return self._is_over(self._failing_since)

    async def ask(self, question: Question) -> Answer:
        """Return the judge's answer, or why it will never answer this question.

        Raises:
            JudgeRefuses: it would answer no question.
            JudgeSilent: it gave no usable answer to this one in a bounded time.
        """
        asked = json.loads(question.content)
        failing_since: float | None = None
        pause = FIRST_PAUSE_SECONDS
        while True:
            try:
                async with self._gate:
                    await self._pace.wait()
                    return await self._try(question, asked)
            except _TryAgain as failure:
                now = time.monotonic()
                self.said = str(failure)
                self._failing_since = self._failing_since or now
                failing_since = failing_since or now
                if self._is_over(failing_since) or self.is_silent:
                    raise JudgeSilent(self.said) from None
                if failure.retry_after is not None:
                    self._pace.rest(min(failure.retry_after, MOST_RETRY_AFTER_SECONDS))
            await asyncio.sleep(pause * random.uniform(0.5, 1.0))  # noqa: S311 - spreads tries
            pause = min(2 * pause, MOST_PAUSE_SECONDS)

    async def check(self) -> None:
        """Ask once whether the judge knows key and model.

        A server that does not list its models, or not all, gets a question of one word.

        Raises:
            JudgeRefuses: it does not.
            JudgeSilent: nobody knows.
        """
        try:
            async with asyncio.timeout(CHECK_SECONDS):
                if not await self._lists_model():
                    asked = {"messages": [{"role": "user", "content": "Say OK."}], "max_tokens": 16}
                    await self._complete(asked)
        except _TryAgain as failure:
            raise JudgeSilent(str(failure)) from None
        except TimeoutError:
            raise JudgeSilent(f"no answer within {CHECK_SECONDS:g} s from {self._where}") from None

    @property
    def _where(self) -> str:
        return self._access.base_url

    def _is_over(self, since: float | None) -> bool:
        return since is not None and time.monotonic() - since >= self._patience_seconds

    async def _try(self, question: Question, asked: Mapping[str, Any]) -> Answer:
        """Ask once, or twice if the server knows the limit of an answer by its other name."""
        began = time.monotonic()
        try:
            words, tokens = await self._complete(asked)
        except _Declined as declined:
            result = f"refused: {declined}"
            passed, tokens = False, 0
        except _TryAgain as failure:
            if failure.busy:
                self._gate.slow_down(began)
            raise
        else:
            passed, result = True, words
            self._gate.speed_up()
        self._failing_since = None
        seconds = time.monotonic() - began
        return Answer(id=question.id, passed=passed, result=result, seconds=seconds, tokens=tokens)

    async def _complete(self, asked: Mapping[str, Any]) -> tuple[str, int]:
        """Return the judge's words, and the tokens that it read and wrote."""
        most = int(asked["max_tokens"])
        name = self._limit_name
        body = {"model": self._access.model, "messages": asked["messages"], name: most}
        if "temperature" in asked:
            body["temperature"] = asked["temperature"]
        most_bytes = _ENVELOPE_BYTES + _BYTES_PER_TOKEN * most
        reply = await self._request("POST", "/chat/completions", most_bytes, body)
        if reply.status in (400, 422) and self._knows_other_name(name, reply.text):
            return await self._complete(asked)
        self._check_status(reply)
        if reply.cut:
            raise _TryAgain(f"more than {most_bytes >> 10} KiB from {self._where}")
        words, tokens = _read_completion(reply.text, self._where)
        if tokens is None:
            said = sum(len(str(message.get("content"))) for message in asked["messages"])
            tokens = (said + len(words)) // _CHARACTERS_PER_TOKEN + 1
        return words, tokens

    def _knows_other_name(self, name: str, words: str) -> bool:
        """Return whether the server wants the limit of an answer by its other name, from now on."""
        if not re.search(rf"\b{name}\b", words) or not _UNKNOWN_NAME.search(words):
            return False
        if name == self._limit_name == _LIMIT_NAMES[0]:
            self._limit_name = _LIMIT_NAMES[1]
        return name != self._limit_name

    async def _lists_model(self) -> bool:
        """Return whether the server lists the model. False if its list proves nothing.

        Raises:
            JudgeRefuses: it lists others, and all that it has.
        """
        reply = await self._request("GET", "/models", MOST_MODELS_BYTES)
        if reply.status in (401, 403):
            self._check_status(reply)
        listed = _json(reply.text) if reply.status == 200 and not reply.cut else None
        entries = listed.get("data") if isinstance(listed, dict) else None
        if not isinstance(listed, dict) or not isinstance(entries, list) or not entries:
            return False
        names = [str(each.get("id")) for each in entries if isinstance(each, dict)]
        if self._access.model in names:
            return True
        if listed.get("has_more") or any("*" in name for name in names):
            return False
        raise self._unknown_model(f"it has {brief(', '.join(names), MOST_WORDS)}")

    async def _request(
        self, method: str, path: str, most_bytes: int, body: object = None
    ) -> "_Reply":
        """Send one request and return the reply, as far as it is not longer than allowed.

        Raises:
            _TryAgain: there is none.
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
                content, cut = await _read(response.aiter_raw(), most_bytes)
        except TimeoutError:
            why = f"no answer within {self._timeout_seconds:g} s from {self._where}"
            raise _TryAgain(why) from None
        except (httpx.HTTPError, httpx.StreamError, OSError) as error:
            raise _TryAgain(f"{self._masked(_why(error))} at {self._where}") from None
        finally:
            self._used[pool] -= 1
        if response.headers.get("content-encoding", "").strip().lower() in _COMPRESSED:
            content, more = _decompressed(content, most_bytes)
            cut |= more
        headers = {name: self._masked(value) for name, value in response.headers.items()}
        text = self._masked(content.decode(errors="replace"))
        return _Reply(response.status_code, headers, text, cut)

    def _masked(self, text: str) -> str:
        """Return what the server sent without the key, which some servers repeat."""
        return self._key.sub("[key]", text) if self._key else text

    def _check_status(self, reply: "_Reply") -> None:
        """Raise what follows from a status that is no success."""
        status, words = reply.status, _words(reply.text)
        said = f"{words or 'no reason given'} (HTTP {status} from {self._where})"
        if 200 <= status < 300:
            return
        if status in (400, 403) and _AGAINST_POLICY.search(words):
            raise _Declined(said)
        if status in (401, 403):
            # Some servers repeat a part of the key.
            raise JudgeRefuses(
                f"the judge at {self._where} refuses the key (HTTP {status}): set the variable "
                f"that [{self._access.section}] api_key_env names, and export it"
            )
        if status == 404 or (status == 400 and _NO_SUCH_MODEL.search(reply.text)):
            raise self._unknown_model(said)
        if status in _REFUSED or (status == 400 and _TOO_LONG.search(words)):
            raise _Declined(said)
        if 300 <= status < 400:
            to = brief(reply.headers.get("location", "somewhere else"), MOST_WORDS)
            raise JudgeRefuses(
                f"the judge at {self._where} sends its questions to {to} (HTTP {status}), and the "
                f"key is not sent there: set [{self._access.section}] base_url to where it is"
            )
        if status in _ASK_AGAIN or status >= 500:
            retry_after = _retry_after(reply.headers.get("retry-after", ""))
            raise _TryAgain(said, retry_after=retry_after, busy=status in (429, 503))
        raise JudgeRefuses(f"the judge answers no such questions: {said}")

    def _unknown_model(self, said: str) -> JudgeRefuses:
        return JudgeRefuses(
            f"the judge at {self._where} has no model {brief(self._access.model, 200)!r}: {said}. "
            f"Set [{self._access.section}] base_url up to and with /v1 and resume the run, or "
            "start a new one with a model that it has"
        )


class _TryAgain(Exception):
    """No usable answer this time."""

    def __init__(self, why: str, *, retry_after: float | None = None, busy: bool = False) -> None:
        super().__init__(why)
        self.retry_after, self.busy = retry_after, busy


class _Declined(Exception):
    """The judge will never answer this question. The text has its words."""


@dataclass(frozen=True)
class _Reply:
    status: int
    headers: Mapping[str, str]
    text: str
    cut: bool
    """It was longer than is read."""


class _Gate:
    """Lets a number of questions in at the same time: fewer while the judge says that it is busy.

    The number is halved for each wave of such answers, and grows by one for each wave of others
    (D.-M. Chiu and R. Jain, "Analysis of the Increase and Decrease Algorithms for Congestion
    Avoidance in Computer Networks", 1989).
    """

    def __init__(self, most: int) -> None:
        self._most, self._now, self._inside = most, float(most), 0
        self._slowed = 0.0
        self._left = asyncio.Condition()

    async def __aenter__(self) -> None:
        async with self._left:
            await self._left.wait_for(lambda: self._inside < int(self._now))
            self._inside += 1

    async def __aexit__(self, *_: object) -> None:
        async with self._left:
            self._inside -= 1
            self._left.notify(2)  # it may have become wider by one

    def slow_down(self, began: float) -> None:
        """Halve the number, unless that was done after this question began."""
        if began > self._slowed:
            self._slowed = time.monotonic()
            self._now = max(1.0, self._now / 2)

    def speed_up(self) -> None:
        """Count an answer."""
        self._now = min(float(self._most), self._now + 1 / self._now)


class _Pace:
    """Begins so many questions in a minute: a bucket that fills steadily and holds one token."""

    def __init__(self, per_minute: float | None) -> None:
        self._seconds = 60 / per_minute if per_minute else 0.0
        self._next = 0.0

    async def wait(self) -> None:
        """Wait until a question may begin."""
        now = time.monotonic()
        begin = max(now, self._next)
        if self._seconds:
            self._next = begin + self._seconds
        if begin > now:
            await asyncio.sleep(begin - now)

    def rest(self, seconds: float) -> None:
        """Begin no question for so long."""
        self._next = max(self._next, time.monotonic() + seconds)


async def _read(chunks: AsyncIterator[bytes], most_bytes: int) -> tuple[bytes, bool]:
    """Return the bytes up to a number, and whether there were more."""
    content = bytearray()
    async for chunk in chunks:
        content += chunk
        if len(content) > most_bytes:
            return bytes(content[:most_bytes]), True
    return bytes(content), False


def _decompressed(content: bytes, most_bytes: int) -> tuple[bytes, bool]:
    """Return the decompressed bytes up to a number, and whether there were more.

    A few of them may stand for gigabytes. What is not compressed stays as it is.
    """
    try:
        found = zlib.decompressobj(_ANY_HEADER).decompress(content, most_bytes + 1)
    except zlib.error:
        return content, False
    return found[:most_bytes], len(found) > most_bytes


def _spellings(key: str) -> re.Pattern[str]:
    """Return a pattern of a key as JSON, JSON within JSON, or an address may spell it."""
    return re.compile(
        "".join(
            rf"\\{{0,4}}(?:{re.escape(each)}|u(?i:{ord(each):04x})|%(?i:{ord(each):02x}))"
            for each in key
        )
    )


def _read_completion(text: str, where: str) -> tuple[str, int | None]:
    """Return the words of a completion, and its tokens if the server says how many.

    Raises:
        _TryAgain: it is none.
        _Declined: a filter of the server, or the judge, has declined to answer.
    """
    value = _json(text)
    choices = value.get("choices") if isinstance(value, dict) else None
    first = choices[0] if isinstance(choices, list) and choices else None
    message = first.get("message") if isinstance(first, dict) else None
    if not isinstance(value, dict) or not isinstance(first, dict) or not isinstance(message, dict):
        words = _words(text) or "nothing"
        raise _TryAgain(f"no answer but {words!r} from {where}")
    content, refusal = message.get("content"), message.get("refusal")
    if isinstance(refusal, str) and refusal and not content:
        raise _Declined(brief(_clean(refusal), MOST_WORDS))
    if first.get("finish_reason") == "content_filter":
        raise _Declined(f"its content filter (from {where})")
    if content is None and first.get("finish_reason") == "length":
        content = ""  # it thought for all of its tokens
    if not isinstance(content, str):
        raise _TryAgain(f"an answer without words from {where}")
    usage = value.get("usage")
    return _clean(content), _count(usage) if isinstance(usage, dict) else None


def _count(usage: Mapping[str, object]) -> int | None:
    """Return the tokens of question and answer, None if a server's figures are none."""
    tokens = 0
    for name in ("prompt_tokens", "completion_tokens"):
        count = usage.get(name)
        if not isinstance(count, int) or not 0 <= count < 1 << 40:
            return None
        tokens += count
    return tokens


def _json(text: str) -> Any:  # noqa: ANN401 - any JSON value
    """Return a JSON value, None for a text that is none."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _clean(text: str) -> str:
    """Return a text without halves of characters, which no file can hold."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _words(text: str) -> str:
    """Return what a server says is wrong, on one line and bounded."""
    value = _json(text)
    error = value.get("error", value) if isinstance(value, dict) else text
    if isinstance(error, dict):
        error = error.get("message") or error.get("detail") or error
    return brief(_clean(str(error)[: 10 * MOST_WORDS]), MOST_WORDS)


def _retry_after(text: str) -> float | None:
    """Return the seconds of `Retry-After`: a number, or a date (RFC 9110, section 10.2.3)."""
    if re.fullmatch(r"\d{1,9}(\.\d{1,9})?", text.strip()):
        return float(text)
    with contextlib.suppress(ValueError, TypeError, OverflowError):
        date = email.utils.parsedate_to_datetime(text)
        date = date if date.tzinfo else date.replace(tzinfo=UTC)
        return max(0.0, (date - datetime.now(UTC)).total_seconds())
    return None


def _why(error: Exception) -> str:
    """Return what went wrong with a connection: the system's words if there are some."""
    for each in _chain(error):
        if isinstance(each, OSError) and each.errno and each.errno > 0:
            return os.strerror(each.errno).lower()
        if isinstance(each, OSError) and each.strerror:  # of a name that is not known
            return brief(each.strerror, MOST_WORDS).lower()
    return f"{brief(error, MOST_WORDS) or 'a broken connection'} ({type(error).__name__})"


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an error and what caused it, groups included."""
    while error is not None:
        yield error
        if isinstance(error, BaseExceptionGroup):
            for each in error.exceptions:
                yield from _chain(each)
        error = error.__cause__ or error.__context__


def _is_loopback(host: str) -> bool:
    """Return whether a host is this machine: no proxy is asked for it."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
