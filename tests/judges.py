"""A judge for tests: an OpenAI-compatible server that behaves, or misbehaves, as a test says."""

import asyncio
import contextlib
import json
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Self

from coordinate_eval.evaluators.judged.endpoint import Endpoint
from coordinate_eval.evaluators.judged.prompts import question_of
from coordinate_eval.evaluators.servers.access import Access
from coordinate_eval.records import Answer, Question
from tests.runs import PATIENCE_SECONDS


@dataclass
class Reply:
    """What the server does with one request."""

    status: int = 200
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)
    after_seconds: float = 0.0
    when: Callable[[], bool] = lambda: True
    """It is held back until this is so."""
    claims_bytes: int | None = None
    """Its Content-Length, where that is a lie: the connection is torn after `body`."""
    drops: bool = False
    """It closes the connection without a word."""


Behaviour = Callable[[dict[str, Any], int], Reply]


def says(words: object, **more: object) -> Reply:
    """An answer in these words."""
    choice = {"index": 0, "message": {"role": "assistant", "content": words}, **more}
    usage = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}
    return Reply(body=json.dumps({"choices": [choice], "usage": usage}).encode())


def fails(status: int, message: str = "", **headers: str) -> Reply:
    """An error, as OpenAI's servers word it."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    body = json.dumps({"error": {"message": message, "type": "error"}}).encode()
    return Reply(status=status, body=body, headers=named)


class Judge:
    """A server on this machine, in a thread. `behave` gets each body, and how many came before.

    Args:
        behave: what it does with a question.
        models: the names that it lists, None if it has no such list.
        context: the tokens that it says they have, None if it does not tell.
        key: the only one that it accepts, if it wants one.
        port: to listen on; any free one by default.
    """

    def __init__(
        self,
        behave: Callable[[dict[str, Any], int], Reply] = lambda body, number: says("[[5]]"),
        models: list[str] | None = None,
        key: str = "",
        port: int = 0,
        context: object = None,
    ) -> None:
        self._behave, self._models, self._key, self.port = behave, models, key, port
        self._told = {} if context is None else {"max_model_len": context}
        self.asked: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.at_once = self.most_at_once = 0
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._connections: set[asyncio.StreamWriter] = set()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    def __enter__(self) -> Self:
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._start(), self._loop).result(PATIENCE_SECONDS)
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.run_coroutine_threadsafe(self._stop(), self._loop).result(PATIENCE_SECONDS)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(PATIENCE_SECONDS)
        self._loop.close()

    async def _start(self) -> None:
        self._server = await asyncio.start_server(
            self._serve, "127.0.0.1", self.port, backlog=4096, limit=1 << 24
        )
        self.port = self._server.sockets[0].getsockname()[1]

    async def _stop(self) -> None:
        self._server.close()
        for writer in list(self._connections):
            writer.transport.abort()
        current = asyncio.current_task()
        others = [task for task in asyncio.all_tasks() if task is not current]
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._connections.add(writer)
        try:
            while await self._reply(reader, writer):
                pass
        except (OSError, asyncio.IncompleteReadError):
            pass  # the client has gone
        finally:
            self._connections.discard(writer)
            writer.close()

    async def _reply(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        headers = dict(line.lower().split(": ", 1) for line in head[1:] if ": " in line)
        plain = dict(line.split(": ", 1) for line in head[1:] if ": " in line)
        content = await reader.readexactly(int(headers.get("content-length", "0")))
        self.headers.append({name.lower(): value for name, value in plain.items()})
        reply = await self._decide(head[0].split(" ")[1], content, self.headers[-1])
        if reply.drops:
            return False
        length = reply.claims_bytes or len(reply.body)
        lines = [f"HTTP/1.1 {reply.status} Whatever", f"Content-Length: {length}"]
        lines += [f"{name}: {value}" for name, value in reply.headers.items()]
        writer.write("\r\n".join([*lines, "", ""]).encode() + reply.body)
        await writer.drain()
        return reply.claims_bytes is None

    async def _decide(self, path: str, content: bytes, headers: dict[str, str]) -> Reply:
        if self._key and headers.get("authorization") != f"Bearer {self._key}":
            return fails(401, f"Incorrect API key provided: {headers.get('authorization')}")
        if path.endswith("/models"):
            if self._models is None:
                return fails(404, "no such path")
            listed = {"object": "list", "data": [{"id": n} | self._told for n in self._models]}
            return Reply(body=json.dumps(listed).encode())
        body = json.loads(content)
        self.asked.append(body)
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            reply = self._behave(body, len(self.asked) - 1)
            await asyncio.sleep(reply.after_seconds)
            while not reply.when():
                await asyncio.sleep(0.01)
        finally:
            self.at_once -= 1
        return reply


def question(text: str, judge: str = "judge", max_tokens: int = 64) -> Question:
    """A question to a judge."""
    asked = {"messages": [{"role": "user", "content": text}], "temperature": 0.0}
    return question_of(judge, json.dumps(asked | {"max_tokens": max_tokens}, separators=(",", ":")))


def text_of(body: dict[str, Any]) -> str:
    """The text of the question in a body."""
    with contextlib.suppress(KeyError, IndexError, TypeError):
        return str(body["messages"][0]["content"])
    return ""


RATING_RUBRIC = """\
prompts: {rating: "Rate from 1 to 10. Q: {{ question }} A: {{ answer }}"}
patterns: '\\[\\[(\\d+)\\]\\]'
scale: [1, 10]
"""
"""A rubric, as a suite's file, that finds the rating in what `rate` says."""


def rate(body: dict[str, Any], number: int) -> Reply:
    """The same words about the same answer."""
    return says(f"[[{sum(text_of(body).encode()) % 10 + 1}]]")


def ask(server: Judge, *texts: str, key: str = "", **options: Any) -> list[Answer]:
    """Ask all of these at once."""

    async def main() -> list[Answer]:
        access = Access(server.url, "judge", key)
        async with Endpoint(access, **({"concurrency": 8} | options)) as judge:
            return await asyncio.gather(*(judge.ask(question(text)) for text in texts))

    return asyncio.run(main())


def first(reply: Reply, count: int = 2) -> Behaviour:
    """Behave so for some questions, and well from then on."""
    return lambda body, number: reply if number < count else says("[[7]]")
