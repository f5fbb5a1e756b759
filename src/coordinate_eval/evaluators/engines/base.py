"""What an engine is.

An engine turns requests into responses and knows nothing of tasks. It pulls lazily, so that
the caller can decide late what comes next, answers in any order, and keeps itself full: while
requests are to be had, as many are in flight as it can run at once.

Truncation, cutting at stop strings and thinking tags are the evaluator's. An engine may end a
generation once its text holds one of `Request.stop`; whether the stop string itself is still
in the text does not matter.
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
        """The batch that it computes, another object for each; None where it computes whatever
        was pulled and is not yet answered.
        """
        ...

    def run(self, requests: Iterator[Request]) -> Iterator[Response]:
        """Answer every request once, in any order.

        Raises:
            EngineError: the engine gave up; responses already yielded stay valid.
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
    """Do what the start of an engine needs before it needs weights: they may still be on their
    way.

    Raises:
        UserError: the engine is not installed.
    """
    if name == "vllm":
        from coordinate_eval.evaluators.engines import vllm

        vllm.prepare(tensor_parallel)


def start(
    name: str, model: Path, *, tensor_parallel: int, max_length: int, args: dict[str, Any]
) -> Engine:
    """Load the model under `model` (a folder of safetensors, config and tokenizer).

    `max_length` is in tokens, prompt and output together. `args` are the engine's own.

    Raises:
        UserError: the engine is unknown or not installed.
        EngineError: it did not start.
    """
    # Imported here: each engine needs an extra of its own.
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
