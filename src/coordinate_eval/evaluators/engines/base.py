"""The protocols of an engine and of its module, and the one place that finds one by its name.

An engine turns requests into responses and knows nothing of tasks. It pulls requests lazily, so
that the caller can decide late which one comes next. It answers in any order. While there are
requests, it keeps as many in flight as it can run at once.

A request with follow-ups is one conversation: its turns go in one after the other, ahead of new
requests, and the whole has one response. `turns.py` has the rules.

The evaluator truncates prompts, cuts texts at stop strings and removes thinking. An engine may end
a generation once its text holds one of `Request.stop`. The text may or may not include that stop
string.

To add an engine, write a module with the protocol `EngineModule`, and add it to `by_name`, to
`EngineSettings.name`, and to `_engines.py`.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, NamedTuple, Protocol

from coordinate_eval.errors import UserError
from coordinate_eval.records import Request, RequestKind, Response

ALL_KINDS: Final[Mapping[RequestKind, str]] = MappingProxyType({})
"""`Engine.unable` of an engine that answers requests of all kinds."""

Unwanted = Callable[[], Callable[[Request], bool] | None]
"""Called by an engine again and again while it computes. Returns which of the requests that it has
need no answer any more, once for each of them, or None if there are no more of them."""


def all_wanted() -> None:
    """Return None: every request needs its answer."""


@dataclass(frozen=True)
class Across:
    """The part of one process in an engine over several nodes, each of which has such a process."""

    nodes: int
    rank: int
    """The place of the node, from 0. The process on the first has the engine."""
    address: str
    """The address of the first node."""
    port: int
    """A port that is free there."""
    layers: tuple[int, ...] = ()
    """The number of layers on each node; empty if the engine divides them."""


class Engine(Protocol):
    """One loaded model."""

    @property
    def computing(self) -> Sequence[Request] | None:
        """Return the requests that are being computed, as a new object for each batch.

        None for an engine that computes all requests that it has pulled and not yet answered.
        """
        ...

    @property
    def unable(self) -> Mapping[RequestKind, str]:
        """Return the kinds of requests that it cannot answer, with the reason."""
        ...

    def run(
        self, requests: Iterator[Request], unwanted: Unwanted = all_wanted
    ) -> Iterator[Response]:
        """Answer every request once, in any order, but for those that are unwanted by then.

        Some of these may be answered all the same.

        Raises:
            EngineError: the engine failed. Responses already yielded stay valid.
        """
        ...

    def close(self) -> None:
        """Free the GPU and end the engine's own processes."""
        ...


class Loading(NamedTuple):
    """A model to load into an engine."""

    model: Path
    """A folder with safetensors, config and tokenizer."""
    tensor_parallel: int
    """GPUs, on each node."""
    max_length: int
    """Most tokens of a prompt and its output together."""
    args: dict[str, Any]
    """The engine's own arguments."""
    lighter: int = 1
    """So many times fewer tokens are to be computed at once than usual, because engines ran out of
    memory. `args` has fewer sequences already."""
    across: Across | None = None
    """This process's part of an engine over several nodes, if it is one."""
    adapter: Path | None = None
    """A folder with an adapter of the model, which answers in its place. vLLM alone takes one."""


class EngineModule(Protocol):
    """The module of an engine. It imports the engine's own packages only inside functions."""

    def check_args(self, args: Mapping[str, Any], *, here: bool = True) -> None:
        """Check the engine arguments of a user. Imports neither torch nor the engine's packages.

        The engine is the one that is installed here, or one of any version in an image.

        Raises:
            UserError: the engine would not take an argument; the message names it.
        """
        ...

    def cache_variables(self, folder: Path) -> Mapping[str, str]:
        """Return variables with which the engine keeps what it compiles in a folder.

        There are none if it compiles nothing. They are to be set before `prepare`.
        """
        ...

    def prepare(self, tensor_parallel: int, threads: int = 0) -> None:
        """Do the part of the start that needs no weights. They may still be being copied.

        Args:
            threads: most threads on CPUs for each of them, where the engine takes advice and
                `OMP_NUM_THREADS` is not set; 0 for as many as its libraries choose.

        Raises:
            UserError: the engine is not installed.
        """
        ...

    def start(self, what: Loading) -> Engine:
        """Start the engine and load a model into it.

        Raises:
            UserError: the engine is not installed, does not take an argument, or stays on one node.
            EngineError: it did not start.
        """
        ...

    def follow(self, what: Loading) -> None:
        """Run this node's part of an engine that `start` starts on the first node, until it ends.

        Raises:
            UserError: as `start`.
            EngineError: it did not start, or a process of it has ended.
        """
        ...

    def serve(self, what: Loading, *, name: str, socket: Path, key: str) -> None:
        """Serve a model in this process over OpenAI's protocol, until a signal ends it.

        Args:
            name: what requests call the model.
            socket: the file of the socket at which it listens.
            key: what every request must have in its `Authorization` header.

        Raises:
            UserError: the engine has no server, is not installed, or does not take an argument.
        """
        ...


def by_name(name: str) -> EngineModule:
    """Return the module of an engine.

    Raises:
        UserError: there is no such engine.
    """
    if name == "vllm":
        from coordinate_eval.evaluators.engines import vllm

        return vllm
    if name == "transformers":
        from coordinate_eval.evaluators.engines import transformers

        return transformers
    if name == "simulated":
        from coordinate_eval.evaluators.engines import simulated

        return simulated
    if name == "server":
        from coordinate_eval.evaluators.engines import server

        return server
    raise UserError(f"unknown engine {name!r}: choose vllm, transformers, server or simulated")
