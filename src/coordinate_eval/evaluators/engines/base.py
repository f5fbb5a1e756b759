"""The protocol of an engine, and the functions that start one by its name.

An engine turns requests into responses and knows nothing of tasks. It pulls requests lazily, so
that the caller can decide late which one comes next. It answers in any order. While there are
requests, it keeps as many in flight as it can run at once.

The evaluator truncates prompts, cuts texts at stop strings and removes thinking. An engine may end
a generation once its text holds one of `Request.stop`. The text may or may not include that stop
string.

To add an engine, write a module with this protocol and `check_args`, add it to the functions here
and to `EngineSettings.name`.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from coordinate_eval.errors import UserError
from coordinate_eval.records import Request, Response


class Engine(Protocol):
    """One loaded model."""

    @property
    def computing(self) -> Sequence[Request] | None:
        """The requests that are being computed, as a new object for each batch.

        None for an engine that computes all requests that it has pulled and not yet answered.
        """
        ...

    def run(self, requests: Iterator[Request]) -> Iterator[Response]:
        """Answer every request once, in any order.

        Raises:
            EngineError: the engine failed. Responses already yielded stay valid.
        """
        ...

    def close(self) -> None:
        """Free the GPU and end the engine's own processes."""
        ...


def check_args(name: str, args: Mapping[str, Any]) -> None:
    """Check the engine arguments of a user before anything is submitted.

    Imports neither torch nor the engine's own package.

    Raises:
        UserError: the engine would not take an argument; the message names it.
    """
    if name == "vllm":
        from coordinate_eval.evaluators.engines import vllm_arguments

        vllm_arguments.check_args(args)
    elif name == "transformers":
        from coordinate_eval.evaluators.engines import transformers

        transformers.check_args(args)
    elif name == "simulated":
        from coordinate_eval.evaluators.engines import simulated

        simulated.check_args(args)


def prepare(name: str, tensor_parallel: int) -> None:
    """Do the part of an engine's start that needs no weights. They may still be being copied.

    Raises:
        UserError: the engine is not installed.
    """
    if name == "vllm":
        from coordinate_eval.evaluators.engines import vllm

        vllm.prepare(tensor_parallel)


def start(
    name: str, model: Path, *, tensor_parallel: int, max_length: int, args: dict[str, Any]
) -> Engine:
    """Start an engine and load a model into it.

    Args:
        name: the name of the engine.
        model: a folder with safetensors, config and tokenizer.
        tensor_parallel: number of GPUs.
        max_length: most tokens of a prompt and its output together.
        args: the engine's own arguments.

    Raises:
        UserError: the engine is unknown or not installed.
        EngineError: it did not start.
    """
    # Imported here, because each engine needs an extra of its own.
    if name == "vllm":
        from coordinate_eval.evaluators.engines.vllm import VllmEngine

        return VllmEngine(model, tensor_parallel=tensor_parallel, max_length=max_length, args=args)
    if name == "transformers":
        from coordinate_eval.evaluators.engines.transformers import TransformersEngine

        return TransformersEngine(model, max_length=max_length, args=args)
    if name == "simulated":
        from coordinate_eval.evaluators.engines.simulated import SimulatedEngine

        return SimulatedEngine(args=args)
    raise UserError(f"unknown engine {name!r}: choose vllm, transformers or simulated")
