"""The engine that trials use by default: vLLM, which always has requests to run.

`LLM.generate` answers a batch, and waits for its slowest request before the next batch starts.
Here a new request is added whenever one has finished, across datasets. So the scheduler always
holds as many requests as it can run, and a few more. With one GPU, the engine runs in this
process, which saves the start of two others. With several, vLLM starts one process for each GPU,
and one that schedules: `vllm_processes` notices its death.

Requests that belong to the same item are scored together: see `scoring`.
"""
# The libraries of the extras have no types here: they may be absent while types are checked.
# ruff: noqa: ANN401

import contextlib
import functools
import gc
import importlib
import inspect
import json
import math
import os
import runpy
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from coordinate_eval.errors import EngineError
from coordinate_eval.evaluators import own_code
from coordinate_eval.evaluators.engines import common, vllm_lora, vllm_processes
from coordinate_eval.evaluators.engines.base import ALL_KINDS, Loading, Unwanted, all_wanted
from coordinate_eval.evaluators.engines.scoring import MOST_IDS, Scoring, together
from coordinate_eval.evaluators.engines.vllm_arguments import check_args
from coordinate_eval.evaluators.engines.vllm_defaults import OWN_PROCESSES, engine_arguments, on_cpu
from coordinate_eval.evaluators.engines.vllm_processes import follow
from coordinate_eval.evaluators.engines.vllm_writing import Writing
from coordinate_eval.records import Request, RequestKind, Response

__all__ = ["VllmEngine", "cache_variables", "check_args", "follow", "prepare", "serve", "start"]

_REGISTRY = "vllm.model_executor.models.registry"
"""The module of vLLM that looks at classes of models, in a process of its own."""

_ENVIRONMENT = {
    "VLLM_LOGGING_LEVEL": "WARNING",
    # Without a GPU: the GiB for keys and values. Threads are not bound to cores, because several
    # engines on one machine would all choose the same cores.
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
}


def cache_variables(folder: Path) -> Mapping[str, str]:
    """Return variables for vLLM and the libraries that compile for it."""
    flashinfer = os.environ.get("FLASHINFER_WORKSPACE_BASE") or Path.home()
    return {
        "VLLM_CACHE_ROOT": f"{folder}/vllm",
        "TORCHINDUCTOR_CACHE_DIR": f"{folder}/inductor",
        "TRITON_CACHE_DIR": f"{folder}/triton",
        "FLASHINFER_WORKSPACE_BASE": f"{folder}/flashinfer",
        # These are not compiled but downloaded, perhaps where there is a network.
        "FLASHINFER_CUBIN_DIR": f"{flashinfer}/.cache/flashinfer/cubins",
    }


def prepare(tensor_parallel: int, threads: int = 0) -> None:
    """Import vLLM, which takes several seconds and needs no weights.

    Raises:
        UserError: vLLM is not installed, or its installation is broken.
    """
    _set_environment(tensor_parallel)
    limited = common.limit_threads(threads)
    # `import vllm` alone loads very little, and would not show a broken installation.
    common.load("vllm.engine.llm_engine", "coordinate-eval[vllm]")
    own_code.refuse()
    if limited and not on_cpu():
        # torch has read it. On GPUs vLLM loads weights with several threads, and goes on with one:
        # others would only spin beside its own. Where the variable is set, it leaves that to users.
        del os.environ[common.THREADS]
    _hide_from_inspection(common.hidden())


def serve(what: Loading, *, name: str, socket: Path, key: str) -> None:
    """Run vLLM's own OpenAI server in this process. See `base.EngineModule`."""
    os.environ[OWN_PROCESSES] = "1"  # its server asks an engine in another process
    os.environ["VLLM_API_KEY"] = key
    prepare(what.tensor_parallel)
    chosen = engine_arguments(what) | {
        "served_model_name": [name],
        "uds": str(socket),
        # Each question has its own sampling parameters, and the checkpoint adds none.
        "generation_config": "vllm",
        "disable_uvicorn_access_log": True,
    }
    sys.argv = ["vllm", *_options(chosen)]
    with contextlib.chdir(what.model.parent):
        runpy.run_module("vllm.entrypoints.openai.api_server", run_name="__main__")


def _options(arguments: Mapping[str, Any]) -> Iterator[str]:
    """Yield arguments of an engine as the options of vLLM's server."""
    for name, value in arguments.items():
        option = name.replace("_", "-")
        if isinstance(value, bool):
            yield f"--{option}" if value else f"--no-{option}"
        elif isinstance(value, list):
            yield from (f"--{option}", *map(str, value))
        elif value is not None:
            yield from (
                f"--{option}",
                json.dumps(value) if isinstance(value, dict) else str(value),
            )


