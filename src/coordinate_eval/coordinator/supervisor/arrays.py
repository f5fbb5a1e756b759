"""One supervisor's memory of the arrays of pullers that it has submitted."""

from collections import Counter

from coordinate_eval.clusters.protocol import State
from coordinate_eval.coordinator.run.claiming.pullers import Pullers, is_pullers
from coordinate_eval.coordinator.run.claiming.work import work_left
from coordinate_eval.coordinator.run.paths import RunDir
from coordinate_eval.coordinator.run.records import Run
from coordinate_eval.coordinator.supervisor.decisions.values import Facts


class Arrays:
    """Counts arrays that did nothing."""

    def __init__(self, run_dir: RunDir) -> None:
        self._dir = run_dir
        self._left: dict[Pullers, tuple[int, int]] = {}
        self.idle: Counter[Pullers] = Counter()
        """Arrays in a row that ended with nothing done though there was work, by kind."""

    def count(self, run: Run, kind: Pullers, facts: Facts) -> None:
        """Note that an array is submitted now.

        The one before it counts if none of it is alive, and if it had work.
        """
        alive = [task.name for task in facts.tasks if task.state is not State.ENDED]
        if any(is_pullers(run, name, kind) for name in alive) or not facts.waiting_for(run, kind):
            return
        left = work_left(self._dir, run, kind)
        self.idle[kind] = self.idle[kind] + 1 if left == self._left.get(kind) else 0
        self._left[kind] = left
