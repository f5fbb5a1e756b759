"""The guard's loop: look at the training's job, and do the next thing that is due.

All state is in files, so that a guard can be killed at any instruction, and the next one goes on.
Of two that run at once, the one with the lower epoch leaves. Four steps in this order keep two
copies of a training from running at once: an attempt is decided when the job of the one before is
gone; its job is submitted held; the job's id is written down, once; that job alone is released.
"""

from collections.abc import Callable

from coordinate_eval._clock import growing
from coordinate_eval._format import brief
from coordinate_eval.clusters.protocol import State
from coordinate_eval.coordinator.supervisor.polls import MAX_BACKOFF_SECONDS, MAX_FAULTS
from coordinate_eval.coordinator.training.guarding import beginnings, endings, living
from coordinate_eval.coordinator.training.guarding.attempts import Attempt, Ended, JobOf, Over
from coordinate_eval.coordinator.training.guarding.hands import Hands, Superseded
from coordinate_eval.errors import ClusterError, ClusterSilent, RecordError


class Guard:
    """The guard of one training, to its end.

    Args:
        hands: with which it works.
    """

    def __init__(self, hands: Hands) -> None:
        self._hands = hands
        self._faults = self._silences = 0

    def run(self, leaves: Callable[[], bool] = lambda: False) -> Over | None:
        """Guard until the training is over. Return how; None if a successor goes on.

        Raises:
            CoordinateError, OSError: it cannot go on, or its folder was removed.
        """
        poll = self._hands.guarded.settings.supervisor.poll_seconds
        try:
            while True:
                due = self.step()
                if over := self._hands.over():
                    return over
                try:
                    if leaves():
                        return None
                except ClusterError as error:
                    self._hands.say(f"no next guard yet: {brief(error)}")
                if not due:
                    failures = self._faults + self._silences
                    self._hands.clock.sleep(growing(poll, failures, max(poll, MAX_BACKOFF_SECONDS)))
        except Superseded:
            return None

    def step(self) -> bool:
        """Do what is due now. Return whether more is due at once.

        Raises:
            Superseded: a later guard has taken over.
        """
        try:
            due = self._do_next()
        except (ClusterError, OSError, RecordError) as error:
            # Wait for a silent scheduler for ever, but not for errors that may not pass.
            silent = isinstance(error, ClusterSilent)
            self._faults, self._silences = self._faults + (not silent), self._silences + silent
            if self._faults > MAX_FAULTS or not self._hands.dir.guarded.exists():
                raise
            self._hands.say(brief(error))
            return False
        self._faults = self._silences = 0
        return due

    def _do_next(self) -> bool:
        hands, folder = self._hands, self._hands.dir
        hands.check_epoch()
        if hands.over() is not None:
            return False
        folder.alive.touch()
        number = folder.latest()
        attempt = folder.read(number, Attempt)
        jobs = hands.scripts.jobs(hands.guarded.mark)
        if attempt is None or number < hands.guarded.first:
            return beginnings.start_first(hands)
        job, ended = folder.read(number, JobOf), folder.read(number, Ended)
        beginnings.cancel_strays(hands, jobs, attempt, job)
        if ended is not None:
            return endings.follow(hands, attempt, ended)
        if job is None:
            return beginnings.submit(hands, attempt, jobs)
        shown = next((each for each in jobs if each.job_id == job.job_id), None)
        if shown is None or shown.state is State.ENDED:
            return endings.end(hands, attempt, job, shown)
        return living.look_after(hands, attempt, shown)
