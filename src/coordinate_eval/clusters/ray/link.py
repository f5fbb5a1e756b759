"""The child process that talks to Ray: started when it is needed, and again when it has ended."""

import contextlib
import json
import os
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from typing import IO, Any

from coordinate_eval import errors
from coordinate_eval._format import brief
from coordinate_eval._no_telemetry import NO_TELEMETRY
from coordinate_eval.errors import ClusterSilent, CoordinateError

ANSWER_SECONDS = 300.0
"""Time for one answer: from a busy file system, the import of Ray takes a minute."""

END_SECONDS = 10.0
"""Time for the process to leave Ray when it is no longer needed."""


class Link:
    """Calls of `driver.Driver` in a child process.

    Args:
        first: the arguments with which a driver is made.
        command: the argv of the child.
        seconds: time for one answer.
    """

    def __init__(
        self,
        first: Mapping[str, Any],
        command: tuple[str, ...] = (
            sys.executable, "-P", "-m", "coordinate_eval.clusters.ray.driver",
        ),
        seconds: float = ANSWER_SECONDS,
    ) -> None:  # fmt: skip
        self._first, self._command, self._seconds = first, command, seconds
        self._child: subprocess.Popen[bytes] | None = None
        self._notices: IO[bytes] | None = None

    def call(self, name: str, **arguments: Any) -> Any:  # noqa: ANN401 - any JSON value
        """Return what the driver's method of this name returns.

        Raises:
            ClusterSilent: no answer. The next call starts another driver.
            CoordinateError: the driver's own error.
        """
        if self._child is None:
            self._start()
            self._ask("connect", self._first)
        return self._ask(name, arguments)

    def close(self) -> None:
        """End the child."""
        if self._child is None or self._notices is None:
            return
        child, self._child = self._child, None
        assert child.stdin is not None and child.stdout is not None
        with contextlib.suppress(OSError):  # it has ended, and did not read all
            child.stdin.close()
        try:
            child.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
        child.stdout.close()
        self._notices.close()

    def _start(self) -> None:
        self._notices = tempfile.TemporaryFile()  # noqa: SIM115 - `close` closes it
        self._child = subprocess.Popen(
            self._command,
            env=os.environ | NO_TELEMETRY,
            cwd="/",
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._notices,
            start_new_session=True,  # Ctrl-C is for the one who supervises
        )

    def _ask(self, name: str, arguments: Mapping[str, Any]) -> Any:  # noqa: ANN401
        try:
            error, value = json.loads(self._answer(json.dumps([name, arguments])))
        except (OSError, ValueError) as problem:
            said = self._last_notice()
            self._end()
            raise ClusterSilent(f"Ray does not answer: {said or problem}") from problem
        if error is None:
            return value
        kind = getattr(errors, error)
        if kind is ClusterSilent or name == "connect":
            self._end()
        assert issubclass(kind, CoordinateError)
        raise kind(value)

    def _answer(self, line: str) -> bytes:
        """Send a line and return the answer.

        Raises:
            OSError: the child has ended, or does not answer in time.
        """
        assert self._child is not None
        assert self._child.stdin is not None and self._child.stdout is not None
        self._child.stdin.write(line.encode() + b"\n")
        self._child.stdin.flush()
        found, end = b"", time.monotonic() + self._seconds
        while not found.endswith(b"\n"):
            ready, _, _ = select.select(
                [self._child.stdout], [], [], max(0.0, end - time.monotonic())
            )
            if not ready:
                raise TimeoutError(f"no answer in {self._seconds:g} s")
            some = os.read(self._child.stdout.fileno(), 1 << 20)
            if not some:
                raise BrokenPipeError("its process has ended")
            found += some
        return found

    def _end(self) -> None:
        """End a child that is of no more use, at once."""
        assert self._child is not None
        self._child.kill()
        self.close()

    def _last_notice(self) -> str:
        """Return the last line that the child wrote to its standard error."""
        assert self._notices is not None
        self._notices.seek(max(0, self._notices.seek(0, os.SEEK_END) - 4096))
        lines = self._notices.read().decode(errors="replace").strip().splitlines()
        return brief(lines[-1]) if lines else ""
