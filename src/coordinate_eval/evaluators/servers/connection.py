"""An OpenAI-compatible server: one request and its reply, again until there is an answer.

What a server may do to a client is told apart here and in `replies.py`:

- It answers, or says that it will never answer this question.
- It is slow, busy, broken or away, or says something that is no answer: it is asked again, less
  and less often, for a bounded time. Then `ServerSilent`.
- It would answer no question, because of the key, the model's name or the address: `ServerRefuses`.

Nothing that the server sends is trusted: not its size, its shape, its headers, or where it wants
to be asked instead. The key goes into one header, and into no text.
"""

import asyncio
import contextlib
import http.cookiejar
import random
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar
from urllib.parse import urlsplit

from coordinate_eval import __version__
from coordinate_eval._format import brief
from coordinate_eval.errors import ServerSilent
from coordinate_eval.evaluators.servers.access import (
    LEAST_SECRET,
    Access,
    is_loopback,
    spellings,
)
from coordinate_eval.evaluators.servers.replies import (
    MOST_WORDS,
    Reply,
    TryAgain,
    check_status,
    decompressed,
    is_compressed,
    json_value,
    read_bounded,
    real_status,
    reason_of,
    unknown_model,
)

if TYPE_CHECKING:
    import httpx

T = TypeVar("T")

FIRST_PAUSE_SECONDS: Final = 0.5
"""Wait before a question is asked again. It doubles each time."""

MOST_PAUSE_SECONDS: Final = 30.0
"""Longest wait before a question is asked again, unless the server asks for a longer one."""

MOST_RETRY_AFTER_SECONDS: Final = 120.0
"""Longest wait that a server is granted with `Retry-After`."""

CONNECT_SECONDS: Final = 10.0

POOL: Final = 16
"""Connections of one pool: for each request, a pool looks at all pairs of its connections."""

MOST_MODELS_BYTES: Final = 8 << 20
"""Largest list of models that is read."""

MOST_ODD: Final = 4
"""Replies to a question that are whole and no answer, after which it has none. Others are due to a
server that is busy or broken: they may come until the patience is over."""

_NO_COOKIES = http.cookiejar.DefaultCookiePolicy(allowed_domains=[])


class Odd(Exception):
    """All replies to a question were whole, and no answer. The text has the words of the last."""


