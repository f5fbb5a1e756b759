"""Processes of the harness: one that builds prompts, watched, and one that scores, confined."""

import contextlib
import itertools
import math
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import BinaryIO, Self

from coordinate_eval.errors import CoordinateError
from coordinate_eval.evaluators.confined.messages import (
    MOST_LONG_REPLY_BYTES,
    MOST_REPLY_BYTES,
    Command,
    Reply,
    Setup,
    Work,
    read_reply,
)
from coordinate_eval.evaluators.pulse import NOTE_BYTES, PulseWatch
from coordinate_eval.evaluators.sandbox.confinement import Level, View, wrapper
from coordinate_eval.evaluators.sandbox.memory import OverMemory, Watch, members

MOST_PROCESSES = 128
"""Most processes at once. What many more have in memory takes the kernel minutes to give back."""

_LONG = (Work.QUESTIONS, Work.BUILD, Work.VERDICTS, Work.SAMPLES)
"""Work with long replies."""

LOOK_SECONDS = 0.2
"""Time between two looks at what the processes use: a look takes some milliseconds."""

_PIECE_BYTES = 1 << 20
_ANSWERING = "coordinate_eval.evaluators.confined.answering"


class ProcessEnded(CoordinateError):
    """The process has ended before it replied, or was ended for what it used."""


class _Process:
    """One process of `answering.py`, and all that it starts."""

    def __init__(
        self,
        setup: Setup,
        *,
        wrapped_in: Sequence[str] = (),
        environment: Mapping[str, str],
        folder: str | None = None,
        log: BinaryIO | None = None,
        note: int | None = None,
        look: Callable[[int], None],
    ) -> None:
        """Start the process. It loads the harness while the caller goes on.

        Args:
            setup: what it is told first.
            wrapped_in: arguments to put before its own.
            environment: its variables.
            folder: its working directory; None for that of this process.
            log: where its output goes; None for where the errors of this process go.
            note: descriptor of the file in which it notes calls of native code.
            look: is called with its number five times a second while a reply is awaited. It raises
                `ProcessEnded` or `EndlessCall` if what the processes do is more than allowed.
        """
        self._numbers = itertools.count(1)
        self._look = look
        self._replies, replies = os.pipe()
        descriptors = [replies] if note is None else [replies, note]
        answering = [sys.executable, "-P", "-m", _ANSWERING, *map(str, descriptors)]
        try:
            self._process = subprocess.Popen(
                [*wrapped_in, *answering],
                stdin=subprocess.PIPE,
                pass_fds=descriptors,
                env=dict(environment),
                cwd=folder,
                stderr=log,
                start_new_session=True,
            )
        except BaseException:
            os.close(self._replies)
            raise
        finally:
            os.close(replies)
        self._write(setup.line())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def ended(self) -> bool:
        """Return whether the process has ended."""
        return self._process.poll() is not None

    def ask(self, command: Command) -> Reply:
        """Return the reply to a command, which is given a number.

        A process may say anything: of CPU seconds no more count than it took to reply.

        Raises:
            ProcessEnded: there will be no reply.
            EndlessCall: a call of native code was ended, and the process with it.
            RecordError: the reply is not one.
        """
        numbered = command.model_copy(update={"number": next(self._numbers)})
        long = command.work in _LONG
        most = MOST_LONG_REPLY_BYTES if long else MOST_REPLY_BYTES
        began = time.monotonic()
        try:
            self._write(numbered.line())
            reply = read_reply(self._read_line(most), numbered)
        except BaseException:
            self.close()
            raise
        cpu_seconds = min(reply.cpu_seconds, time.monotonic() - began)
        return reply.model_copy(update={"cpu_seconds": cpu_seconds})

    def kill(self) -> None:
        """End the process from another thread than the one that asks, which notices it."""
        self._process.kill()

    def close(self) -> None:
        """End the process and all that it has started."""
        if self._replies < 0:
            return
        # The first of a namespace is among them: the kernel ends all others with it.
        for member in itertools.islice(members(self._process.pid), 1, MOST_PROCESSES + 1):
            with contextlib.suppress(ProcessLookupError):
                os.kill(member, signal.SIGKILL)
        self._process.kill()
        self._process.wait()
        assert self._process.stdin is not None  # a pipe was asked for
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        os.close(self._replies)
        self._replies = -1

    def _write(self, line: str) -> None:
        assert self._process.stdin is not None  # a pipe was asked for
        with contextlib.suppress(BrokenPipeError):  # it has ended, which reading will show
            self._process.stdin.write(line.encode())
            self._process.stdin.flush()

    def _read_line(self, most: int) -> bytes:
        """Wait for a line of at most `most` bytes, as long as the process keeps to its limits."""
        poll = select.poll()
        poll.register(self._replies, select.POLLIN)
        line = bytearray()  # what says it may say it in any number of pieces
        next_look = time.monotonic()
        while not line.endswith(b"\n"):
            if time.monotonic() >= next_look:
                self._look(self._process.pid)
                next_look = time.monotonic() + LOOK_SECONDS
            if poll.poll(1000 * LOOK_SECONDS):
                piece = os.read(self._replies, _PIECE_BYTES)
                line += piece
                if not piece:
                    raise ProcessEnded(self._how_it_ended())
                if len(line) > most:
                    raise ProcessEnded(f"its process said more than {most >> 20} MiB")
            elif self.ended:
                raise ProcessEnded(self._how_it_ended())
        return bytes(line)

    def _how_it_ended(self) -> str:
        # Its descriptor was closed: it has ended, or is about to, or does not mean to reply.
        with contextlib.suppress(subprocess.TimeoutExpired):
            status = self._process.wait(1)
            return f"its process ended without a reply (exit status {status})"
        return "its process closed its channel without a reply"


