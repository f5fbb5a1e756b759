"""The keeper: one CPU job a node, which holds the weights in memory while the trials run.

`coordinate-eval _keep RUN NODE`. A keeper removes what killed jobs of this user left, copies the
weights, records its progress in the run directory, and waits until the supervisor releases the
node, a signal comes, its time limit is near, or the run has lost its supervisor. Then it lets go of
the weights.
"""

import contextlib
import math
import time

from coordinate_eval import _files
from coordinate_eval.coordinator.run import measurements
from coordinate_eval.coordinator.run.logs import own_log
from coordinate_eval.coordinator.run.own import check_there
from coordinate_eval.coordinator.run.paths import RunDir
from coordinate_eval.coordinator.run.records import StageProgress, read_run
from coordinate_eval.coordinator.workers.on_node.staging import StagedWeights, Throttle
from coordinate_eval.coordinator.workers.signals import (
    MARGIN_SECONDS,
    StopRequested,
    stop_on_signals,
)
from coordinate_eval.coordinator.workers.signs_of_life import Supervision

WATCH_SECONDS = 1.0
"""Time between two looks at whether the node is released."""


def run_keeper(run_dir: RunDir, node: str, round_number: int, minutes: int) -> int:
    """Hold the weights until the node is released. Return the exit status.

    `minutes` is the time limit of the keeper's job.
    """
    deadline = time.time() + minutes * 60 - MARGIN_SECONDS
    run = read_run(run_dir)
    released = run_dir.released(round_number, node)
    path = run_dir.stage(round_number, node)
    started = time.time()
    ready: float | None = None
    throttle = Throttle(1.0)

    def write_progress(state: str, done_bytes: int, message: str = "") -> None:
        values = {"state": state, "done_bytes": done_bytes, "total_bytes": run.staged_bytes}
        values |= {"started": started, "ready": ready, "updated": time.time()}
        values |= {"message": message, "log": own_log()}
        _files.write_record(path, StageProgress.model_validate(values))

    def report(done_bytes: int) -> None:
        if throttle():
            write_progress("copying", done_bytes)

    stop_on_signals()
    weights = StagedWeights(run.settings.stage.folder, run.id, node)
    try:
        with contextlib.suppress(StopRequested):
            write_progress("copying", 0)
            weights.remove_abandoned()
            with weights.hold():
                most = 0.0 if run.settings.stage.where == "none" else math.inf
                while not weights.copy(run.checkpoint, report, most):
                    time.sleep(WATCH_SECONDS)
                ready = time.time()
                write_progress("ready", run.staged_bytes)
                copies = run_dir.copies(node)
                measurements.append_copy(copies, weights.copy_seconds, run.checkpoint)
                # Trials that run hold the weights, too.
                supervision = Supervision(run_dir, run.settings.supervisor.patience_seconds)
                while time.time() < deadline and not supervision.is_lost():
                    check_there(run_dir)
                    if released.exists() or run_dir.cancelled.exists():
                        break
                    time.sleep(WATCH_SECONDS)
    except Exception as error:
        write_progress("failed", 0, str(error) or type(error).__name__)
        raise
    write_progress("removed", 0)
    return 0
