"""A whole node in one job, for partitions that allocate only whole nodes.

`coordinate-eval _node RUN NODE` runs the keeper and all trials of its node as child processes.
Each trial gets its part of the job's GPUs, and a log of its own.
"""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import BinaryIO

from coordinate_eval import _files
from coordinate_eval.clusters.protocol import ENDS_WITH_PARENT, INDEX_VARIABLE, End
from coordinate_eval.coordinator.incidents.incident import Incident
from coordinate_eval.coordinator.run.claiming.claims import Ledger, own_task
from coordinate_eval.coordinator.run.jobs import program, trial_id
from coordinate_eval.coordinator.run.logs import own_log
from coordinate_eval.coordinator.run.paths import RunDir
from coordinate_eval.coordinator.run.records import TrialProgress, read_run
from coordinate_eval.coordinator.workers.signals import StopRequested, stop_on_signals
from coordinate_eval.errors import RecordError

WATCH_SECONDS = 1.0
"""Time between two looks at the trials."""

_DEVICES = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")


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
            with _output(index) as output:
                child = subprocess.Popen(
                    argv, env=environment, stdout=output, stderr=output, process_group=0
                )
            children.append(child)
        statuses = _wait(run_dir, node, dict(zip(names, children, strict=True)))
    except StopRequested:
        for child in children:
            child.terminate()
        statuses = [child.wait() for child in children]
    finally:
        keeper.terminate()
        keeper.wait()
    return max((abs(status) for status in statuses), default=0)


@contextlib.contextmanager
def _output(index: int) -> Iterator[BinaryIO | None]:
    """Open the log of one trial beside that of the job; None where the job has none.

    The cause of a trial's end is looked for in its own log, which must not have the words of
    others.
    """
    log = own_log()
    if not log:
        yield None
        return
    with _files.open_to_write(Path(f"{log.removesuffix('.log')}-{index}.log"), append=True) as file:
        yield file


def _wait(run_dir: RunDir, node: str, trials: Mapping[str, subprocess.Popen[bytes]]) -> list[int]:
    """Wait until all trials have ended. End the trials that the supervisor finds hanging.

    A trial that a signal has ended cannot say so, and the scheduler sees only that the job goes on.
    """
    told: set[str] = set()
    while any(trial.poll() is None for trial in trials.values()):
        for name, trial in trials.items():
            status = trial.poll()
            # What storage cannot say or take now, the next look may.
            with contextlib.suppress(OSError, RecordError):
                if status is None and _hangs(run_dir, name):
                    os.killpg(trial.pid, signal.SIGKILL)
                elif status is not None and status < 0 and name not in told:
                    with contextlib.suppress(ProcessLookupError):
                        os.killpg(trial.pid, signal.SIGKILL)  # what its engine has started
                    _tell(run_dir, name, node, -status)
                    told.add(name)
        time.sleep(WATCH_SECONDS)
    return [trial.wait() for trial in trials.values()]


def _hangs(run_dir: RunDir, trial: str) -> bool:
    """Return whether the supervisor has found that a trial hangs."""
    found = _files.read_record_if_there(run_dir.incident(trial), Incident)
    return found is not None and found.how != "error"


def _tell(run_dir: RunDir, trial: str, node: str, number: int) -> None:
    """Say in a trial's place that a signal has ended it, and give its shards to others."""
    now = time.time()
    last = _files.read_record_if_there(run_dir.trial(trial), TrialProgress) or TrialProgress(
        trial=trial, task=own_task(), node=node, state="staging", started=now, updated=now,
        log=own_log(),
    )  # fmt: skip
    if last.state not in ("ended", "failed"):
        ended = {
            "state": "failed",
            "message": f"ended by signal {number} ({signal.strsignal(number)})",
            "cause": "other",
            "updated": now,
        }
        _files.write_record(run_dir.trial(trial), last.model_copy(update=ended))
    ledger = Ledger(run_dir, "outputs")
    for span, attempt, claim in ledger.open_claims(s.span for s in read_run(run_dir).shards):
        if claim.owner == trial:
            ledger.revoke(span, attempt, "died", End.FAILED)


def visible_devices(environ: Mapping[str, str], index: int, width: int) -> dict[str, str]:
    """Return the variables that show one trial its `width` of the job's GPUs."""
    found = {}
    for variable in _DEVICES:
        given = [d for d in environ.get(variable, "").split(",") if d]
        if given:
            found[variable] = ",".join(given[index * width : (index + 1) * width])
    return found