class _Work(Protocol):
    """Requests that are answered together, by one request to vLLM or several."""

    requests: Sequence[Request]

    def asks(self) -> Sequence[Any]:
        """Return what to ask first. Each has `tokens`, and `settings()` for `SamplingParams`."""
        ...

    def take(self, ask: Any, output: Any) -> tuple[Sequence[Response], Sequence[Any]]:
        """Take the output for one of these. Return responses, and what to ask next."""
        ...


class VllmEngine:
    """A model in vLLM. It runs no code of the checkpoint.

    Args:
        what: its `args` are fields of vLLM's `EngineArgs`. They override the defaults chosen here.

    Raises:
        UserError: vLLM is not installed, or an argument is unknown or not the user's to give.
        EngineError: vLLM did not start.
    """

    most_in_flight: int
    """Largest number of requests that vLLM has at once. Those that are pulled and not yet answered
    are at most as many, if none belong to the same item."""

    unable = ALL_KINDS

    computing = None
    """Always None: nearly all requests in flight are computed at once."""

    asked: int
    """Requests to vLLM so far. One of them may score several choices."""

    computed_tokens: int
    """Tokens of prompts that were computed so far, and not read from the prefix cache."""

    most_ids: int
    """Most tokens that one request to vLLM scores by their ids; 0 for scoring without ids."""

    steps: int
    """Number of engine steps so far. Unlike time, it does not depend on the machine's load."""

    def __init__(self, what: Loading) -> None:
        model, args, across = what.model, what.args, what.across
        prepare(what.tensor_parallel * (across.nodes if across else 1))
        vllm = importlib.import_module("vllm")
        arguments = engine_arguments(what) | vllm_processes.arguments(across)
        arguments |= vllm_lora.arguments(what.adapter)
        if on_cpu() and arguments["enforce_eager"]:
            # Even then, vLLM would compile a function of its sampler at the first scored prompt.
            importlib.import_module("torch").compiler.set_stance("force_eager")
            os.environ.setdefault(vllm_processes.NO_COMPILER, "1")  # of vLLM's other processes
        usage = importlib.import_module("vllm.usage.usage_lib").UsageContext
        try:
            # The path of the model is part of the key of what vLLM compiles: a short one, relative
            # to the working directory, is the same in all runs.
            with contextlib.chdir(model.parent):
                # The defaults for offline use are larger, for throughput.
                self._engine: Any | None = vllm.LLMEngine.from_engine_args(
                    vllm.EngineArgs(**arguments), usage_context=usage.LLM_CLASS
                )
        except Exception as error:
            raise EngineError(
                f"vLLM did not start on {str(model)!r} with arguments {args}: "
                f"{common.last_words(error)}{own_code.note(model, error)}"
            ) from error
        vllm_processes.watch(self._engine.engine_core)
        kinds = importlib.import_module("vllm.sampling_params").RequestOutputKind
        self._parameters = functools.partial(vllm.SamplingParams, output_kind=kinds.FINAL_ONLY)
        config = self._engine.vllm_config
        self._max_length: int = config.model_config.max_model_len
        self._vocabulary: int = config.model_config.get_vocab_size()
        running: int = config.scheduler_config.max_num_seqs
        # A few more wait in the scheduler. If it plans a step ahead, they fill the gaps.
        self.most_in_flight = running + max(1, running // 8)
        self.steps = self.computed_tokens = self.asked = 0
        self.most_ids = _most_ids(vllm.SamplingParams, config.model_config.max_logprobs)
        try:
            self._adapter = vllm_lora.load(self._engine, what.adapter)
            self._probe()
        except EngineError as error:
            self.close()
            raise EngineError(
                f"vLLM started on {str(model)!r} with arguments {args}, and cannot answer: {error}"
            ) from error
        self.steps = self.computed_tokens = 0

    def run(
        self, requests: Iterator[Request], unwanted: Unwanted = all_wanted
    ) -> Iterator[Response]:
        """Answer every request once, in the order in which they finish. Abort unwanted ones.

        Closing the returned generator aborts the requests in flight. The engine stays usable.
        """
        flight: dict[str, tuple[_Work, Any]] = {}
        groups: Iterator[list[Request]] | None = together(requests)
        try:
            while True:
                if (drop := unwanted()) is not None:
                    self._drop(flight, drop)
                # One more is pulled, and belongs to none of these.
                while groups and len(flight) + 1 < self.most_in_flight:
                    group = next(groups, None)
                    if group is None:
                        groups = None
                        continue
                    work = self._work(group)
                    for ask in work.asks():
                        self._ask(flight, work, ask)
                if not flight:
                    return
                for output in self._step():
                    work, ask = flight.pop(output.request_id)
                    cached = output.num_cached_tokens or 0
                    self.computed_tokens += len(ask.tokens) - cached
                    responses, more = work.take(ask, output)
                    for ask in more:
                        self._ask(flight, work, ask)
                    yield from responses
        finally:
            self._abort(flight)

    def close(self) -> None:
        """Free the GPU and end vLLM's own processes. A second call does nothing."""
        engine, self._engine = self._engine, None
        if engine is not None:
            engine.engine_core.shutdown()
            del engine
            gc.collect()

    def _probe(self) -> None:
        """Score a text in each way and write one, before any request depends on it.

        Where scoring by ids fails or differs, texts are scored as in versions of vLLM without it.
        """
        tokens = [number % self._vocabulary for number in range(3, 7)]
        ids, by_ids = self.most_ids, math.nan
        if ids:
            with contextlib.suppress(EngineError):
                by_ids = self._scored(tokens[:2], tokens[2:3]) + self._scored(
                    tokens[:3], tokens[3:]
                )
        self.most_ids = 0
        whole = self._scored(tokens[:2], tokens[2:])
        # Batches of other sizes change values of 16 bits a little.
        if math.isclose(by_ids, whole, rel_tol=0.05):
            self.most_ids = ids
        written = common.probe(RequestKind.GENERATE, tokens, max_tokens=1)
        list(self.run(iter([written])))

    def _scored(self, context: list[int], continuation: list[int]) -> float:
        """Return the log-likelihood of a continuation."""
        request = common.probe(RequestKind.LOGLIKELIHOOD, context, continuation=continuation)
        return common.check_probed(*self.run(iter([request])))

    def _work(self, group: list[Request]) -> _Work:
        """Return how to answer requests that belong together."""
        for request in group:
            common.check(
                request,
                max_length=self._max_length,
                most_scored=self._max_length - 1,  # vLLM must generate a token, also after scoring
                vocabulary=self._vocabulary,
            )
        if group[0].kind is RequestKind.LOGLIKELIHOOD:
            return Scoring(group, self.most_ids)
        (request,) = group
        tokenizer = self._running().get_tokenizer() if request.follow_ups else None
        return Writing(request, self._max_length, tokenizer)

    def _ask(self, flight: dict[str, tuple[_Work, Any]], work: _Work, ask: Any) -> None:
        """Add a request to vLLM's scheduler and to `flight`."""
        engine = self._running()
        name = str(self.asked)
        self.asked += 1
        prompt = {"type": "token", "prompt_token_ids": ask.tokens}
        try:
            parameters = self._parameters(**ask.settings())
            engine.add_request(name, prompt, parameters, lora_request=self._adapter)
        except Exception as error:
            raise EngineError(
                f"vLLM refused {common.named(work.requests[0])}: {common.last_words(error)}"
            ) from error
        flight[name] = work, ask

    def _step(self) -> list[Any]:
        """Run one engine step and return the outputs of the requests that it finished."""
        engine = self._running()
        self.steps += 1
        try:
            outputs = engine.step()
        except Exception as error:
            ended = vllm_processes.ended(engine.engine_core)
            raise EngineError(f"vLLM failed: {common.last_words(error)}{ended}") from error
        return [output for output in outputs if output.finished]

    def _running(self) -> Any:
        """Return vLLM's engine."""
        if self._engine is None:
            raise EngineError("this vLLM engine is closed: start another")
        return self._engine

    def _drop(self, flight: dict[str, tuple[_Work, Any]], drop: Callable[[Request], bool]) -> None:
        """Abort what answers nothing but unwanted requests."""
        unwanted = {name: ask for name, ask in flight.items() if all(map(drop, ask[0].requests))}
        self._abort(unwanted)
        for name in unwanted:
            del flight[name]

    def _abort(self, flight: Mapping[str, object]) -> None:
        """Abort the requests in flight, so that the next run starts on an idle engine."""
        if flight and self._engine is not None:
            # An engine that has died cannot abort. Its own error is already being raised.
            with contextlib.suppress(Exception):
                self._engine.abort_request(list(flight))


start = VllmEngine


def _set_environment(tensor_parallel: int) -> None:
    """Set the variables that vLLM reads when it is imported, unless the user has set them."""
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    if tensor_parallel == 1:
        os.environ.setdefault(OWN_PROCESSES, "0")


def _hide_from_inspection(packages: list[str]) -> None:
    """Hide these packages from the process in which vLLM looks at a class of models, too.

    vLLM starts it once for each class, as `python -m`, and keeps what it saw.
    """
    registry = importlib.import_module(_REGISTRY)
    if not packages or not hasattr(registry, "_SUBPROCESS_COMMAND"):
        return
    code = (
        f"import runpy, sys; sys.modules.update(dict.fromkeys({packages!r})); "
        f"runpy.run_module({_REGISTRY!r}, run_name='__main__', alter_sys=True)"
    )
    registry._SUBPROCESS_COMMAND = [sys.executable, "-c", code]  # type: ignore[attr-defined]


def _most_ids(parameters: Any, max_logprobs: int) -> int:
    """Return the most tokens that vLLM scores after a text in one request; 0 if it cannot."""
    if "logprob_token_ids" not in inspect.signature(parameters).parameters:
        return 0
    return MOST_IDS if max_logprobs < 0 else min(MOST_IDS, max_logprobs)