class _Gate:
    """Lets a number of questions in at the same time: fewer while the server says that it is busy.

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


class Server:
    """A server that is asked over HTTP. Enter it before asking.

    Args:
        access: where it is.
        concurrency: questions at the same time, at most. They become fewer while the server says
            that it is busy.
        timeout_seconds: for one answer; None for any time.
        patience_seconds: time without any answer, after the first failure, after which the server
            is given up; likewise of a single question while others are answered.
    """

    def __init__(
        self,
        access: Access,
        *,
        concurrency: int = 1,
        timeout_seconds: float | None = 600.0,
        patience_seconds: float = 600.0,
    ) -> None:
        self.access = access
        self._timeout_seconds, self._patience_seconds = timeout_seconds, patience_seconds
        self._gate = _Gate(concurrency)
        self._rest_until = 0.0
        """Time of the clock before which no question is begun, as the server has asked."""
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

        key = self.access.key
        by_proxy = not is_loopback(urlsplit(self.access.base_url).hostname or "")
        certificates = httpx.create_ssl_context(trust_env=by_proxy)
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=POOL)
        socket = self.access.socket
        connect = min(CONNECT_SECONDS, self._timeout_seconds or CONNECT_SECONDS)
        for _ in range(self._pools):
            client = httpx.AsyncClient(
                headers={
                    "User-Agent": f"coordinate-eval/{__version__}",
                    "Accept": "application/json",
                    "Accept-Encoding": "identity",
                    **({"Authorization": f"Bearer {key}"} if key else {}),
                },
                timeout=httpx.Timeout(None, connect=connect),
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

    async def insist(self, ask: Callable[[], Awaitable[T]]) -> T:
        """Return the answer to a question. It is asked again while the server says none.

        `ask` sends it once. It raises `TryAgain`, or what follows from a reply.

        Raises:
            Odd: the server has answered, several times, with something that is no answer.
            ServerSilent: it gave no usable answer to this one in a bounded time.
        """
        failing_since: float | None = None
        pause, odd = FIRST_PAUSE_SECONDS, 0
        while True:
            try:
                async with self._gate:
                    while (left := self._rest_until - time.monotonic()) > 0:
                        await asyncio.sleep(left)
                    began = time.monotonic()
                    answer = await ask()
            except TryAgain as failure:
                now = time.monotonic()
                odd += failure.odd
                if odd >= MOST_ODD:
                    self._failing_since = None
                    raise Odd(f"{failure}, {MOST_ODD} times") from None
                self.said = str(failure)
                self._failing_since = self._failing_since or now
                failing_since = failing_since or now
                if self._is_over(failing_since) or self.is_silent:
                    raise ServerSilent(self.said) from None
                if failure.busy:
                    self._gate.slow_down(began)
                rest = min(failure.retry_after or 0.0, MOST_RETRY_AFTER_SECONDS)
                self._rest_until = max(self._rest_until, now + rest)
            else:
                self._failing_since = None
                self._gate.speed_up()
                return answer
            await asyncio.sleep(pause * random.uniform(0.5, 1.0))  # noqa: S311 - spreads tries
            pause = min(2 * pause, MOST_PAUSE_SECONDS)

    async def request(self, method: str, path: str, most_bytes: int, body: object = None) -> Reply:
        """Send one request and return the reply, as far as it is not longer than allowed.

        Raises:
            TryAgain: no reply came.
        """
        import httpx

        where = self.access.base_url
        pool = self._used.index(min(self._used))
        self._used[pool] += 1
        try:
            async with (
                asyncio.timeout(self._timeout_seconds),
                self._clients[pool].stream(method, where + path, json=body) as response,
            ):
                content, cut = await read_bounded(response.aiter_raw(), most_bytes)
        except TimeoutError:
            why = f"no answer within {self._timeout_seconds or CONNECT_SECONDS:g} s from {where}"
            raise TryAgain(why) from None
        except (httpx.HTTPError, httpx.StreamError, OSError) as error:
            raise TryAgain(f"{self._masked(reason_of(error))} at {where}") from None
        finally:
            self._used[pool] -= 1
        if is_compressed(response.headers):
            content, more = decompressed(content, most_bytes)
            cut |= more
        headers = {name: self._masked(value) for name, value in response.headers.items()}
        text = self._masked(content.decode(errors="replace"))
        status = real_status(response.status_code, text)
        return Reply(status, headers, text, cut)

    async def models(self) -> Mapping[str, Mapping[str, Any]] | None:
        """Return what the server lists of its models, by name. None if its list proves nothing.

        Raises:
            TryAgain: no reply came.
            ServerRefuses: it refuses the key, or lists other models, and all that it has.
        """
        reply = await self.request("GET", "/models", MOST_MODELS_BYTES)
        if reply.status in (401, 403):
            check_status(reply, self.access)
        listed = json_value(reply.text) if reply.status == 200 and not reply.cut else None
        entries = listed.get("data") if isinstance(listed, dict) else None
        if not isinstance(listed, dict) or not isinstance(entries, list) or not entries:
            return None
        models = {str(each.get("id")): each for each in entries if isinstance(each, dict)}
        if self.access.model in models:
            return models
        if listed.get("has_more") or any("*" in name for name in models):
            return None
        if self.access.model:
            raise unknown_model(self.access, f"it has {brief(', '.join(models), MOST_WORDS)}")
        return models

    def _is_over(self, since: float | None) -> bool:
        return since is not None and time.monotonic() - since >= self._patience_seconds

    def _masked(self, text: str) -> str:
        """Return what the server sent without the key, which some servers repeat."""
        return self._key.sub("[key]", text) if self._key else text
