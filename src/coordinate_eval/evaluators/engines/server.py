"""An engine that is a server: a command of the user's, or one that is already there.

The command is started once for each trial, with `{model}` for the folder of the staged weights,
`{port}` for the port to listen on, `{gpus}` for the number of GPUs, and `{max_length}` for the
tokens of context. It ends with the trial, with all that it has started. Either kind of server is
asked over OpenAI's protocol of completions, and kept full: `concurrency` requests are in flight.

What the server can do is found out by a few small requests before the first real one.
"""
# The libraries of the extras have no types here: they may be absent while types are checked.
# ruff: noqa: ANN401

import asyncio
import contextlib
import functools
import itertools
import math
import os
import re
import shlex
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from coordinate_eval._engines import kind_of
from coordinate_eval._format import brief
from coordinate_eval._text_config import text_config
from coordinate_eval.errors import EngineError, ServerRefuses, ServerSilent, UserError
from coordinate_eval.evaluators import own_code
from coordinate_eval.evaluators.engines import common
from coordinate_eval.evaluators.engines.base import Across, Unwanted, all_wanted
from coordinate_eval.evaluators.engines.scoring import Scoring, together
from coordinate_eval.evaluators.engines.server_requests import Choice, Completions, ScoringWay
from coordinate_eval.evaluators.engines.turns import Decoder, Turns, tokens_of
from coordinate_eval.evaluators.servers.access import Access
from coordinate_eval.evaluators.servers.connection import Odd
from coordinate_eval.evaluators.servers.process import LOOK_SECONDS, Port, Process
from coordinate_eval.evaluators.servers.replies import Declined, TryAgain
from coordinate_eval.records import Request, RequestKind, Response

_SECTION: Final = "engine.args"

_ARGUMENTS = ("command", "base_url", "model", "api_key_env", "concurrency", "start_minutes")

_NEEDED: Final = ("{model}", "{port}")
"""Placeholders without which a command serves something else, or elsewhere."""

_PLACEHOLDER = re.compile(r"\{(?:model|port|gpus|max_length)\}")

START_MINUTES: Final = 25.0
"""Longest start of a server: a little less than a trial that starts may be silent."""

PATIENCE_SECONDS: Final = 60.0
"""Time without a usable answer after which a server of this trial's own is given up."""

LONG_PATIENCE_SECONDS: Final = 600.0
"""The same of a server of others, which may come back, and holds no GPU of this run."""

_GLANCE_SECONDS: Final = 1.0
"""Time for a first look at a server, by a command that is to return soon."""

_MOST_IDS: Final = 20
"""Most tokens that one request scores by their ids: vLLM's servers give no more by default."""


def check_args(args: Mapping[str, Any], *, here: bool = True) -> None:
    """Check the names and values of engine arguments.

    Raises:
        UserError: an argument is unknown or wrong, or there is not one server.
    """
    common.check_names("the engine server", args, _ARGUMENTS)
    for name, value in args.items():
        if name in ("concurrency", "start_minutes"):
            if type(value) not in (int, float) or not 1 <= value <= 4096 or value % 1:
                raise common.wrong(name, value, "a whole number from 1 to 4096")
        elif not isinstance(value, str) or not value:
            raise common.wrong(name, value, "a text")
    if ("command" in args) == ("base_url" in args):
        raise UserError(
            "the engine server needs either [engine.args] command, which starts one, such as "
            '"python -m sglang.launch_server --model-path {model} --port {port} --tp {gpus}", '
            "or base_url, the address of one that is there, such as http://host:8000/v1"
        )
    if "command" in args:
        words = _words(args["command"])
        missing = [each for each in _NEEDED if not any(each in word for word in words)]
        if missing:
            raise UserError(
                f"[engine.args] command has no {' and no '.join(missing)}: the server would not "
                "serve the staged weights at the port where it is asked"
            )
    else:
        Access.check(args["base_url"], _SECTION)


def _words(command: str) -> list[str]:
    try:
        return shlex.split(command)
    except ValueError as error:
        raise UserError(f"[engine.args] command cannot be split into words: {error}") from error


def program(args: Mapping[str, Any]) -> str:
    """Return the program that the command of engine arguments starts."""
    return _words(args["command"])[0]


def cache_variables(folder: Path) -> Mapping[str, str]:
    """Return nothing: where a server keeps what it compiles is the user's to say."""
    return {}


def prepare(tensor_parallel: int, threads: int = 0) -> None:
    """Do nothing: all that takes time is the server's own start."""


