"""What the scheduler says of a run's tasks, and how much less often it is asked for many runs."""

import math
import time
from collections.abc import Callable, Iterable, Mapping

from coordinate_eval.clusters.protocol import Cluster, End, State, TaskStatus
from coordinate_eval.coordinator.run import jobs

GONE_SECONDS = 180.0
"""A task that has been completing for so long is gone: its processes hang, or its epilog does."""

FULL_PACE_SECONDS = 60.0
"""Time at the full pace after a supervisor's start, when its run may choose nodes and start."""


class Polls:
    """Asks the scheduler for a run's tasks.

    A task that the scheduler cannot bring to an end counts as ended after a while. After a hang the
    kernel may not end a process for hours, and Slurm waits for it. If such a process answers after
    all, nothing is lost or counted twice: see `claims.py`. A new supervisor begins at zero.

    Args:
        cluster: the scheduler.
        prefix: with which the names of the run's jobs begin.
        clock: seconds from any moment on.
    """

    def __init__(
        self, cluster: Cluster, prefix: str, clock: Callable[[], float] = lambda: time.monotonic()
    ) -> None:
        self._cluster, self._prefix, self._clock = cluster, prefix, clock
        self._began = clock()
        self._completing: Mapping[tuple[str, int], float] = {}
        self.slower = 1.0
        """Factor on the time between two polls, for the user's runs beside this one."""

    def tasks(self) -> list[TaskStatus]:
        """Return the run's tasks.

        Raises:
            ClusterSilent: the scheduler does not answer.
        """
        found = self._cluster.poll(jobs.PREFIX)
        now = self._clock()
        self.slower = slow_down(found) if now - self._began >= FULL_PACE_SECONDS else 1.0
        mine = [task for task in found if task.name.startswith(self._prefix)]
        keys = [(task.job_id, task.index) for task in mine if task.completing]
        self._completing = {key: self._completing.get(key, now) for key in keys}
        gone = {key for key, since in self._completing.items() if now - since >= GONE_SECONDS}
        return [
            task.model_copy(update={"state": State.ENDED, "end": End.COMPLETING})
            if (task.job_id, task.index) in gone
            else task
            for task in mine
        ]


def slow_down(tasks: Iterable[TaskStatus]) -> float:
    """Return the factor on the time between two polls, given all living jobs of this user.

    It is the square root of the number of runs: a hundred runs ask the scheduler and read their
    files ten times as often as one does, and each waits ten times as long as one.
    """
    names = (task.name for task in tasks if task.state is not State.ENDED)
    runs = {run for run in map(jobs.supervised_run, names) if run is not None}
    return math.sqrt(max(1, len(runs)))
