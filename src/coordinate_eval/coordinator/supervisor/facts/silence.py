"""One supervisor's memory of the trials' signs of life."""

import time
from collections.abc import Callable, Mapping
from dataclasses import replace

from coordinate_eval import _files
from coordinate_eval.coordinator.planning.plan import Plan
from coordinate_eval.coordinator.run.claiming.outcomes import request_indexes
from coordinate_eval.coordinator.run.paths import RunDir
from coordinate_eval.coordinator.run.records import Run
from coordinate_eval.coordinator.run.troubles.hangs import answer_seconds
from coordinate_eval.coordinator.supervisor.decisions.values import Facts


class Silence:
    """Times how long trials give no sign of life, by this process's own clock.

    A sign is any change of a trial's record, which it writes with its responses, or of its
    keeper's while it copies. So clocks of nodes do not matter. A new supervisor begins at zero.

    Args:
        run_dir: the run.
        clock: seconds from any moment on.
    """

    def __init__(self, run_dir: RunDir, clock: Callable[[], float] = time.monotonic) -> None:
        self._dir, self._clock = run_dir, clock
        self._last: dict[str, tuple[object, float]] = {}
        self._published: float | None = None
        self._due: Mapping[str, float] | None = None

    def of(self, run: Run, facts: Facts) -> Facts:
        """Return the facts with the seconds since the last sign of life of each trial with a task.

        And with those since no shard is unpublished, of a run that is planned.
        """
        now = self._clock()
        if facts.unpublished or not run.planned:
            self._published = None
        elif self._published is None:
            self._published = now
        published = 0.0 if self._published is None else now - self._published
        silent = {}
        for trial, (key, _) in facts.trials_with_tasks(run).items():
            sign = facts.trials.get(trial), facts.stages.get(key)
            if trial not in self._last or self._last[trial][0] != sign:
                self._last[trial] = sign, now
            silent[trial] = now - self._last[trial][1]
        due = self._due_seconds(run) if silent else {}
        return replace(facts, silent=silent, due=due, published=published)

    def begins_again(self, trial: str) -> None:
        """Time a trial afresh: it is being ended, which may take a while."""
        self._last.pop(trial, None)

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
