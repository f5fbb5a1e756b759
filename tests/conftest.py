"""Settings and fixtures of all tests."""

import gc
import importlib
import itertools
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from coordinate_eval._no_telemetry import switch_off_telemetry
from tests.random_examples import examples

settings.register_profile("ours", examples(100))
settings.load_profile("ours")

# Python looks for cycles after 700 new objects, which takes a tenth of the CPU time of tests here.
gc.set_threshold(20_000, 50, 100)

# Before torch is loaded, here and in processes that are started. More threads only wait for each
# other over models this small, and keep cores busy with it that other workers need.
os.environ["OMP_NUM_THREADS"] = "1"

# Tests that import libraries in this process begin as the program does.
switch_off_telemetry()

# A shell's background job ignores SIGINT, and so would all that these tests start and interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

_STOPS = (signal.SIGTERM, signal.SIGUSR1)

_TOGETHER = {
    f"tests/e2e/test_{name}.py": "vLLM in the test's own process"
    for name in ("engines", "engine_starts", "judge_server", "vllm_server")
}
"""Modules that share what a worker imports and starts, and so are on one worker, by their names:
the start that fails, in the first, would end what an engine of the others has in its process."""

_LONG = {"test_training_faults", "test_guard", "test_runs", "test_faults"}
"""Modules that wait for many minutes: begun last, they would decide when all have ended."""


@pytest.fixture(autouse=True, scope="module")
def variables_as_they_were() -> Iterator[None]:
    """What a library sets in this process, as engines do, reaches no process of other modules.

    Where Slurm is, the cluster of a whole session tells.
    """
    before = dict(os.environ)
    yield
    kept = {name: os.environ[name] for name in ("SLURM_CONF",) if name in os.environ}
    os.environ.clear()
    os.environ.update(
        {name: value for name, value in before.items() if name != "SLURM_CONF"} | kept
    )


@pytest.fixture(autouse=True)
def signals_as_they_were() -> Iterator[None]:
    """A job that ran in this process leaves no handler to the tests after it."""
    before = [signal.getsignal(number) for number in _STOPS]
    yield
    for number, handler in zip(_STOPS, before, strict=True):
        if handler is not None:
            signal.signal(number, handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let files that wait for a scheduler take turns with those that compute.

    Workers take files in this order, so that some compute while others wait.
    """
    files: dict[Path, list[pytest.Item]] = {}
    for item in items:
        files.setdefault(item.path, []).append(item)
    waits = [path for path in files if path.parent.name == "slurm"]
    waits.sort(key=lambda path: path.stem not in _LONG)
    computes = [path for path in files if path.parent.name != "slurm"]
    turns = itertools.chain.from_iterable(itertools.zip_longest(waits, computes))
    items[:] = [item for path in turns if path for item in files[path]]


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> object:
    """Keep the tests of a module on one worker, and those of modules that share something."""
    made: Any = importlib.import_module("xdist.scheduler").LoadFileScheduling(config, log)
    module_of = made._split_scope
    made._split_scope = lambda test: _TOGETHER.get(module_of(test), module_of(test))
    return made
