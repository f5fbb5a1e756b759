"""Handing a run over: a supervisor submits the next one before its own time is up."""

import time
from collections.abc import Callable

from coordinate_eval import _files
from coordinate_eval.cluster import State, TaskStatus
from coordinate_eval.coordinator.run import jobs
from coordinate_eval.coordinator.run.paths import RunDir
from coordinate_eval.coordinator.run.records import Run, Submitted
from coordinate_eval.coordinator.supervisor.decisions.values import Finish
from coordinate_eval.coordinator.supervisor.submitting import FIRST_PAUSE_SECONDS, Submitter
from coordinate_eval.errors import ClusterError, SettingsRefused

HANDOVER_SECONDS = 1800.0
"""Time before its own time limit at which a supervisor submits its successor, at most.

It is a quarter of a short limit. If the controller is silent for as long, the run is left alone.
"""


class Handover:
    """The end of one supervisor's time, and the job of the next.

    Args:
        run_dir: the run.
        submitter: of this supervisor.
        minutes: time limit of this supervisor's job.
        tell: called with what happens, in words for people.
    """

    def __init__(
        self, run_dir: RunDir, submitter: Submitter, minutes: float, tell: Callable[[str], None]
    ) -> None:
        self._dir, self._submitter, self._tell = run_dir, submitter, tell
        self._when = time.time() + minutes * 60 - min(HANDOVER_SECONDS, minutes * 15)

    def ask(self) -> None:
        """Make it due now. A signal handler may call this."""
        self._when = 0.0

    @property
    def asked(self) -> bool:
        """Return whether this supervisor was asked to leave, and has not tried since."""
        return self._when == 0.0

    @property
    def due(self) -> bool:
        """Return whether it is time to submit the next supervisor."""
        return time.time() > self._when

    def submit(self, run: Run, tasks: list[TaskStatus], epoch: int) -> Finish | bool:
        """Submit the supervisor of this epoch, which takes over when it starts.

        Return False where the scheduler takes none now: this one goes on, and tries again. Where it
        takes none of these settings and this one has to leave, the run ends.
        """
        job = jobs.supervisor_job(run, self._dir, epoch)
        alive = [t for t in tasks if t.state is not State.ENDED]  # one that died took nothing over
        try:
            job_id = self._submitter.find_or_submit(job, alive)
        except ClusterError as error:
            if isinstance(error, SettingsRefused) and self.asked:
                return Finish(f"the scheduler refused {job.name}: {str(error).splitlines()[0]}")
            self._tell(f"no next supervisor yet: {error}")
            self._when = time.time() + FIRST_PAUSE_SECONDS
            return False
        submitted = Submitted(job=job, job_id=job_id, time=time.time())
        _files.write_record(self._dir.job(job.name), submitted)
        return True
