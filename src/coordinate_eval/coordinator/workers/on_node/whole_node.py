"""A whole node in one job, for partitions that allocate only whole nodes.

`coordinate-eval _node RUN NODE` runs the keeper and all trials of its node as child processes.
Each trial gets its part of the job's GPUs.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from coordinate_eval.cluster import ENDS_WITH_PARENT, INDEX_VARIABLE
from coordinate_eval.coordinator.run.jobs import program, trial_id
from coordinate_eval.coordinator.run.paths import RunDir
from coordinate_eval.coordinator.run.records import read_run
from coordinate_eval.coordinator.workers.signals import StopRequested, stop_on_signals

WATCH_SECONDS = 1.0
"""Time between two looks at the trials."""

_DEVICES = ("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")


def run_node(run_dir: RunDir, node: str, round_number: int, minutes: int, trials: int) -> int:
    """Run keeper and trials until all trials have ended. Return the worst exit status."""
    run = read_run(run_dir)
    end = ["--round", str(round_number), "--minutes", str(minutes)]
    command = program(sys.executable)
    children: list[subprocess.Popen[bytes]] = []
    names = [trial_id(node, index, round_number) for index in range(trials)]
    stop_on_signals()
    keeper = subprocess.Popen(
        [*command, "_keep", str(run_dir.root), node, *end], env=os.environ | ENDS_WITH_PARENT
    )
    try:
        for index in range(trials):
            environment = os.environ | ENDS_WITH_PARENT | {INDEX_VARIABLE: str(index)}
            environment |= visible_devices(os.environ, index, run.tensor_parallel)
            argv = [*command, "_trial", str(run_dir.root), node, *end]
            # In a group of its own, which has the processes that an engine starts as well.
            children.append(subprocess.Popen(argv, env=environment, process_group=0))
        statuses = _wait(children, [run_dir.trouble(name) for name in names])
    except StopRequested:
        for child in children:
            child.terminate()
        statuses = [child.wait() for child in children]
    finally:
        keeper.terminate()
        keeper.wait()
    return max((abs(status) for status in statuses), default=0)


def _wait(children: Sequence[subprocess.Popen[bytes]], troubles: Sequence[Path]) -> list[int]:
    """Wait until all trials have ended. End those of which the supervisor notes that they hang."""
    while any(child.poll() is None for child in children):
        for child, trouble in zip(children, troubles, strict=True):
            if child.poll() is None and trouble.exists():
                os.killpg(child.pid, signal.SIGKILL)
        time.sleep(WATCH_SECONDS)
    return [child.wait() for child in children]


def visible_devices(environ: Mapping[str, str], index: int, width: int) -> dict[str, str]:
    """Return the variables that show one trial its `width` of the job's GPUs."""
    found = {}
    for variable in _DEVICES:
        given = [d for d in environ.get(variable, "").split(",") if d]
        if given:
            found[variable] = ",".join(given[index * width : (index + 1) * width])
    return found
