"""Processes of the harness: one that builds prompts, watched, and one that scores, confined."""

import contextlib
import itertools
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import BinaryIO, Self

from coordinate_eval.errors import CoordinateError
from coordinate_eval.evaluators.confined.messages import (
    MOST_ITEMS_BYTES,
    MOST_LONG_REPLY_BYTES,
    MOST_REPLY_BYTES,
    Command,
    Reply,
    Setup,
    Work,
    read_reply,
)
from coordinate_eval.evaluators.confined.mother import BEGIN, END, MOST_BYTES
from coordinate_eval.evaluators.pulse import NOTE_BYTES, PulseWatch
from coordinate_eval.evaluators.sandbox.confinement import INSIDE, Level, View, confined
from coordinate_eval.evaluators.sandbox.memory import OverMemory, Watch, members

MOST_PROCESSES = 128
"""Most processes at once. What many more have in memory takes the kernel minutes to give back."""

_MOST_BYTES = {
    **dict.fromkeys(
        (Work.QUESTIONS, Work.BUILD, Work.VERDICTS, Work.SAMPLES), MOST_LONG_REPLY_BYTES
    ),
    Work.ITEM_SCORES: MOST_ITEMS_BYTES,
}
"""Work with long replies."""

LOOK_SECONDS = 0.2
"""Time between two looks at what the processes use: a look takes some milliseconds."""

CLEAR_SECONDS = 10.0
"""Longest time in which a mother has to end a child and what it leaves."""

_PIECE_BYTES = 1 << 20
_ANSWER = "from coordinate_eval.evaluators.confined.answering import main\nmain()\n"


class ProcessEnded(CoordinateError):
    """The process has ended before it replied, or was ended for what it used."""


class Conversation:
    """Commands to a process, and its replies, over two pipes."""

    def __init__(self, process: "_Process") -> None:
        self._process = process
        self._numbers = itertools.count(1)
        commands, self._commands = os.pipe()
        self._replies, replies = os.pipe()
        self.theirs = [commands, replies]
        """The ends for whoever answers; see `give_away`."""

    def give_away(self) -> None:
        """Close the ends of the other side, when it has them."""
        while self.theirs:
            os.close(self.theirs.pop())

    def close(self) -> None:
        """Close all ends."""
        self.give_away()
        for end in (self._commands, self._replies):
            os.close(end)

    def ask(self, command: Command) -> Reply:
        """Return the reply to a command, which is given a number.

        A process may say anything: of CPU seconds no more count than it took to reply.

        Raises:
            ProcessEnded: there will be no reply.
            EndlessCall: a call of native code was ended, and the process with it.
            RecordError: the reply is not one.
        """
        numbered = command.model_copy(update={"number": next(self._numbers)})
        most = _MOST_BYTES.get(command.work, MOST_REPLY_BYTES)
        began = time.monotonic()
        try:
            self._write(numbered.line().encode())
            reply = read_reply(self._read_line(most), numbered)
        except BaseException:
            self._process.close()
            raise
        cpu_seconds = min(reply.cpu_seconds, time.monotonic() - began)
        return reply.model_copy(update={"cpu_seconds": cpu_seconds})

    def _write(self, line: bytes) -> None:
        with contextlib.suppress(BrokenPipeError):  # it has ended, which reading will show
            while line:
                line = line[os.write(self._commands, line) :]

    def _read_line(self, most: int) -> bytes:
        """Wait for a line of at most `most` bytes, as long as the process keeps to its limits."""
        poll = select.poll()
        poll.register(self._replies, select.POLLIN)
        line = bytearray()  # what says it may say it in any number of pieces
        began = next_look = time.monotonic()
        while not line.endswith(b"\n"):
            if time.monotonic() >= next_look:
                self._process.look(time.monotonic() - began)
                next_look = time.monotonic() + LOOK_SECONDS
            if poll.poll(1000 * LOOK_SECONDS):
                piece = os.read(self._replies, _PIECE_BYTES)
                line += piece
                if not piece:
                    raise ProcessEnded(self._process.how_it_ended())
                if len(line) > most:
                    raise ProcessEnded(f"its process said more than {most >> 20} MiB")
            elif self._process.ended:
                raise ProcessEnded(self._process.how_it_ended())
        return bytes(line)


