"""The processes of one engine of vLLM: those on other nodes, and the death of any.

Tensor parallel inside a node, pipeline parallel between nodes: vLLM's own launcher does it without
Ray (0.32). The process on the first node has the engine. Each of the others makes the executor of
its own GPUs, which `vllm serve --headless` would: all their processes meet at the first node's
address, and wait without limit for the work that it sends.

vLLM's client waits for the next output without a limit, too. The process that schedules sends a
last message if Python raises an error in it. If it is killed or crashes, the client ends its own
threads, marks itself as dead, and whoever waits does so for ever.
"""
# The libraries of the extras have no types here: they may be absent while types are checked.
# ruff: noqa: ANN401

import contextlib
import importlib
import os
import threading
import time
from multiprocessing import connection
from typing import Any

from coordinate_eval.errors import EngineError
from coordinate_eval.evaluators.engines import common
from coordinate_eval.evaluators.engines.base import Across, Loading
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


def follow(what: Loading) -> None:
    """Run the processes of this node's GPUs until one of them ends. See `base.EngineModule`.

    They end with this process, too. `prepare` has been called.
    """
    vllm = importlib.import_module("vllm")
    usage = importlib.import_module("vllm.usage.usage_lib").UsageContext
    executors = importlib.import_module("vllm.v1.executor.multiproc_executor")
    chosen = engine_arguments(what) | arguments(what.across)
    if on_cpu() and chosen["enforce_eager"]:
        os.environ.setdefault(NO_COMPILER, "1")
    executor = None
    try:
        with contextlib.chdir(what.model.parent):
            # Defaults differ between uses, and all processes of an engine must have the same.
            config = vllm.EngineArgs(**chosen).create_engine_config(
                usage_context=usage.LLM_CLASS, headless=True
            )
            executor = executors.MultiprocExecutor(config, monitor_workers=False)
        executor.start_worker_monitor(inline=True)
    except Exception as error:
        raise EngineError(
            f"this node's part of vLLM did not start on {str(what.model)!r} with arguments "
            f"{what.args}: {common.last_words(error)}"
        ) from error
    finally:
        if executor is not None:
            executor.shutdown()
    raise EngineError("a process of this node's part of vLLM has ended")


STATUS_SECONDS = 5.0
"""Longest wait for the exit status of a process that has ended: it may hang in a driver."""


def watch(core: Any) -> None:
    """Have vLLM's client raise an error when that process ends, however it does.

    `core` is the client: `engine_core` of vLLM's engine. One that works in this process, or is
    unknown here, is left alone.
    """
    manager, outputs = _manager(core), getattr(core, "outputs_queue", None)
    if not hasattr(manager, "sentinels") or outputs is None:
        return

    def wait() -> None:
        connection.wait(manager.sentinels())
        until = time.monotonic() + STATUS_SECONDS
        while not _ended(manager) and time.monotonic() < until:
            time.sleep(0.05)
        # It comes after all outputs that are there, and after the process's own last message.
        outputs.put(EngineError("a process of vLLM has ended"))

    threading.Thread(target=wait, name="death of vLLM's processes", daemon=True).start()


def ended(core: Any) -> str:
    """Return in words which of these processes have ended, and how; empty for none."""
    return _ended(_manager(core))


def _manager(core: Any) -> Any:
    return getattr(getattr(core, "resources", None), "engine_manager", None)


def _ended(manager: Any) -> str:
    statuses = manager.finished_procs() if hasattr(manager, "finished_procs") else {}
    return "".join(f" ({name} died, exit code: {status})" for name, status in statuses.items())