class BuildingProcess(_Process):
    """A process that builds prompts, with the environment and the rights of this one.

    It may download data. Calls of the checkpoint's tokenizer that do not end are ended with it.
    """

    def __init__(self, setup: Setup) -> None:
        """Start the process."""
        with open(os.memfd_create("calls"), "r+b", buffering=0) as note:
            note.truncate(NOTE_BYTES)
            look = PulseWatch(note.fileno()).look
            super().__init__(setup, environment=os.environ, note=note.fileno(), look=look)


class ScoringProcess(_Process):
    """A process that scores, confined at a `level` to a `view`; not at all at `limits`."""

    def __init__(
        self,
        setup: Setup,
        level: Level,
        view: View,
        environment: Mapping[str, str],
        most_seconds: float,
        log: BinaryIO | None = None,
    ) -> None:
        """Start the process, which gets `most_seconds` for each reply.

        Raises:
            OSError, ValueError: the confinement cannot be set up.
        """
        super().__init__(
            setup,
            wrapped_in=wrapper(level, view),
            environment=environment,
            folder=(setup.folder or None) if level is Level.LIMITS else "/",
            log=log,
            look=self._check_use,
        )
        self._watch = Watch(self._process.pid, setup.memory_bytes)
        self._most_seconds, self._end = most_seconds, math.inf

    def ask(self, command: Command) -> Reply:
        """Return the reply to a command; raises as that of any process does."""
        self._end = time.monotonic() + self._most_seconds
        return super().ask(command)

    def close(self) -> None:
        """End the process and all that it has started."""
        super().close()
        self._watch.close()

    def _check_use(self, process: int) -> None:
        """Check the time, and the number and the memory of all processes together."""
        if time.monotonic() > self._end:
            raise ProcessEnded(f"scoring did not end within {self._most_seconds / 60:g} minutes")
        below = itertools.islice(members(process), 1, MOST_PROCESSES + 2)
        if len(list(below)) > MOST_PROCESSES:
            raise ProcessEnded(f"scoring had more than {MOST_PROCESSES} processes")
        try:
            self._watch.look()
        except OverMemory:
            gib = self._watch.limit_bytes / (1 << 30)
            raise ProcessEnded(
                f"scoring used more than {gib:.1f} GiB of memory; [harness] memory_gib allows more"
            ) from None