class _Process:
    """One process of `answering.py`, and all that it starts."""

    def __init__(
        self,
        setup: Setup,
        arguments: Sequence[str],
        descriptors: Sequence[int],
        *,
        environment: Mapping[str, str],
        folder: str | None = None,
        log: BinaryIO | None = None,
    ) -> None:
        """Start the process. It loads the harness while the caller goes on.

        Args:
            arguments: its command, without the descriptors.
            folder: its working directory; None for that of this process.
            log: where its output goes; None for where the errors of this process go.
        """
        self.closed = False
        self._process = subprocess.Popen(
            [*arguments, *map(str, descriptors)],
            stdin=subprocess.PIPE,
            pass_fds=descriptors,
            env=dict(environment),
            cwd=folder,
            stderr=log,
            start_new_session=True,
        )
        assert self._process.stdin is not None  # a pipe was asked for
        with contextlib.suppress(BrokenPipeError), self._process.stdin as stdin:
            stdin.write(setup.line().encode())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def ended(self) -> bool:
        """Return whether the process has ended."""
        return self._process.poll() is not None

    def look(self, seconds: float) -> None:
        """Look at what the processes do, `seconds` after they were asked.

        Raises:
            ProcessEnded, EndlessCall: it is more than allowed.
        """

    def how_it_ended(self) -> str:
        """Return why there is no reply, in a few words."""
        # A descriptor was closed: it has ended, or is about to, or does not mean to reply.
        with contextlib.suppress(subprocess.TimeoutExpired):
            status = self._process.wait(1)
            return f"its process ended without a reply (exit status {status})"
        return "its process closed its channel without a reply"

    def kill(self) -> None:
        """End the process from another thread than the one that asks, which notices it."""
        self._process.kill()

    def close(self) -> None:
        """End the process and all that it has started."""
        if self.closed:
            return
        self.closed = True
        # The first of a namespace is among them: the kernel ends all others with it.
        for member in itertools.islice(members(self._process.pid), 1, MOST_PROCESSES + 1):
            with contextlib.suppress(ProcessLookupError):
                os.kill(member, signal.SIGKILL)
        self._process.kill()
        self._process.wait()


class BuildingProcess(_Process):
    """A process that builds prompts, with the environment and the rights of this one.

    It may download data. Calls of the checkpoint's tokenizer that do not end are ended with it.
    """

    def __init__(self, setup: Setup) -> None:
        """Start the process."""
        self._conversation = Conversation(self)
        with open(os.memfd_create("calls"), "r+b", buffering=0) as note:
            note.truncate(NOTE_BYTES)
            self._watch = PulseWatch(note.fileno())
            arguments = [sys.executable, "-P", "-c", _ANSWER, "build"]
            descriptors = [*self._conversation.theirs, note.fileno()]
            super().__init__(setup, arguments, descriptors, environment=os.environ)
        self._conversation.give_away()

    def ask(self, command: Command) -> Reply:
        """Return the reply to a command; raises as a conversation does."""
        return self._conversation.ask(command)

    def look(self, seconds: float) -> None:
        """Look at the call of the tokenizer that is going on."""
        self._watch.look(self._process.pid)

    def close(self) -> None:
        """End the process and all that it has started."""
        if not self.closed:
            super().close()
            self._conversation.close()


class ScoringProcess(_Process):
    """The mother of processes that score, confined at a `level` to a `view`, but for `limits`."""

    def __init__(
        self,
        setup: Setup,
        level: Level,
        view: View,
        environment: Mapping[str, str],
        most_seconds: float,
        log: BinaryIO | None = None,
    ) -> None:
        """Start the process, whose children get `most_seconds` for each reply.

        Raises:
            OSError, ValueError: the confinement cannot be set up.
        """
        self._most_seconds = most_seconds
        before: list[str] = []
        code = _ANSWER
        if level is not Level.LIMITS:
            before, confinement = confined(level, view)
            code = f"{INSIDE.read_text('utf-8')}\nconfine(*{confinement!r})\n{_ANSWER}"
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            super().__init__(
                setup,
                [*before, sys.executable, "-P", "-c", code, "score"],
                [theirs.fileno()],
                environment=environment,
                folder=(setup.folder or None) if level is Level.LIMITS else "/",
                log=log,
            )
        self._watch = Watch(self._process.pid, setup.memory_bytes)
        self.modules: list[str] = []
        """Modules for the mother to import, loaded before this child read any text of the model."""

    @contextlib.contextmanager
    def child(self, responses: int, answers: int) -> Iterator[Conversation]:
        """Talk to a new child, which can read these two files, and end it with the block."""
        conversation = Conversation(self)
        try:
            with contextlib.suppress(BrokenPipeError):  # it has ended, which reading will show
                files = [*conversation.theirs, responses, answers]
                socket.send_fds(self._control, [BEGIN], files)
            conversation.give_away()
            yield conversation
        finally:
            conversation.close()
            self._end_child()

    def look(self, seconds: float) -> None:
        """Check the time, and the number and the memory of all processes together."""
        if seconds > self._most_seconds:
            raise ProcessEnded(f"scoring did not end within {self._most_seconds / 60:g} minutes")
        below = itertools.islice(members(self._process.pid), 1, MOST_PROCESSES + 2)
        if len(list(below)) > MOST_PROCESSES:
            raise ProcessEnded(f"scoring had more than {MOST_PROCESSES} processes")
        try:
            self._watch.look()
        except OverMemory:
            gib = self._watch.limit_bytes / (1 << 30)
            raise ProcessEnded(
                f"scoring used more than {gib:.1f} GiB of memory; [harness] memory_gib allows more"
            ) from None

    def how_it_ended(self) -> str:
        """Return why there is no reply, in a few words."""
        return super().how_it_ended() if self.ended else "its process ended without a reply"

    def close(self) -> None:
        """End the process and all that it has started."""
        if not self.closed:
            super().close()
            self._watch.close()
            self._control.close()

    def _end_child(self) -> None:
        """Have the mother end its child; end the mother if it does not say that it has."""
        if self.closed:
            return
        self._control.settimeout(CLEAR_SECONDS)
        try:
            modules = "\n".join(self.modules).encode()[:MOST_BYTES]
            self._control.send(END + modules)
            cleared = self._control.recv(len(END)) == END
        except OSError:
            cleared = False
        if not cleared:
            self.close()
