"""The keeper: one CPU job a node, which holds the weights in memory while the trials run.

`coordinate-eval _keep RUN NODE`. A keeper removes what killed jobs of this user left, copies the
weights, records its progress in the run directory, and waits until the supervisor releases the
node, a signal comes, its time limit is near, or the run has lost its supervisor. Then it lets go of
the weights. A trial waits for them, as an `Arrival`, and copies them itself where no keeper does.
"""

import contextlib
import math
import sys
import time

from coordinate_eval import _files
from coordinate_eval.coordinator.run import lease, measurements
from coordinate_eval.coordinator.run.logs import own_log
from coordinate_eval.coordinator.run.own import check_there
from coordinate_eval.coordinator.run.paths import RunDir
from coordinate_eval.coordinator.run.records import Run, StageProgress, read_run
from coordinate_eval.coordinator.run.rounds import nodes_of
from coordinate_eval.coordinator.workers.on_node.staging import (
    StagedWeights,
    Throttle,
    weights_name,
)
from coordinate_eval.coordinator.workers.signals import (
    MARGIN_SECONDS,
    StopRequested,
    Supervision,
    stop_on_signals,
)
from coordinate_eval.errors import UserError, WeightsRefused
from coordinate_eval.evaluators.engines import base as engines
from coordinate_eval.evaluators.engines import vllm_arguments

KEEPER_PATIENCE_SECONDS = 120.0
"""Time that a trial waits for a keeper's first bytes before it copies the weights itself."""

ENGINE_GIB = 8.0
"""Host memory of an engine for each of its GPUs, which a trial does not spend on a copy."""


class Arrival:
    """The weights as one trial waits for them.

    Args:
        node: where the trial runs.
        round_number: of its round, which has a keeper on the node, unless it is anywhere.
        anywhere: the scheduler has chosen the node, which has no keeper.
    """

    def __init__(
        self, run_dir: RunDir, run: Run, node: str, round_number: int, *, anywhere: bool
    ) -> None:
        self._dir, self._run, self._node, self._anywhere = run_dir, run, node, anywhere
        self._keeper = run_dir.stage(round_number, node)

    def wait(self, weights: StagedWeights) -> None:
        """Wait until the keeper has copied the weights. Copy them if it died or never began.

        What a trial copies counts as memory of its own job. There is room for it where the job is
        the whole node's, and where it is known that no keeper comes.
        """
        stage = self._run.settings.stage
        spare = max(0.0, self._run.settings.trial.memory_gib - ENGINE_GIB)
        most = spare * self._run.tensor_parallel * 2**30
        if stage.where == "none":
            most = 0.0
        elif stage.in_files or self._run.exclusive or self._anywhere:
            most = math.inf
        give_up = time.monotonic() + KEEPER_PATIENCE_SECONDS
        identity = lease.loaded(self._run).identity
        while not weights.ready(identity):
            # `copy` does nothing while the keeper, or another trial, is copying.
            late = (
                weights.begun()
                or stage.where == "none"
                or self._has_no_keeper()
                or self._keeper_is_elsewhere(weights)
                or time.monotonic() > give_up
            )
            if late and weights.copy(lease.loaded(self._run), most_bytes=most):
                copies = self._dir.copies(self._node)
                measurements.append_copy(copies, weights.copy_seconds, self._run.checkpoint)
                return
            time.sleep(0.1)

    def _has_no_keeper(self) -> bool:
        """Return whether the node never gets a keeper, or its keeper has failed.

        Raises:
            WeightsRefused: It has failed because of the weights.
        """
        if self._anywhere:
            return True
        keeper = _files.read_record_if_there(self._keeper, StageProgress)
        if keeper is not None and keeper.refused:
            raise WeightsRefused(keeper.message)
        return keeper is not None and keeper.state == "failed"

    def _keeper_is_elsewhere(self, weights: StagedWeights) -> bool:
        """Return whether the keeper has weights in a folder that this job does not see."""
        keeper = _files.read_record_if_there(self._keeper, StageProgress)
        # Its folder is there before it records the first bytes, so it is looked for afterwards.
        if keeper is None or not keeper.done_bytes or weights.begun():
            return False
        print(
            f"the keeper's weights are not in {weights.folder} of this job: each job seems to have "
            f"a {self._run.settings.stage.folder} of its own, so this trial gets its own weights. "
            "Set [stage] where to `local DIR`, a folder that all jobs of a node see, or to `none`",
            flush=True,
        )
        return True


def _check_image(run: Run) -> None:
    """Check that the engine of an image takes the run's arguments, before a GPU is asked for.

    Raises:
        SystemExit: It does not. The message is the one by which an unfit image is told of.
    """
    image, engine = run.settings.container.image_of("trial"), run.settings.engine
    if image is None:
        return
    try:
        engines.by_name(engine.name).check_args(engine.args)
        if engine.name == "vllm":
            vllm_arguments.check_quantization(run.checkpoint.quantization)
    except UserError as error:
        sys.exit(f"coordinate-eval: container: image {image}: {error}")


WATCH_SECONDS = 1.0
"""Time between two looks at whether the node is released."""


def run_keeper(run_dir: RunDir, node: str, round_number: int, minutes: int) -> int:
    """Hold the weights until the node is released. Return the exit status.

    `minutes` is the time limit of the keeper's job.
    """
    deadline = time.time() + minutes * 60 - MARGIN_SECONDS
    run = read_run(run_dir)
    shared = run.nodes_per_trial > 1
    nodes = nodes_of(run_dir, round_number, node).names if shared else [node]
    released = run_dir.released(round_number, nodes[0])
    total = run.staged_bytes - (run.checkpoint.bytes - run.node_bytes if run.node_bytes else 0)
    path = run_dir.stage(round_number, node)
    started = time.time()
    ready: float | None = None
    throttle = Throttle(1.0)

    def write_progress(
        state: str, done_bytes: int, message: str = "", *, refused: bool = False
    ) -> None:
        values = {"state": state, "done_bytes": done_bytes, "total_bytes": total}
        values |= {"refused": refused}
        values |= {"started": started, "ready": ready, "updated": time.time()}
        values |= {"message": message, "log": own_log()}
        _files.write_record(path, StageProgress.model_validate(values))

    def report(done_bytes: int) -> None:
        if throttle():
            write_progress("copying", done_bytes)

    _check_image(run)
    stop_on_signals()
    part = nodes.index(node), run.nodes_per_trial
    weights = StagedWeights(run.settings.stage.folder, weights_name(run), node, part)
    try:
        with contextlib.suppress(StopRequested), weights.hold():
            write_progress("copying", 0)
            weights.remove_abandoned()
            most = 0.0 if run.settings.stage.where == "none" else math.inf
            while not weights.copy(lease.loaded(run), report, most):
                time.sleep(WATCH_SECONDS)
            ready = time.time()
            write_progress("ready", total)
            copies = run_dir.copies(node)
            measurements.append_copy(copies, weights.copy_seconds, run.checkpoint)
            # Running trials also hold the weights.
            supervision = Supervision(run_dir, run.settings.supervisor.patience_seconds)
            while time.time() < deadline and not supervision.is_lost():
                check_there(run_dir)
                if released.exists() or run_dir.cancelled.exists():
                    break
                time.sleep(WATCH_SECONDS)
    except Exception as error:
        refused = isinstance(error, WeightsRefused)
        write_progress("failed", 0, str(error) or type(error).__name__, refused=refused)
        raise
    write_progress("removed", 0)
    return 0
