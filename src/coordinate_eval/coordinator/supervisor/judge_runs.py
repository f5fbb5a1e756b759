"""The judge's run, beside the run that asks, on a cluster whose jobs belong to this process.

Elsewhere a judge's run has a supervisor of its own, in a job. Here jobs end with the process that
submitted them, so the process that supervises the run that asks supervises the judge's too: a step
of the one, a step of the other. Both are killed together, and go on together.
"""

import contextlib
import math
import time
from collections.abc import Callable
from pathlib import Path

from coordinate_eval.cluster import Cluster
from coordinate_eval.coordinator.report.state import has_ended_incomplete, is_complete
from coordinate_eval.coordinator.run.paths import RunDir
from coordinate_eval.coordinator.supervisor.loop import Superseded, Supervisor
from coordinate_eval.errors import CoordinateError

AGAIN_SECONDS = 60.0
"""Time after an error that ended a supervision before the next one begins."""

LOOK_SECONDS = 1.0
"""Time between two looks whether a run that is over was resumed."""


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
        self._due: dict[Path, float] = {}
        """When each run is looked at next; never those that others have taken over."""

    def step(self) -> bool:
        """Look after all that is due. Return whether one of the runs goes on."""
        found: list[Path] = []
        with contextlib.suppress(OSError):  # storage fails, which may pass
            found = sorted(self._dir.judge_folder.glob("*/run/run.json"))
        for path in found:
            if time.monotonic() >= self._due.get(path.parent, 0.0):
                pause = self._look_after(path.parent)
                self._due[path.parent] = time.monotonic() + pause
        return bool(self._supervised)

    def _look_after(self, root: Path) -> float:
        """Take the next step of a run. Return the seconds until it is looked at again."""
        supervisor = self._supervised.pop(root, None)
        try:
            if supervisor is None:
                inner = RunDir(root)
                if is_complete(inner) or has_ended_incomplete(inner):
                    return LOOK_SECONDS
                supervisor = Supervisor(inner, self._cluster, tell=self._say, nodes=self._nodes)
                supervisor.begin()
            if supervisor.step():
                return LOOK_SECONDS
        except Superseded:
            return math.inf
        except (CoordinateError, OSError) as error:
            self._tell(f"the judge's run {root}: {error}")
            return AGAIN_SECONDS
        self._supervised[root] = supervisor
        return supervisor.pause_seconds

    def _say(self, _: object, event: str) -> None:
        if event and event != "drain":
            self._tell(f"the judge's run: {event}")
