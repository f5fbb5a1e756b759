"""How long jobs may be that are submitted now: the scheduler's limits change during a run."""

import contextlib
import time
from collections.abc import Callable

from coordinate_eval.clusters.protocol import Cluster, Job, JobLimits
from coordinate_eval.coordinator.run import jobs
from coordinate_eval.errors import ClusterError, UserError

LIMITS_SECONDS = 300.0
"""Time for which an answer counts. A maintenance is announced long before it begins."""

NO_ANSWER_SECONDS = 60.0
"""Time after a question without an answer before the next one."""


class CurrentLimits:
    """The limits on jobs, which are asked for when a job is submitted and the last ones are old.

    A run that submits nothing asks nothing. While the scheduler does not tell, the last limits
    that it told count.

    Args:
        cluster: the scheduler.
        clock: seconds from any moment on.
    """

    def __init__(
        self, cluster: Cluster, clock: Callable[[], float] = lambda: time.monotonic()
    ) -> None:
        self._cluster, self._clock = cluster, clock
        self._limits = JobLimits()
        self._due = float("-inf")

    def within(self, job: Job) -> Job:
        """Return a job that asks for no more time than it may have now.

        It was made within the limits that the run knew, and stays so where none are told.
        """
        now = self._clock()
        if now >= self._due:
            self._due = now + NO_ANSWER_SECONDS
            # What is wrong with the settings is said by the submission itself.
            with contextlib.suppress(ClusterError, UserError):
                self._limits = self._cluster.limits()
                self._due = now + LIMITS_SECONDS
        return jobs.within(job, self._limits, time.time())
