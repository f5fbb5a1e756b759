"""Handing over: a supervisor, or a guard, submits the next one before its own time is up.

The old one goes on until the next one has taken over, which may have to wait in the queue, or until
the old one has to leave.
"""

from collections.abc import Callable
from pathlib import Path

from coordinate_eval._clock import Clock, growing
from coordinate_eval._format import duration
from coordinate_eval.clusters.protocol import End, State, TaskStatus
from coordinate_eval.coordinator.run import supervision
from coordinate_eval.coordinator.supervisor.submitting import (
    FIRST_PAUSE_SECONDS,
    LONGEST_PAUSE_SECONDS,
)
from coordinate_eval.errors import ClusterError, NotFromHere, SettingsRefused

HANDOVER_SECONDS = 1800.0
"""Time before its own time limit at which a supervisor submits its successor, at most.

A quarter of a short limit. If the controller is silent for as long, the run has no supervisor.
"""

LEAVE_SECONDS = 900.0
"""Time before its own time limit at which a supervisor leaves, at most, if there is a successor.

An eighth of a short limit. To end a run takes time: for its last jobs, and for `after_run`.
"""

LOOK_SECONDS = 60.0
"""Time between two looks at whether the next supervisor is still in the queue.

A successor that died is submitted again after this time, which doubles with each death.
"""


class Handover:
    """The end of one supervisor's time, and the job of the next.

    Args:
        prefix: with which the names of all jobs of the run, or of the guard, begin.
        submit: submits the supervisor of an epoch, unless it is among these tasks; returns its id.
        cancel: cancels jobs.
        logs: folder with the logs of supervisors.
        minutes: time limit of this supervisor's job.
        leave_seconds: time before the end of `minutes` at which it leaves, at most.
    """

    def __init__(
        self,
        prefix: str,
        submit: Callable[[int, list[TaskStatus]], str],
        cancel: Callable[[list[str]], None],
        logs: Path,
        minutes: float,
        tell: Callable[[str], None],
        clock: Clock,
        leave_seconds: float = LEAVE_SECONDS,
    ) -> None:
        self._prefix, self._submit, self._cancel = prefix, submit, cancel
        self._logs, self._tell, self._clock = logs, tell, clock
        self._end = clock.now() + minutes * 60
        self._when = self._end - min(HANDOVER_SECONDS, minutes * 15)
        self._leaves = self._end - min(leave_seconds, minutes * 7.5)
        self._was_asked = False
        self._tries, self._again = 0, 0.0
        self._held = ""

    def ask(self) -> None:
        """Have this supervisor leave as soon as it can. A signal handler may call this."""
        self._was_asked, self._when = True, 0.0

    @property
    def asked(self) -> bool:
        """Return whether this supervisor was asked to leave, and has not tried to since."""
        return self._when == 0.0

    @property
    def due(self) -> bool:
        """Return whether it is time to submit the next supervisor, or to look after it."""
        return self._clock.now() > self._when

    @property
    def has_to_leave(self) -> bool:
        """Return whether this supervisor was asked to leave, or its time is up."""
        return self._was_asked or self._clock.now() > self._leaves

    def submit(self, tasks: list[TaskStatus], epoch: int) -> bool:
        """Submit the supervisor of this epoch, which takes over when it starts, if none is there.

        Return False where the scheduler takes no job now: this supervisor goes on, and tries again.

        If a person holds the successor, keep supervising. If the successor is held because its
        launch failed, cancel it, and count it as dead.

        Raises:
            SettingsRefused: the scheduler refuses these settings, and this supervisor has to leave.
        """
        alive = [t for t in tasks if t.state is not State.ENDED]  # one that died took nothing over
        if unlaunched := supervision.unlaunched_supervisors(self._prefix, alive):
            self._tell(f"cancelling {', '.join(unlaunched)}: the next supervisor, not launched")
            self._cancel(unlaunched)
            alive = [task for task in alive if task.job_id not in unlaunched]
        waiting = [
            task
            for task in supervision.supervisors(self._prefix, alive)
            if task.state is State.PENDING
        ]
        if waiting and waiting[0].held:
            words = supervision.held_in_words(waiting[0])
            if words != self._held:
                self._held = words
                self._tell(f"the next supervisor does not start: {words}")
            self._when = self._clock.now() + LOOK_SECONDS
            return False
        # This process may have submitted one before it was killed and started again.
        if not waiting:
            name = f"{self._prefix}super{epoch}"
            if self._tries and all(task.name != name for task in alive):
                pause = 0.0 if self.has_to_leave else max(0.0, self._again - self._clock.now())
                self._tell(self._how_it_died(name, tasks, pause))
                if pause:
                    self._when = min(self._again, self._leaves)
                    return False
            try:
                job_id = self._submit(epoch, alive)
            except NotFromHere:
                raise
            except ClusterError as error:
                if isinstance(error, SettingsRefused) and self._was_asked:
                    raise
                self._tell(f"no next supervisor yet: {error}")
                self._when = self._clock.now() + FIRST_PAUSE_SECONDS
                return False
            if all(task.job_id != job_id for task in alive):
                pause = growing(LOOK_SECONDS, self._tries, LONGEST_PAUSE_SECONDS)
                self._tries, self._again = self._tries + 1, self._clock.now() + pause
        self._when = min(self._clock.now() + LOOK_SECONDS, self._leaves)
        return True

    def _how_it_died(self, name: str, tasks: list[TaskStatus], pause: float) -> str:
        """Return in words that the next supervisor has died, and when it is submitted again."""
        ends = [task.end for task in tasks if task.name == name and task.end is not End.UNKNOWN]
        how = f" ({ends[-1]})" if ends else ""
        times = f", {self._tries} times in a row" if self._tries > 1 else ""
        again = f"in {duration(pause)}" if pause else "now"
        return (
            f"the next supervisor, {name}, ended{how} before it took over{times}; its log in "
            f"{self._logs} may say why. It is submitted again {again}"
        )
