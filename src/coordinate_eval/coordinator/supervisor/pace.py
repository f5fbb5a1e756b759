"""The pace at which a supervisor looks at its run, beside the user's other runs."""

import math
import time
from collections.abc import Callable, Iterable

from coordinate_eval.clusters.protocol import Cluster, State, TaskStatus
from coordinate_eval.coordinator.run import jobs
from coordinate_eval.coordinator.supervisor.facts.completing import Completing

RUNS_AT_FULL_PACE = 10
"""Runs of one user at a time whose supervisors look at everything every `poll_seconds` each."""


class Pace:
    """Tells a supervisor when to look at its run: when a task has changed, and in any case later.

    All it reads to know the tasks may be an answer that another run has asked for. A whole look
    reads hundreds of files.

    Args:
        cluster: the scheduler.
        prefix: with which the names of the run's jobs begin.
        poll_seconds: time between two calls of `tasks`.
        clock: seconds from any moment on.
    """

    def __init__(
        self,
        cluster: Cluster,
        prefix: str,
        poll_seconds: float,
        clock: Callable[[], float] = lambda: time.monotonic(),
    ) -> None:
        self._cluster, self._prefix, self._poll_seconds = cluster, prefix, poll_seconds
        self._clock = clock
        self._completing = Completing(clock)
        self._known: list[TaskStatus] = []
        self._due = -math.inf
        self.slower = 1.0
        """Factor on the time between two whole looks, and after errors."""

    def at_once(self) -> None:
        """Look at the whole run next time."""
        self._due = -math.inf

    def tasks(self) -> list[TaskStatus] | None:
        """Return the run's tasks; None where they are as before and the run is not due.

        Raises:
            ClusterSilent: the scheduler does not answer.
        """
        now = self._clock()
        due = now >= self._due
        found = self._cluster.look(jobs.PREFIX if due else self._prefix, patient=not due)
        if found is None:
            return None
        if due:
            self.slower = slow_down(found)
            self._due = now + self._poll_seconds * self.slower
        mine = self._mine(found)
        if mine == self._known and not due:
            return None
        self._known = mine
        return mine

    def asked(self) -> list[TaskStatus]:
        """Return the run's tasks as the scheduler itself says, now.

        Raises:
            ClusterSilent: the scheduler does not answer.
        """
        self._known = self._mine(self._cluster.poll(self._prefix))
        return self._known

    def _mine(self, found: Iterable[TaskStatus]) -> list[TaskStatus]:
        mine = [task for task in found if task.name.startswith(self._prefix)]
        return self._completing.without_gone(mine)


def slow_down(tasks: Iterable[TaskStatus]) -> float:
    """Return the factor on the time between whole looks, given all living jobs of this user.

    With more runs each supervisor looks less often, so that all together never ask the scheduler
    or the file system more often than `RUNS_AT_FULL_PACE` of them would.
    """
    names = (task.name for task in tasks if task.state is not State.ENDED)
    runs = {run for run in map(jobs.supervised_run, names) if run is not None}
    return max(1.0, len(runs) / RUNS_AT_FULL_PACE)
