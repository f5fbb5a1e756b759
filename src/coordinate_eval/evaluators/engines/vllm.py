"""The engine that trials use: vLLM, fed one request at a time so that it never runs dry.

`LLM.generate` answers a batch and waits for its slowest request before the next batch starts.
Here requests are added whenever one has finished, over dataset borders: the scheduler always
holds as many as it can run and a few more. With one GPU the engine lives in this process, which
saves starting two others; with several, vLLM's own executor starts one process a GPU.

Log-likelihoods come from `prompt_logprobs`. vLLM would ignore its prefix cache for these, since
it has no probabilities for a token that it took from there. It is read here all the same: a few
shots shared by a thousand prompts are computed once. Only where the cache reached into the
tokens to be scored, the request is asked again without it.
"""
# The libraries of the extras have no types here: they may be absent while types are checked.
# ruff: noqa: ANN401

import contextlib
import functools
import gc
import importlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from coordinate_eval.errors import EngineError
from coordinate_eval.evaluators.engines import common
from coordinate_eval.evaluators.engines.vllm_arguments import check_args
from coordinate_eval.records import Request, RequestKind, Response

_ENVIRONMENT = {
    "VLLM_LOGGING_LEVEL": "WARNING",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    # Without a GPU: GiB for keys and values; and no thread is bound to a core, since several
    # engines on one machine would all choose the same one.
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
}


def prepare(tensor_parallel: int) -> None:
    """Import vLLM, which takes seconds and needs no weights.

    Raises:
        UserError: it is not installed, or broken.
    """
    _set_environment(tensor_parallel)
    # `import vllm` alone loads next to nothing, and so would not show that it is broken.
    common.load("vllm.engine.llm_engine", "coordinate-eval[vllm]")


