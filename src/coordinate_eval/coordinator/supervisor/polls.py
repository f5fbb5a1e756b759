"""Remember from poll to poll how long tasks have been ending, and which are silent."""

import math
import os
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path

from coordinate_eval import _files
from coordinate_eval._clock import Clock
from coordinate_eval.clusters.protocol import Cluster, End, State, TaskStatus
from coordinate_eval.coordinator.incidents.hangs import answer_seconds
from coordinate_eval.coordinator.planning.plan import Plan
from coordinate_eval.coordinator.run import jobs
from coordinate_eval.coordinator.run.claiming.pullers import kind_of
from coordinate_eval.coordinator.run.claiming.work import request_indexes
from coordinate_eval.coordinator.run.paths import RunDir
from coordinate_eval.coordinator.run.records import Run
from coordinate_eval.coordinator.supervisor.decide_jobs import never_starting
from coordinate_eval.coordinator.supervisor.values import Facts, Quiet

GONE_SECONDS = 180.0
"""A task that has been completing for so long is gone: its processes hang, or its epilog does."""

FULL_PACE_SECONDS = 60.0
"""Time at the full pace after a supervisor's start, when its run may choose nodes and start."""

MAX_BACKOFF_SECONDS = 60.0
"""Longest wait between polls of a scheduler that does not answer."""

MAX_FAULTS = 20
"""Errors in a row, of files or in the scheduler's answers, after which the supervisor gives up."""


class Polls:
    """Asks the scheduler for a run's tasks.

    A task that the scheduler cannot bring to an end counts as ended after a while. After a hang the
    kernel may not end a process for hours, and Slurm waits for it. If such a process answers after
    all, nothing is lost or counted twice: see `claims.py`. A new supervisor begins at zero.

    Args:
        prefix: with which the names of the run's jobs begin.
    """

    def __init__(self, cluster: Cluster, prefix: str, clock: Clock) -> None:
        self._cluster, self._prefix, self._clock = cluster, prefix, clock
        self._began = clock.passed()
        self._completing: Mapping[tuple[str, int], float] = {}
        self.slower = 1.0
        """Factor on the time between two polls, for the user's runs beside this one."""

    def tasks(self) -> list[TaskStatus]:
        """Return the run's tasks."""
        found = self._cluster.poll(jobs.PREFIX)
        now = self._clock.passed()
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


MOST_BETWEEN_SECONDS = 120.0
"""Time from one look to the next that counts, at most. Then this process was stopped itself, or
waited for storage or the scheduler: the signs of other tasks may come late as well."""


class Silence:
    """Times how long jobs give no sign of life, by this process's own clock.

    A sign is any change of a trial's record, which it writes with its responses, or of its
    keeper's while it copies; of other jobs, of the file that they touch. So clocks of nodes do not
    matter. A new supervisor begins at zero.
    """

    def __init__(self, run_dir: RunDir, clock: Clock) -> None:
        self._dir, self._clock = run_dir, clock
        self._looked, self._passed = clock.passed(), 0.0
        self._last: dict[str, tuple[object, float]] = {}
        self._stuck: float | None = None
        self._due: Mapping[str, float] | None = None

    def of(self, run: Run, facts: Facts) -> Facts:
        """Return the facts with the seconds since the last sign of life of each job that runs.

        And with those since nothing that the run waits for starts by itself.
        """
        now = self._clock.passed()
        self._passed += min(MOST_BETWEEN_SECONDS, now - self._looked)
        self._looked = now
        if not never_starting(run, facts):
            self._stuck = None
        elif self._stuck is None:
            self._stuck = self._passed
        stuck = 0.0 if self._stuck is None else self._passed - self._stuck
        silent = {
            trial: self._seconds(trial, (facts.trials.get(trial), facts.stages.get(key)))
            for trial, (key, _) in facts.trials_with_tasks(run).items()
        }
        due = self._due_seconds(run) if silent else {}
        quiet = self._quiet(run, facts)
        return replace(facts, silent=silent, due=due, stuck=stuck, quiet=quiet)

    def begins_again(self, *jobs: str) -> None:
        """Time trials, or jobs of these ids, afresh: they are being ended, which takes a while."""
        for job in jobs:
            self._last.pop(job, None)

    def _quiet(self, run: Run, facts: Facts) -> dict[str, Quiet]:
        """Return the build, metric, judge's and scoring jobs that run."""
        found = {}
        for task in facts.tasks:
            runs = task.state is State.RUNNING and not task.completing
            if runs and task.name in facts.submitted and kind_of(run, task.name) is not None:
                signs = (_last_sign(self._dir.alive(each)) for each in task.ids)
                job_id, sign = facts.id_of(run, task), max(signs)
                found[job_id] = Quiet(task, self._seconds(job_id, sign), begun=sign > 0)
        return found

    def _seconds(self, job: str, sign: object) -> float:
        """Return the seconds since a job's sign was another one."""
        if job not in self._last or self._last[job][0] != sign:
            self._last[job] = sign, self._passed
        return self._passed - self._last[job][1]

    def _due_seconds(self, run: Run) -> Mapping[str, float]:
        """Return the seconds of an answer by dataset. They are computed once."""
        if self._due is None:
            plan = _files.read_record_if_there(self._dir.plan, Plan)
            longest = {
                name: index.longest_output_tokens
                for name, index in request_indexes(self._dir, run).items()
            }
            self._due = answer_seconds(run, plan.floor_seconds if plan else {}, longest)
        return self._due


def _last_sign(path: Path) -> float:
    """Return the time of a file's last change in seconds since the epoch; 0 if it is not there.

    A network file system asks its server when a file is opened. Without that, it may remember the
    time for as long as a site likes.
    """
    try:
        with path.open("rb") as file:
            return os.fstat(file.fileno()).st_mtime
    except FileNotFoundError:
        return 0.0