def start(
    model: Path,
    *,
    tensor_parallel: int,
    max_length: int,
    args: dict[str, Any],
    lighter: int = 1,
    across: Across | None = None,
) -> "ServerEngine":
    """Start the server, or find the one that is there. See `base.EngineModule`."""
    if across is not None:
        follow()
    return ServerEngine(model, tensor_parallel=tensor_parallel, max_length=max_length, args=args)


def follow(*_: object, **__: object) -> None:
    """Refuse: the command runs on one node. See `base.EngineModule`.

    Raises:
        UserError: always.
    """
    raise UserError("the engine server runs on one node: set [engine] name to vllm")


def serve(
    model: Path,
    *,
    name: str,
    socket: Path,
    key: str,
    tensor_parallel: int,
    max_length: int,
    args: dict[str, Any],
) -> None:
    """Refuse: a judge can be asked where it is. See `base.EngineModule`.

    Raises:
        UserError: always.
    """
    raise UserError("a judge that is a server needs no other: set [judge] base_url and model")


def look(args: Mapping[str, Any], environ: Mapping[str, str]) -> str:
    """Return the name of the model on a server that is there. Ask it once, for a short time.

    Raises:
        UserError: it refuses the key, or has several models or not the one that is named.
        EngineError: it does not answer now.
    """
    access = Access.of(
        args["base_url"], args.get("model", ""), args.get("api_key_env"), environ, _SECTION
    )

    async def find() -> str:
        async with (
            asyncio.timeout(_GLANCE_SECONDS),
            Completions(access, concurrency=1, patience_seconds=0.0) as server,
        ):
            return await _find_model(server, 0, of_others=True)

    try:
        return asyncio.run(find())
    except ServerRefuses as error:
        raise UserError(str(error)) from error
    except (TryAgain, TimeoutError) as error:
        why = str(error) or f"nothing within {_GLANCE_SECONDS:g} s"
        raise EngineError(f"the server at {access.base_url} does not answer: {why}") from None


async def _find_model(server: Completions, max_length: int, *, of_others: bool) -> str:
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