class VllmEngine:
    """A model loaded into vLLM, from a folder of safetensors; no code in it is run.

    Args:
        model: the folder of weights, config and tokenizer.
        tensor_parallel: GPUs over which the weights are cut.
        max_length: tokens, prompt and output together.
        args: fields of vLLM's `EngineArgs`; they win over what is chosen here.

    Raises:
        UserError: vLLM is not installed, or an argument is unknown or not the user's to give.
        EngineError: vLLM did not start.
    """

    most_in_flight: int
    """Requests pulled and not yet answered, at most."""

    computing = None
    """Nearly all that are in flight."""

    steps: int
    """Engine steps so far: a measure of work that no other load on the machine disturbs."""

    def __init__(
        self, model: Path, *, tensor_parallel: int, max_length: int, args: dict[str, Any]
    ) -> None:
        prepare(tensor_parallel)
        vllm = importlib.import_module("vllm")
        arguments = _arguments(model, tensor_parallel, max_length, args)
        if _on_cpu() and arguments["enforce_eager"]:
            # vLLM compiles a function of its sampler even so, at the first scored prompt.
            importlib.import_module("torch").compiler.set_stance("force_eager")
        usage = importlib.import_module("vllm.usage.usage_lib").UsageContext
        try:
            # The context of offline use has the larger defaults, made for throughput.
            self._engine: Any | None = vllm.LLMEngine.from_engine_args(
                vllm.EngineArgs(**arguments), usage_context=usage.LLM_CLASS
            )
        except Exception as error:
            raise EngineError(
                f"vLLM did not start on {str(model)!r} with arguments {args}: "
                f"{common.last_words(error)}"
            ) from error
        kinds = importlib.import_module("vllm.sampling_params").RequestOutputKind
        self._parameters = functools.partial(vllm.SamplingParams, output_kind=kinds.FINAL_ONLY)
        config = self._engine.vllm_config
        self._max_length: int = config.model_config.max_model_len
        self._vocabulary: int = config.model_config.get_vocab_size()
        running: int = config.scheduler_config.max_num_seqs
        # A few more wait in the scheduler: where it plans a step ahead, they fill the gaps.
        self.most_in_flight = running + max(1, running // 8)
        self.steps = 0
        self._asked = 0

    def run(self, requests: Iterator[Request]) -> Iterator[Response]:
        """Answer every request once, in the order in which they finish.

        Closing the returned generator aborts what is in flight; the engine stays usable.

        Raises:
            EngineError: vLLM failed, or a request cannot be answered.
        """
        flight: dict[str, Request] = {}
        pulling = True
        try:
            while True:
                while pulling and len(flight) < self.most_in_flight:
                    request = next(requests, None)
                    if request is None:
                        pulling = False
                    else:
                        self._ask(flight, request, read_cache=True)
                if not flight:
                    return
                for output in self._step():
                    request = flight.pop(output.request_id)
                    response = _answer(request, output)
                    if response is None:
                        self._ask(flight, request, read_cache=False)
                    else:
                        yield response
        finally:
            self._abort(flight)

    def close(self) -> None:
        """Free the GPU and end vLLM's own processes. A second call does nothing."""
        engine, self._engine = self._engine, None
        if engine is not None:
            engine.engine_core.shutdown()
            del engine
            gc.collect()

    def _ask(self, flight: dict[str, Request], request: Request, *, read_cache: bool) -> None:
        """Hand a request to vLLM's scheduler and note it in `flight`."""
        if self._engine is None:
            raise EngineError("this vLLM engine is closed: start another")
        common.check(
            request,
            max_length=self._max_length,
            most_scored=self._max_length - 1,  # vLLM must generate a token, also after scoring
            vocabulary=self._vocabulary,
        )
        settings = _settings(request, read_cache=read_cache)
        tokens = [*request.tokens, *request.continuation]
        name = str(self._asked)
        self._asked += 1
        try:
            self._engine.add_request(
                name, {"type": "token", "prompt_token_ids": tokens}, self._parameters(**settings)
            )
        except Exception as error:
            raise EngineError(
                f"vLLM refused {common.named(request)}: {common.last_words(error)}"
            ) from error
        flight[name] = request

    def _step(self) -> list[Any]:
        """One step of all running requests; the outputs of those that it finished."""
        if self._engine is None:
            raise EngineError("this vLLM engine was closed while requests were in flight")
        self.steps += 1
        try:
            outputs = self._engine.step()
        except Exception as error:
            raise EngineError(f"vLLM failed: {common.last_words(error)}") from error
        return [output for output in outputs if output.finished]

    def _abort(self, flight: dict[str, Request]) -> None:
        """Forget what is in flight, so that a next run starts on an idle engine."""
        if flight and self._engine is not None:
            # An engine that died cannot abort either, and its own error is on its way.
            with contextlib.suppress(Exception):
                self._engine.abort_request(list(flight))


def _set_environment(tensor_parallel: int) -> None:
    """Choose what vLLM reads from the environment while it is imported, unless the user has."""
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    if tensor_parallel == 1:
        os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")


def _arguments(
    model: Path, tensor_parallel: int, max_length: int, args: dict[str, Any]
) -> dict[str, Any]:
    """Return the arguments of `EngineArgs`: those of the user, and defaults for the others.

    Raises:
        UserError: an argument is unknown, or not the user's to give.
    """
    check_args(args)
    chosen: dict[str, Any] = {
        "load_format": "safetensors",
        "max_model_len": max_length,
        "gpu_memory_utilization": 0.9,
        "disable_log_stats": True,
        "use_tqdm_on_load": False,
        **(_cpu_arguments(model) if _on_cpu() else {}),
        **args,
    }
    return chosen | {
        "model": str(model),
        "tensor_parallel_size": tensor_parallel,
        "trust_remote_code": False,
    }


def _on_cpu() -> bool:
    """Whether vLLM runs on the CPU here."""
    return bool(importlib.import_module("vllm.platforms").current_platform.is_cpu())


def _cpu_arguments(model: Path) -> dict[str, Any]:
    """Defaults for a machine without a GPU."""
    # Compiling takes longer than a small model's whole evaluation. Left to itself, vLLM turns
    # float32 into bfloat16, which saves a GPU's memory and gains nothing here.
    chosen: dict[str, Any] = {"enforce_eager": True}
    with contextlib.suppress(OSError, ValueError, AttributeError):
        config = json.loads((model / "config.json").read_text(encoding="utf-8"))
        if "float32" in (config.get("dtype"), config.get("torch_dtype")):
            chosen["dtype"] = "float32"
    return chosen


def _settings(request: Request, *, read_cache: bool) -> dict[str, Any]:
    """What `SamplingParams` is made of."""
    if request.kind is RequestKind.LOGLIKELIHOOD:
        return {
            "max_tokens": 1,
            "temperature": 0.0,
            "prompt_logprobs": 1,  # the token itself, and the likeliest to compare it with
            "flat_logprobs": True,
            # The rows of cached tokens hold whatever was in memory: not even ids to decode.
            "detokenize": False,
            "skip_reading_prefix_cache": not read_cache,
        }
    wanted = common.sampling(request)
    return wanted | {
        "seed": None if wanted["seed"] < 0 else wanted["seed"],
        "max_tokens": request.max_tokens,
        "stop": common.stops(request),
        "skip_special_tokens": False,
        "spaces_between_special_tokens": False,
    }


def _answer(request: Request, output: Any) -> Response | None:
    """The response in a finished `RequestOutput`; None if it must be asked without the cache."""
    if request.kind is RequestKind.LOGLIKELIHOOD:
        # The row before a token holds its probabilities, and cached tokens have no rows.
        if (output.num_cached_tokens or 0) >= len(request.tokens):
            return None
        logprob, greedy = _scores(request.continuation, output.prompt_logprobs)
        return common.respond(
            request,
            logprob=logprob,
            greedy=greedy,
            tokens=len(request.continuation),
            finish="scored",
        )
    answer = output.outputs[0]
    if answer.finish_reason not in ("stop", "length"):
        raise EngineError(f"vLLM ended {common.named(request)} for reason {answer.finish_reason!r}")
    return common.respond(
        request, text=answer.text, tokens=len(answer.token_ids), finish=answer.finish_reason
    )


def _scores(continuation: list[int], rows: Any) -> tuple[float, bool]:
    """Sum of log-probabilities (nats) and whether all are the likeliest, from the last rows.

    `rows` has a mapping of token id to `Logprob` for each position of the prompt; how many there
    are before the continuation depends on what was cached.
    """
    total, greedy = 0.0, True
    for token, row in zip(continuation, rows[-len(continuation) :], strict=True):
        logprob = row[token].logprob
        total += logprob
        greedy = greedy and logprob >= max(rival.logprob for rival in row.values())
    return total, greedy
