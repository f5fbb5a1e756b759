"""One engine of vLLM over several nodes: tensor parallel inside a node, pipeline parallel between.

vLLM's own launcher does it without Ray (0.32). The process on the first node has the engine. Each
of the others makes the executor of its own GPUs, which `vllm serve --headless` would: all their
processes meet at the first node's address, and wait without limit for the work that it sends.
"""

import contextlib
import importlib
import os
from pathlib import Path
from typing import Any

from coordinate_eval.errors import EngineError
from coordinate_eval.evaluators.engines import common
from coordinate_eval.evaluators.engines.base import Across
from coordinate_eval.evaluators.engines.vllm_defaults import engine_arguments, on_cpu

_LAYERS = "VLLM_PP_LAYER_PARTITION"
"""The variable with the number of layers of each stage."""


NO_COMPILER = "TORCHDYNAMO_DISABLE"
"""The variable with which torch compiles nothing, in any process."""


def arguments(across: Across | None) -> dict[str, Any]:
    """Return arguments of `EngineArgs` for a part of an engine, and set what they cannot say."""
    if across is None:
        return {}
    if across.layers:
        os.environ[_LAYERS] = ",".join(map(str, across.layers))
    return {
        "distributed_executor_backend": "mp",
        "pipeline_parallel_size": across.nodes,
        "nnodes": across.nodes,
        "node_rank": across.rank,
        "master_addr": across.address,
        "master_port": across.port,
    }


def follow(
    model: Path,
    *,
    tensor_parallel: int,
    max_length: int,
    args: dict[str, Any],
    lighter: int,
    across: Across,
) -> None:
    """Run the processes of this node's GPUs until one of them ends. See `base.EngineModule`.

    They end with this process, too. `prepare` has been called.
    """
    vllm = importlib.import_module("vllm")
    usage = importlib.import_module("vllm.usage.usage_lib").UsageContext
    executors = importlib.import_module("vllm.v1.executor.multiproc_executor")
    chosen = engine_arguments(model, tensor_parallel, max_length, args, lighter) | arguments(across)
    if on_cpu() and chosen["enforce_eager"]:
        os.environ.setdefault(NO_COMPILER, "1")
    executor = None
    try:
        with contextlib.chdir(model.parent):
            # Defaults differ between uses, and all processes of an engine must have the same.
            config = vllm.EngineArgs(**chosen).create_engine_config(
                usage_context=usage.LLM_CLASS, headless=True
            )
            executor = executors.MultiprocExecutor(config, monitor_workers=False)
        executor.start_worker_monitor(inline=True)
    except Exception as error:
        raise EngineError(
            f"this node's part of vLLM did not start on {str(model)!r} with arguments {args}: "
            f"{common.last_words(error)}"
        ) from error
    finally:
        if executor is not None:
            executor.shutdown()
    raise EngineError("a process of this node's part of vLLM has ended")
