"""The death of the process in which vLLM schedules, where it has one of its own.

Checked in the sources of vLLM 0.32: its client waits for the next output without a limit. That
process sends a last message if Python raises an error in it. If it is killed or crashes, the client
ends its own threads, marks itself as dead, and whoever waits does so for ever.
"""
# The libraries of the extras have no types here: they may be absent while types are checked.
# ruff: noqa: ANN401

import threading
import time
from multiprocessing import connection
from typing import Any

from coordinate_eval.errors import EngineError

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
