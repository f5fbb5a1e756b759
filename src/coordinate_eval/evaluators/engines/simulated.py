"""A fake engine without model or GPU. Its answers are made from a hash of the prompt.

It serves tests of everything around an engine, and rehearsals of a run on a real cluster without
spending GPU time. Its scores mean nothing. An answer depends on the request alone, so that two
runs, or two ways of cutting one into shards, can be compared.
"""

import hashlib
import heapq
import http.server
import itertools
import json
import os
import random
import socketserver
import time
import zlib
from collections.abc import Iterator, Mapping
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from pydantic import Field, TypeAdapter, ValidationError

from coordinate_eval import _format
from coordinate_eval.errors import EngineError, UserError
from coordinate_eval.evaluators.engines import common
from coordinate_eval.evaluators.engines.base import ALL_KINDS, Loading, Unwanted, all_wanted
from coordinate_eval.evaluators.engines.common import probe, respond
from coordinate_eval.evaluators.engines.turns import Turns
from coordinate_eval.records import Record, Request, RequestKind, Response

_DEFAULTS: dict[str, float | str | list[str] | None] = {
    "seconds_per_request": 0.0,
    "start_seconds": 0.0,
    "concurrency": 32,
    "fail_after": None,
    "fail_at": [],
    "times": None,
    "pause": None,
}

_LOOK_SECONDS = 0.05
"""Time between two looks whether a pause has ended, or requests are unwanted."""

_NO_LIMIT = 1 << 30
"""Tokens of a context that is never full."""

WORDS = ("the", "answer", "is", "yes", "no", "Paris", "42", "return", "def", "x", "=", "(A)", "\n")
"""Words that it writes: each a token, whose id is its place here."""


def check_args(args: Mapping[str, Any], *, here: bool = True) -> None:
    """Check the names and values of engine arguments."""
    common.check_names("the simulated engine", args, _DEFAULTS)
    for name, value in args.items():
        least = 1 if name == "concurrency" else 0
        whole = name in ("concurrency", "fail_after")
        if value is None and _DEFAULTS[name] is None:
            continue
        if name == "fail_at":
            if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
                raise common.wrong(name, value, 'a list of items, such as "gsm8k:17"')
            continue
        if name in ("times", "pause"):
            if not isinstance(value, str):
                raise common.wrong(name, value, "the path of a file")
            continue
        if type(value) not in ((int,) if whole else (int, float)) or not least <= value < 1e9:
            raise common.wrong(name, value, f"a {'whole ' if whole else ''}number from {least} up")


def cache_variables(folder: Path) -> Mapping[str, str]:
    """Return nothing: this engine compiles nothing."""
    return {}


def prepare(tensor_parallel: int, threads: int = 0) -> None:
    """Do nothing: this engine needs no packages."""


def start(what: Loading) -> "SimulatedEngine":
    """Start the engine, which reads no model. See `base.EngineModule`."""
    return SimulatedEngine(args=what.args, max_length=what.max_length)


def follow(what: Loading) -> None:
    """Wait until this process is ended: the first one answers alone."""
    while True:
        time.sleep(_NO_LIMIT)


def serve(what: Loading, *, name: str, socket: Path, key: str) -> None:
    """Answer questions over OpenAI's protocol until a signal ends this process.

    Of its `args` count `start_seconds`, `seconds_per_request`, `fail_after` and `pause`. See
    `base.EngineModule`.
    """
    check_args(what.args)
    chosen, max_length = _DEFAULTS | what.args, what.max_length
    time.sleep(chosen["start_seconds"])
    pause = Path(chosen["pause"]) if chosen["pause"] else None
    answered = itertools.count()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._send({"data": [{"id": name, "max_model_len": max_length}]})

        def do_POST(self) -> None:
            asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            number = next(answered)
            if number == chosen["fail_after"]:
                os._exit(1)
            while number and pause is not None and pause.exists():
                time.sleep(_LOOK_SECONDS)
            time.sleep(chosen["seconds_per_request"])
            prompt = _tokens(asked["messages"])
            if len(prompt) + asked["max_tokens"] > max_length:
                error = {"message": f"the maximum context length is {max_length} tokens"}
                self._send({"error": error}, status=400)
            else:
                self._send(_completion(prompt, asked["max_tokens"]))

        def _send(self, value: object, status: int = 200) -> None:
            if self.headers["Authorization"] != f"Bearer {key}":
                status, value = 401, {"error": {"message": "no such key"}}
            self.send_response(status)
            self.end_headers()
            self.wfile.write(json.dumps(value).encode())

        def log_message(self, *_: object) -> None:
            pass

    with socketserver.ThreadingUnixStreamServer(str(socket), Handler) as server:
        server.daemon_threads = True
        server.serve_forever()


def _tokens(messages: object) -> list[int]:
    """Return a number for each word of a conversation."""
    return [zlib.crc32(word.encode()) for word in json.dumps(messages).split()]


def _completion(prompt: list[int], max_tokens: int) -> dict[str, Any]:
    """Return the made-up answer to a conversation, as OpenAI's servers put it."""
    said = answer(probe(RequestKind.GENERATE, prompt, max_tokens=max_tokens))
    message = {"role": "assistant", "content": said.text}
    usage = {"prompt_tokens": len(prompt), "completion_tokens": said.tokens}
    return {"choices": [{"message": message, "finish_reason": said.finish}], "usage": usage}


class Times(Record):
    """The seconds that a dataset takes."""

    seconds_per_request: float = Field(ge=0, le=1e9)
    floor_seconds: float = Field(default=0.0, ge=0, le=1e9)
    """Least seconds of the first of neighbouring items, as of the longest item of a shard."""


