"""The judge's run, beside the run that asks, on a cluster whose jobs belong to this process.

Elsewhere a judge's run has a supervisor of its own, in a job. Here jobs end with the process that
submitted them, so the process that supervises the run that asks supervises the judge's too: a step
of the one, a step of the other. Both are killed together, and go on together.

A run that was asked other questions before may have a judge's run for those, which nobody needs any
more. So only the one is begun of which the judge's job says that it waits for it.
"""

import contextlib
import time
from collections.abc import Callable
from pathlib import Path

from coordinate_eval import _files
from coordinate_eval.clusters.protocol import Cluster
from coordinate_eval.coordinator.report.state import (
    has_ended_incomplete,
    is_complete,
    is_supervised,
)
from coordinate_eval.coordinator.run.paths import RunDir
from coordinate_eval.coordinator.run.records import JudgeProgress, read_run
from coordinate_eval.coordinator.supervisor.loop import Superseded, Supervisor
from coordinate_eval.errors import CoordinateError

AGAIN_SECONDS = 60.0
"""Time after an error that ended a supervision before the next one begins."""

LOOK_SECONDS = 1.0
"""Time between two looks whether a run that is over was resumed, or another's has lost that one."""


class JudgeRuns:
    """Supervises what the judge's job of one run has begun.

    Made before the run that asks has any job: all GPUs that are free then are those of the judge's
    run, which waits for them while the first run has them.

    Args:
        run_dir: the run that asks.
        cluster: its cluster, whose jobs belong to this process.
        tell: called with what happens, in words for people.
    """

    def __init__(self, run_dir: RunDir, cluster: Cluster, tell: Callable[[str], None]) -> None:
        self._dir, self._cluster, self._tell = run_dir, cluster, tell
        self._nodes = cluster.nodes()
        self._supervised: dict[Path, Supervisor] = {}
        self._taken_over: set[Path] = set()
        self._due: dict[Path, float] = {}
        """Monotonic seconds of the next look at each run."""

    def step(self) -> bool:
        """Look after all that is due. Return whether one of the runs goes on."""
        wanted: set[Path] = set()
        with contextlib.suppress(OSError, CoordinateError):  # storage fails, which may pass
            wanted = self._wanted()
        for root in sorted({*wanted, *self._supervised}):
            if time.monotonic() >= self._due.get(root, 0.0):
                pause = self._look_after(root)
                self._due[root] = time.monotonic() + pause
        return bool(self._supervised)

    def _wanted(self) -> set[Path]:
        """Return the run that the judge's job waits for, once that is made."""
        said = _files.read_record_if_there(self._dir.judge, JudgeProgress)
        if said is None or not said.run:
            return set()
        root = self._dir.judge_folder / said.run / "run"
        return {root} if RunDir(root).run.exists() else set()

    def _look_after(self, root: Path) -> float:
        """Take the next step of a run. Return the seconds until it is looked at again."""
        supervisor = self._supervised.pop(root, None)
        try:
            if supervisor is None:
                inner = RunDir(root)
                if is_complete(inner) or has_ended_incomplete(inner) or self._is_anothers(inner):
                    return LOOK_SECONDS
                supervisor = Supervisor(inner, self._cluster, tell=self._say, nodes=self._nodes)
                supervisor.begin()
            if supervisor.step():
                return LOOK_SECONDS
        except Superseded:
            self._taken_over.add(root)
            return LOOK_SECONDS
        except (CoordinateError, OSError) as error:
            self._tell(f"the judge's run {root}: {error}")
            return AGAIN_SECONDS
        self._supervised[root] = supervisor
        return supervisor.pause_seconds

    def _is_anothers(self, inner: RunDir) -> bool:
        """Return whether the process that has taken a run over may still supervise it."""
        if inner.root in self._taken_over:
            return is_supervised(inner, read_run(inner), []) is not False
        return False

    def _say(self, event: str) -> None:
        self._tell(f"the judge's run: {event}")
