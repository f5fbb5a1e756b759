"""How often a supervisor polls, beside those of the user's other runs."""

from collections.abc import Iterable

from coordinate_eval.cluster import State, TaskStatus
from coordinate_eval.coordinator.run import jobs

RUNS_AT_FULL_PACE = 10
"""Runs of one user at a time whose supervisors poll every `poll_seconds` each."""


def slow_down(tasks: Iterable[TaskStatus]) -> float:
    """Return the factor on the time between polls, given all living jobs of this user.

    With more runs each supervisor polls less often, so that all together never ask the scheduler
    more often than `RUNS_AT_FULL_PACE` of them would.
    """
    names = (task.name for task in tasks if task.state is not State.ENDED)
    runs = {run for run in map(jobs.supervised_run, names) if run is not None}
    return max(1.0, len(runs) / RUNS_AT_FULL_PACE)
