"""Calls after a run: the user's own command, `after_run`, and the one that tells of alarms."""

import contextlib
import os
import signal
import subprocess
import sys
import sysconfig
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Self

from coordinate_eval import _files, _owner
from coordinate_eval._format import brief
from coordinate_eval.coordinator.run import jobs
from coordinate_eval.coordinator.run.paths import RunDir
from coordinate_eval.coordinator.run.records import HookEnd, Run
from coordinate_eval.errors import ForeignError

LIMIT_SECONDS = 600.0
"""Time that a command gets before it is killed, with all that it has started."""

TELL_ALARMS = "_tell_alarms"
"""The command of this program that tells of the alarms of a run's training."""

_LAST_BYTES = 4096
"""Bytes at the end of the command's output in which its last line is looked for."""


class AfterRun:
    """The commands after a run, if there are any, as a context manager.

    They begin as soon as the results are there, while the run's last jobs leave. A supervisor that
    is killed meanwhile, and started again, calls them once more.

    Args:
        limit_seconds: time that the commands get, from their beginning.
    """

    def __init__(self, run_dir: RunDir, run: Run, limit_seconds: float = LIMIT_SECONDS) -> None:
        called = {"after_run": run.settings.after_run}
        if run.settings.on_alarm or run.settings.alarm_webhook_env:
            called["on_alarm"] = [*jobs.program(sys.executable), TELL_ALARMS]
        self._hooks = [
            _Hook(run_dir, hook, [*argv, str(run_dir.root)], limit_seconds)
            for hook, argv in called.items()
            if argv
        ]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        """Kill the commands if nobody has waited for them, as after Ctrl-C."""
        for hook in self._hooks:
            hook.kill()

    def begin(self) -> None:
        """Call the commands."""
        for hook in self._hooks:
            hook.begin()

    def wait(self) -> str:
        """Wait until the commands end, if they have begun, and keep how they ended.

        Returns:
            What went wrong; an empty string if nothing did. The run itself has ended all the same.
        """
        return "; ".join(filter(None, [hook.wait() for hook in self._hooks]))


class _Hook:
    """A command whose last argument is the run directory. How it ended is kept there.

    Its output goes to `logs/<name>.log`.
    """

    def __init__(self, run_dir: RunDir, name: str, argv: list[str], limit_seconds: float) -> None:
        self._name, self._argv = name, argv
        self._end, self._log = run_dir.hook(name), run_dir.logs / f"{name}.log"
        self._limit = limit_seconds
        self._began = 0.0
        self._child: subprocess.Popen[bytes] | None = None
        self._problem = ""

    def kill(self) -> None:
        """Kill the command if it goes on."""
        if self._child is not None:
            _kill(self._child)

    def begin(self) -> None:
        """Call the command."""
        self._began = time.monotonic()
        try:
            self._end.unlink(missing_ok=True)  # of the time before
            self._log.parent.mkdir(exist_ok=True)
            with os.fdopen(_owner.open_log(self._log), "ab") as output:
                self._child = subprocess.Popen(
                    self._argv,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                    env=with_our_command(os.environ),
                )
        except (OSError, ForeignError) as error:
            why = getattr(error, "strerror", None) or str(error)
            self._problem = f"cannot be called: {self._argv[0]!r}: {why}"

    def wait(self) -> str:
        """Wait until the command ends, if it has begun, and return what went wrong."""
        if not self._began:
            return ""
        status: int | None = None
        if self._child is not None:
            try:
                left = self._began + self._limit - time.monotonic()
                status = self._child.wait(max(0.0, left))
                self._problem = _in_words(status)
            except subprocess.TimeoutExpired:
                _kill(self._child)
                self._problem = f"did not end within {self._limit:g} s and was killed"
        last = self._last_line() if self._problem and self._child else ""
        self._child = None
        end = HookEnd(
            hook=self._name,
            problem=self._problem,
            exit_status=status,
            last_line=last,
            log=str(self._log),
        )
        with contextlib.suppress(OSError):  # the supervisor's log has it, too
            _files.write_record(self._end, end)
        return end.words

    def _last_line(self) -> str:
        """Return the last line of the command's output that is not empty."""
        with contextlib.suppress(OSError, ForeignError), _files.open_to_read(self._log) as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - _LAST_BYTES))
            lines = file.read(_LAST_BYTES).decode(errors="replace").split("\n")
            return next((brief(line) for line in reversed(lines) if line.strip()), "")
        return ""


def with_our_command(environ: Mapping[str, str]) -> dict[str, str]:
    """Return an environment in which `coordinate-eval` is found, whoever started this process.

    The folders of this installation come last: `python3` is still what it is for the user.
    """
    places = [Path(sys.executable).parent, Path(sysconfig.get_path("scripts"))]
    with contextlib.suppress(KeyError):  # pip install --user
        places.append(Path(sysconfig.get_path("scripts", f"{os.name}_user")))
    found = [str(place) for place in places if (place / "coordinate-eval").exists()]
    path = environ.get("PATH", os.defpath).split(os.pathsep)
    return {**environ, "PATH": os.pathsep.join(dict.fromkeys([*path, *found]))}


def _in_words(status: int) -> str:
    if status < 0:
        return f"was ended by {_signal_name(-status)}"
    return f"ended with exit status {status}" if status else ""


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _kill(child: subprocess.Popen[bytes]) -> None:
    """Kill a process that leads a group of its own, with the group."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()
