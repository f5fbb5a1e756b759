"""An engine that is a server: a command of the user's, or one that is already there.

The command is started once for each trial, with `{model}` for the folder of the staged weights,
`{port}` for the port to listen on, `{gpus}` for the number of GPUs, and `{max_length}` for the
tokens of context. It ends with the trial, with all that it has started. Either kind of server is
asked over OpenAI's protocol of completions, and kept full: `concurrency` requests are in flight.
"""

import asyncio
import contextlib
import os
import re
import shlex
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from coordinate_eval._engines import kind_of
from coordinate_eval.errors import EngineError, ServerRefuses, UserError
from coordinate_eval.evaluators.engines import common
from coordinate_eval.evaluators.engines.base import Loading, Unwanted, all_wanted
from coordinate_eval.evaluators.engines.scoring import together
from coordinate_eval.evaluators.engines.server_answers import Answering, find_model
from coordinate_eval.evaluators.engines.server_requests import Completions
from coordinate_eval.evaluators.servers.access import Access
from coordinate_eval.evaluators.servers.process import LOOK_SECONDS, Port, Process
from coordinate_eval.evaluators.servers.replies import TryAgain
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


def check_args(args: Mapping[str, Any], *, here: bool = True) -> None:
    """Check the names and values of engine arguments."""
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


def follow(what: Loading) -> None:
    """Refuse: the command runs on one node. See `base.EngineModule`."""
    raise UserError("the engine server runs on one node: set [engine] name to vllm")


def serve(*_: object, **__: object) -> None:
    """Refuse: a judge can be asked where it is. See `base.EngineModule`."""
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
            return await find_model(server, 0, of_others=True)

    try:
        return asyncio.run(find())
    except ServerRefuses as error:
        raise UserError(str(error)) from error
    except (TryAgain, TimeoutError) as error:
        why = str(error) or f"nothing within {_GLANCE_SECONDS:g} s"
        raise EngineError(f"the server at {access.base_url} does not answer: {why}") from None


class ServerEngine:
    """A model behind an OpenAI-compatible server.

    Args:
        what: its `args` are `command`, or `base_url` with perhaps `model`, its name there;
            `api_key_env`, the name of the variable with its key;
            `concurrency`, most requests at the same time (default 256);
            `start_minutes`, longest start of a command (default 25).

    Raises:
        UserError: an argument is wrong, or the server cannot do what an engine has to.
        EngineError: it did not start, or does not answer.
    """

    computing = None
    """Always None: the server computes all requests that it has."""

    def __init__(self, what: Loading, environ: Mapping[str, str] = os.environ) -> None:
        model, args = what.model, what.args
        check_args(args)
        self._concurrency = int(args.get("concurrency", kind_of("server").sequences))
        self._process: Process | None = None
        self._port: Port | None = None
        self._open = contextlib.AsyncExitStack()
        self._loop = asyncio.new_event_loop()
        self._closed = False
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
        self._answering = Answering(
            self._server,
            model,
            what.max_length,
            of_others=self._port is None,
            check_own=self._check_own,
        )
        try:
            if self._port is not None:
                values = {
                    "{model}": str(model),
                    "{port}": str(self._port.number),
                    "{gpus}": str(what.tensor_parallel),
                    "{max_length}": str(what.max_length),
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

    @property
    def unable(self) -> Mapping[RequestKind, str]:
        """Return the kinds of requests that the server cannot answer, with the reason."""
        return self._answering.unable

    def run(
        self, requests: Iterator[Request], unwanted: Unwanted = all_wanted
    ) -> Iterator[Response]:
        """Answer every request once, in the order in which they finish. Drop unwanted ones.

        Closing the returned generator drops the requests in flight. The engine stays usable.
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
                    task = self._loop.create_task(self._answering.answer(group))
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
                await self._within(end, self._answering.find_out())
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

    @property
    def _where(self) -> str:
        return self._server.access.base_url

    def _check_own(self) -> None:
        if self._port is not None and self._port.is_foreign:
            raise EngineError(f"another user's server answers at {self._where}")

    def _check_runs(self) -> None:
        """Check that the server has not ended."""
        if self._closed:
            raise EngineError("this engine is closed: start another")
        if self._process is not None:
            self._process.check()

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


start = ServerEngine


async def _some(done: "asyncio.Queue[asyncio.Task[list[Response]]]") -> list[Any]:
    """Return tasks that are done, after a while without any none."""
    found = []
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(LOOK_SECONDS):
            found.append(await done.get())
    while not done.empty():
        found.append(done.get_nowait())
    return found
