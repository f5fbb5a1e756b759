"""The keeper: one CPU job a node that holds the weights in memory while its trials run.

`coordinate-eval _keep RUN NODE`. It sweeps what killed jobs of this user left, copies the
weights, tells its progress to the run directory, and waits until the supervisor releases the
node, a signal comes, or its time limit is near; then it lets go of the weights.
"""

import contextlib
import time

from coordinate_eval import _files
from coordinate_eval.coordinator.run import measurements
from coordinate_eval.coordinator.run.failures import own_log
from coordinate_eval.coordinator.run.paths import RunDir
from coordinate_eval.coordinator.run.records import Run, StageProgress
from coordinate_eval.coordinator.workers.signals import (
    MARGIN_SECONDS,
    StopRequested,
    stop_on_signals,
)
from coordinate_eval.coordinator.workers.staging import StagedWeights, Throttle

WATCH_SECONDS = 1.0
"""How often a keeper looks whether it is released."""


def run_keeper(run_dir: RunDir, node: str, round_number: int, minutes: int) -> int:
    """Keep until released; the exit status."""
    deadline = time.time() + minutes * 60 - MARGIN_SECONDS
    run = _files.read_record(run_dir.run, Run)
    path = run_dir.stage(round_number, node)
    released = run_dir.released(round_number, node)
    started = time.time()
    total = run.staged_bytes
    throttle = Throttle(1.0)

    def say(state: str, done: int, message: str = "") -> None:
        values = {"state": state, "done_bytes": done, "total_bytes": total, "message": message}
        values["log"] = own_log()
        values |= {"started": started, "updated": time.time()}
        _files.write_record(path, StageProgress.model_validate(values))

    def leave() -> bool:
        return released.exists() or run_dir.cancelled.exists()

    def report(done: int) -> None:
        if throttle():
            say("copying", done)

    stop_on_signals()
    place = StagedWeights(run.settings.stage.root, run.id, node)
    try:
        with contextlib.suppress(StopRequested):
            say("copying", 0)
            place.sweep()
            with place.hold():
                while not place.fill(run.checkpoint, report):
                    time.sleep(WATCH_SECONDS)
                say("ready", total)
                measurements.note_copy(run_dir.copies(node), place.copy_seconds, run.checkpoint)
                while not leave() and time.time() < deadline:
                    time.sleep(WATCH_SECONDS)
    except Exception as error:
        say("failed", 0, str(error) or type(error).__name__)
        raise
    say("removed", 0)
    return 0
