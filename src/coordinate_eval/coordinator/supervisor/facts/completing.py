"""Tasks that the scheduler cannot bring to an end: after a while they count as ended."""

import time
from collections.abc import Callable, Mapping, Sequence

from coordinate_eval.clusters.protocol import State, TaskStatus

GONE_SECONDS = 180.0
"""A task that has been completing for so long is gone: its processes hang, or its epilog does."""


class Completing:
    """Times how long tasks are completing, by this process's own clock.

    After a hang the kernel may not end a process for hours, and Slurm waits for it. If such a
    process answers after all, nothing is lost or counted twice: see `claims.py`. A new supervisor
    begins at zero.

    Args:
        clock: seconds from any moment on.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._since: Mapping[tuple[str, int], float] = {}

    def without_gone(self, tasks: Sequence[TaskStatus]) -> list[TaskStatus]:
        """Return the tasks of a poll, in which those that are gone have ended."""
        now = self._clock()
        keys = [(task.job_id, task.index) for task in tasks if task.completing]
        self._since = {key: self._since.get(key, now) for key in keys}
        gone = {key for key, since in self._since.items() if now - since >= GONE_SECONDS}
        return [
            task.model_copy(update={"state": State.ENDED})
            if (task.job_id, task.index) in gone
            else task
            for task in tasks
        ]
