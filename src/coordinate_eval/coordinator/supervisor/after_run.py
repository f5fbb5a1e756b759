"""The user's own command after a run: `after_run` of the settings, such as one that logs scores."""

import contextlib
import os
import signal
import subprocess
import time
from typing import Self

from coordinate_eval.coordinator.run.paths import RunDir
from coordinate_eval.coordinator.run.records import Run

LIMIT_SECONDS = 600.0
"""Time that the command gets before it is killed, with all that it has started."""


class AfterRun:
    """The command of `after_run`, if there is one, as a context manager.

    It begins as soon as the results are there, while the run's last jobs leave. Its last argument
    is the run directory, and its output goes to `logs/after_run.log`. A supervisor that is killed
    meanwhile, and started again, calls it once more.

    Args:
        run_dir: the run.
        run: its record.
        limit_seconds: time that the command gets, from its beginning.
    """

    def __init__(self, run_dir: RunDir, run: Run, limit_seconds: float = LIMIT_SECONDS) -> None:
        self._argv = run.settings.after_run and [*run.settings.after_run, str(run_dir.root)]
        self._log = run_dir.logs / "after_run.log"
        self._limit = limit_seconds
        self._began = 0.0
        self._child: subprocess.Popen[bytes] | None = None
        self._problem = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        """Kill the command if nobody has waited for it, as after Ctrl-C."""
        if self._child is not None:
            _kill(self._child)

    def begin(self) -> None:
        """Call the command."""
        if not self._argv:
            return
        self._began = time.monotonic()
        try:
            self._log.parent.mkdir(exist_ok=True)
            with self._log.open("ab") as output:
                self._child = subprocess.Popen(
                    self._argv,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
        except OSError as error:
            self._problem = f"after_run cannot be called: {self._argv[0]!r}: {error.strerror}"

    def wait(self) -> str:
        """Wait until the command ends, if it has begun.

        Returns:
            What went wrong; an empty string if nothing did. The run itself has ended all the same.
        """
        if self._child is None:
            return self._problem
        try:
            status = self._child.wait(max(0.0, self._began + self._limit - time.monotonic()))
        except subprocess.TimeoutExpired:
            _kill(self._child)
            said = f"did not end within {self._limit:g} s and was killed"
        else:
            said = f"ended with exit status {status}" if status else ""
        self._child = None
        return f"after_run {said}; see {self._log}" if said else ""


def _kill(child: subprocess.Popen[bytes]) -> None:
    """Kill a process that leads a group of its own, with the group."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()