class SimulatedEngine:
    """An engine that answers at once, or as slowly as its arguments say.

    Args:
        args: `seconds_per_request`, the time that each turn of a request takes (default 0);
            `start_seconds`, the time that the constructor takes (default 0);
            `concurrency`, the number of requests in flight, of which one after another is computed.
            If that takes no time, their order is shuffled but fixed (default 32);
            `fail_after`, the number of responses after which it fails (default never);
            `fail_at`, items that end it, such as `gsm8k:17` (default none);
            `times`, the path of a JSON file with `Times` by dataset, in place of
            `seconds_per_request` for these datasets (default none);
            `pause`, the path of a file: while it is there, only the first request is answered, and
            not even that one if there is no other, so that a rehearsal can do something to a run
            that is under way (default none).

    Raises:
        UserError: an argument is unknown, or not a number in its range, or `times` cannot be read.
    """

    unable = ALL_KINDS

    computing: list[Request] | None = None
    """The one request that it pretends to compute."""

    def __init__(self, *, args: dict[str, Any], max_length: int = _NO_LIMIT) -> None:
        check_args(args)
        self._max_length = max_length
        chosen = _DEFAULTS | args
        self._times = _read_times(chosen["times"]) if chosen["times"] else {}
        self._other = Times(seconds_per_request=chosen["seconds_per_request"])
        self._concurrency = int(chosen["concurrency"])
        self._pause = Path(chosen["pause"]) if chosen["pause"] else None
        self._fail_after = chosen["fail_after"]
        self._fail_at = set(chosen["fail_at"])
        self._answered = 0
        self._closed = False
        self._free = 0.0
        self._last: Request | None = None
        time.sleep(chosen["start_seconds"])

    def run(
        self, requests: Iterator[Request], unwanted: Unwanted = all_wanted
    ) -> Iterator[Response]:
        """Answer every request once, out of order. Drop unwanted ones.

        Raises:
            EngineError: it has given `fail_after` responses, is closed, or meets an item of
                `fail_at`.
        """
        shuffle = random.Random(0)  # noqa: S311  # an order, not a secret
        flight: list[tuple[float, float, Request]] = []
        while True:
            if (drop := unwanted()) is not None:
                flight = [each for each in flight if not drop(each[-1])]
                heapq.heapify(flight)
            for request in islice(requests, self._concurrency - len(flight)):
                heapq.heappush(flight, (self._due(request), shuffle.random(), request))
            if self._closed:
                raise EngineError("this simulated engine is closed: start another")
            if not flight:
                return
            if self._answered == self._fail_after:
                raise EngineError(f"simulated failure after {self._answered} responses")
            if (self._answered or len(flight) == 1) and self._is_paused():
                time.sleep(_LOOK_SECONDS)
                continue
            due, _, request = flight[0]
            self.computing = [request]
            if f"{request.dataset}:{request.item}" in self._fail_at:
                raise EngineError("simulated failure at an item")
            if (left := due - time.monotonic()) > 0:
                time.sleep(min(left, _LOOK_SECONDS))
                continue
            heapq.heappop(flight)
            self._answered += 1
            yield answer(request, self._max_length)

    def _is_paused(self) -> bool:
        return self._pause is not None and self._pause.exists()

    def _due(self, request: Request) -> float:
        """Return when a request is answered that was pulled now, 0 for at once.

        The engine computes on while its caller stores responses, as a GPU does.
        """
        times = self._times.get(request.dataset, self._other)
        last, self._last = self._last, request
        neighbours = (
            last is not None
            and last.dataset == request.dataset
            and 0 <= request.item - last.item <= 1
        )
        seconds = times.seconds_per_request * request.turns
        least = 0.0 if neighbours else times.floor_seconds
        if not max(seconds, least):
            return 0.0
        begin = max(self._free, time.monotonic())
        self._free = begin + seconds
        return begin + max(seconds, least)

    def close(self) -> None:
        """Refuse to answer from now on. A second call does nothing."""
        self._closed = True


def _read_times(path: str) -> dict[str, Times]:
    try:
        return TypeAdapter(dict[str, Times]).validate_json(Path(path).read_bytes())
    except OSError as error:
        raise UserError(f"engine argument times: {path} cannot be read: {error}") from error
    except ValidationError as error:
        raise UserError(f"engine argument times: {path}: {_format.problem(error)}") from error


def answer(request: Request, max_length: int = _NO_LIMIT) -> Response:
    """Return the made-up response to a request. Equal requests get equal responses."""
    if request.kind is RequestKind.LOGLIKELIHOOD:
        digest = _digest(request, request.tokens)
        scored = len(request.continuation)
        logprob = -scored * (0.1 + int.from_bytes(digest[:4]) / 2**30)
        return respond(
            request, logprob=logprob, greedy=digest[4] < 64, tokens=scored, finish="scored"
        )
    turns = Turns(request, max_length)
    while True:
        digest = _digest(request, turns.prompt)
        tokens = [byte % len(WORDS) for byte in digest[: 1 + digest[0] % 24]]
        kept = tokens[: request.max_tokens]
        response = turns.add(
            text=" ".join(WORDS[token] for token in kept),
            tokens=len(kept),
            finish="stop" if len(kept) == len(tokens) else "length",
            said=partial(list, kept),
        )
        if response is not None:
            return response


def _digest(request: Request, prompt: list[int]) -> bytes:
    asked = [prompt, request.continuation, request.max_tokens, request.stop]
    if request.sampling:  # repeats of a sampled prompt differ
        asked += [sorted(request.sampling.items()), request.repeat]
    return hashlib.sha256(json.dumps([request.kind, *asked]).encode()).digest()