class ServerEngine:
    """A model behind an OpenAI-compatible server.

    Args:
        model: a folder with safetensors, config and tokenizer.
        tensor_parallel: number of GPUs.
        max_length: most tokens of a prompt and its output together.
        args: `command`, or `base_url` with perhaps `model`, its name there;
            `api_key_env`, the name of the variable with its key;
            `concurrency`, most requests at the same time (default 256);
            `start_minutes`, longest start of a command (default 25).
        environ: of this process.

    Raises:
        UserError: an argument is wrong, or the server cannot do what an engine has to.
        EngineError: it did not start, or does not answer.
    """

    computing = None
    """Always None: the server computes all requests that it has."""

    unable: Mapping[RequestKind, str]
    """Kinds of requests that the server cannot answer, with the reason."""

    def __init__(
        self,
        model: Path,
        *,
        tensor_parallel: int,
        max_length: int,
        args: dict[str, Any],
        environ: Mapping[str, str] = os.environ,
    ) -> None:
        check_args(args)
        self._model, self._max_length = model, max_length
        config = text_config(own_code.json_object(model / "config.json"), model / "config.json")
        self._vocabulary = config.number("vocab_size", most=10**9) or 1 << 31
        self._concurrency = int(args.get("concurrency", kind_of("server").sequences))
        self._process: Process | None = None
        self._port: Port | None = None
        self._open = contextlib.AsyncExitStack()
        self._loop = asyncio.new_event_loop()
        self._most_ids = 0
        self._closed = False
        self.unable = {}
        base_url = args.get("base_url")
        if base_url is None:
            self._port = Port()
            base_url = f"http://127.0.0.1:{self._port.number}/v1"
        access = Access.of(
            base_url, args.get("model", ""), args.get("api_key_env"), environ, _SECTION
        )
        self._server = Completions(
            access,
            concurrency=self._concurrency,
            patience_seconds=PATIENCE_SECONDS if self._port else LONG_PATIENCE_SECONDS,
        )
        try:
            if self._port is not None:
                values = {
                    "{model}": str(model),
                    "{port}": str(self._port.number),
                    "{gpus}": str(tensor_parallel),
                    "{max_length}": str(max_length),
                }
                offline = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
                words = [
                    _PLACEHOLDER.sub(lambda found: values[found[0]], word)
                    for word in _words(args["command"])
                ]
                self._process = Process("the server's command", words, {**offline, **environ})
            self._loop.run_until_complete(
                self._begin(60 * args.get("start_minutes", START_MINUTES))
            )
        except BaseException:
            self.close()
            raise

    def run(
        self, requests: Iterator[Request], unwanted: Unwanted = all_wanted
    ) -> Iterator[Response]:
        """Answer every request once, in the order in which they finish. Drop unwanted ones.

        Closing the returned generator drops the requests in flight. The engine stays usable.

        Raises:
            EngineError: the server failed, or a request cannot be answered.
        """
        done = asyncio.Queue[asyncio.Task[list[Response]]]()
        flight: dict[asyncio.Task[list[Response]], list[Request]] = {}
        groups: Iterator[list[Request]] | None = together(requests)
        # A few more wait, so that the server has its next requests when some end.
        most = self._concurrency + max(1, self._concurrency // 8)
        try:
            while True:
                if (drop := unwanted()) is not None:
                    self._drop(flight, drop)
                # One more is pulled, and belongs to none of these.
                while groups and sum(map(len, flight.values())) + 1 < most:
                    group = next(groups, None)
                    if group is None:
                        groups = None
                        continue
                    task = self._loop.create_task(self._answer(group))
                    task.add_done_callback(done.put_nowait)
                    flight[task] = group
                if not flight:
                    return
                for task in self._loop.run_until_complete(_some(done)):
                    if flight.pop(task, None) is not None:
                        yield from task.result()
                self._check_runs()
        finally:
            self._drop(flight, lambda request: True)

    def close(self) -> None:
        """End the server, if it is this engine's own. A second call does nothing."""
        if self._closed:
            return
        self._closed = True
        try:
            with contextlib.suppress(RuntimeError):
                self._loop.run_until_complete(self._open.aclose())
            self._loop.close()
        finally:
            if self._process is not None:
                self._process.end()
            if self._port is not None:
                self._port.close()

    async def _begin(self, seconds: float) -> None:
        """Wait until the server answers, and find out what it can do."""
        await self._open.enter_async_context(self._server)
        if self._process is None:
            seconds = LONG_PATIENCE_SECONDS
        end = time.monotonic() + seconds
        while True:
            try:
                await self._within(end, self._find_all())
                return
            except TryAgain as failure:
                over = time.monotonic() + LOOK_SECONDS >= end
                if over and self._process is None:
                    raise EngineError(
                        f"the server at {self._where} does not answer: {failure}"
                    ) from None
                if over and self._process is not None:
                    raise EngineError(
                        f"the server's command has not answered at {self._where} within "
                        f"{seconds:g} s ({failure}): does it listen on {{port}} of this machine? "
                        f"A longer start needs [engine.args] start_minutes"
                        f"{self._process.last_words}"
                    ) from None
            except ServerRefuses as error:
                raise UserError(str(error)) from error
            await asyncio.sleep(LOOK_SECONDS)

    async def _within(self, end: float, questions: Coroutine[Any, Any, None]) -> None:
        """Ask, while the server has not ended and there is time.

        Raises:
            TryAgain: there was no answer in time: some listen long before they answer.
        """
        asking = questions if self._process is None else self._process.while_it_runs(questions)
        try:
            async with asyncio.timeout(max(0.0, end - time.monotonic())):
                await asking
        except TimeoutError:
            raise TryAgain("it accepts requests and says nothing") from None

    async def _find_all(self) -> None:
        name = await _find_model(self._server, self._max_length, of_others=not self._port)
        self._server.model = name or str(self._model)
        await self._find_prompts()
        if self._port is not None and self._port.is_foreign:
            raise EngineError(f"another user's server answers at {self._where}")
        await self._find_scoring()

    @property
    def _where(self) -> str:
        return self._server.access.base_url

    def _check_runs(self) -> None:
        """Check that the server has not ended.

        Raises:
            EngineError: it has.
        """
        if self._closed:
            raise EngineError("this engine is closed: start another")
        if self._process is not None:
            self._process.check()

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
        return common.check_probed(*await self._answer([probe]))

    async def _answer(self, group: list[Request]) -> list[Response]:
        """Answer requests that belong together."""
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

    def _drop(
        self,
        flight: dict[asyncio.Task[list[Response]], list[Request]],
        drop: Callable[[Request], bool],
    ) -> None:
        """Cancel what answers nothing but unwanted requests."""
        unwanted = [task for task, requests in flight.items() if all(map(drop, requests))]
        for task in unwanted:
            task.cancel()
            del flight[task]
        if unwanted:
            gathered = asyncio.gather(*unwanted, return_exceptions=True)
            with contextlib.suppress(RuntimeError):  # the loop is closed
                self._loop.run_until_complete(gathered)


async def _some(done: "asyncio.Queue[asyncio.Task[list[Response]]]") -> list[Any]:
    """Return tasks that are done, after a while without any none."""
    found = []
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(LOOK_SECONDS):
            found.append(await done.get())
    while not done.empty():
        found.append(done.get_nowait())
    return found
