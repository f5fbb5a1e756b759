"""The user's own command after a run: `after_run` of the settings, such as one that logs scores."""

import contextlib
import os
import signal
import subprocess

from coordinate_eval.coordinator.run.paths import RunDir
from coordinate_eval.coordinator.run.records import Run

LIMIT_SECONDS = 600.0
"""Time that the command gets before it is killed, with all that it has started."""


def call_after_run(run_dir: RunDir, run: Run, limit_seconds: float = LIMIT_SECONDS) -> str:
    """Call the command of `after_run`, if there is one, and wait until it ends.

    Its last argument is the run directory, and its output goes to `logs/after_run.log`. A
    supervisor that is killed meanwhile, and started again, calls it once more.

    Returns:
        What went wrong; an empty string if nothing did. The run itself has ended all the same.
    """
    command = [*run.settings.after_run, str(run_dir.root)]
    if len(command) == 1:
        return ""
    log = run_dir.logs / "after_run.log"
    try:
        log.parent.mkdir(exist_ok=True)
        with log.open("ab") as output:
            child = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
    except OSError as error:
        return f"after_run cannot be called: {command[0]!r}: {error.strerror}"
    try:
        status = child.wait(limit_seconds)
    except subprocess.TimeoutExpired:
        _kill(child)
        return f"after_run did not end within {limit_seconds:g} s and was killed; see {log}"
    except BaseException:  # Ctrl-C
        _kill(child)
        raise
    return f"after_run ended with exit status {status}; see {log}" if status else ""


def _kill(child: subprocess.Popen[bytes]) -> None:
    """Kill a process that leads a group of its own, with the group."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()
