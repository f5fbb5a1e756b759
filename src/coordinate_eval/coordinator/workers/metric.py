"""Metric jobs: answer the questions of metrics on CPUs, while trials still run.

`coordinate-eval _metric RUN`. A job claims a portion whose questions are written, runs their
programs in the sandbox, and publishes the answers.
"""

import contextlib
import fcntl
import os
import re
import stat
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Final

from coordinate_eval import _files
from coordinate_eval.coordinator.run.claiming.claims import AttemptWriter
from coordinate_eval.coordinator.run.claiming.pullers import METRIC_MEMORY_GIB, Pullers
from coordinate_eval.coordinator.run.claiming.work import Piece
from coordinate_eval.coordinator.run.paths import RunDir
from coordinate_eval.coordinator.run.records import read_run
from coordinate_eval.coordinator.workers.pull import Puller, pull
from coordinate_eval.coordinator.workers.signals import until_stopped
from coordinate_eval.evaluators.sandbox.sandbox import Sandbox, SandboxError
from coordinate_eval.records import PYTHON, Answer, Question

HAD_ITS_CORE: Final = 0.9
"""A program that had this part of its time limit as CPU time gains little from being alone."""

# EAGAIN of fork, ENOMEM, ENFILE, ENOSPC and EDQUOT, as in errno(3).
_NUMBERS = re.compile(r"\[Errno (11|12|23|28|122)\]")
_NAMES = re.compile(
    r"failed: ("
    r"MemoryError"
    r"|RuntimeError: can't (start new thread|allocate lock)"
    # Time limits of the program's own.
    r"|(TimeoutError|TimeoutExpired)\b"
    # Its processes were killed: by the kernel when memory ran out, or by themselves.
    r"|BrokenProcessPool|its process ended before the program did"
    r")"
)
# What compilers and their programs print of the same: strerror(3), and a part of a compiler or a
# virtual machine that could not start or was killed.
_PRINTED = re.compile(
    r"Resource temporarily unavailable|resource temporarily unavailable|[Cc]annot allocate memory"
    r"|[Nn]o space left on device|OutOfMemoryError|unable to create native thread"
    r"|[Kk]illed signal|signal: killed|failed: (it does not compile: )?signal 9"
)


def may_be_scarcity(question: Question, answer: Answer) -> bool:
    """Return whether a program may have failed for lack of time, memory, processes or space.

    Others use these too, so the verdict may be another one when the program runs alone. It is not
    where the program used up what was its own: the time of a whole core, or the memory that all of
    its processes may use.
    """
    if answer.passed:
        return False
    if answer.result == "timed out":
        return answer.cpu_seconds < HAD_ITS_CORE * question.timeout_seconds
    if question.language != PYTHON:
        return bool(_PRINTED.search(answer.result))
    return bool(_NAMES.match(answer.result) or _NUMBERS.search(answer.result))


LOCKS: Final = Path("/dev/shm")  # noqa: S108  # of this node, unlike a run directory
"""Folder of the lock that the user's processes on this node hold while a program runs alone."""

PROGRAM_SHARE = 7 / 8
"""Part of a metric job's memory that one program may use. The rest is for the job's own process,
the program's files in memory (128 MiB), and what a program takes before it is noticed."""

MAX_DEATHS_OF_JOBS = 3
"""A program is given up when this many metric jobs died while it ran."""

DEADLY = f"failed: ended its metric job {MAX_DEATHS_OF_JOBS} times"


def run_metric(run_dir: RunDir) -> int:
    """Answer portions of questions until none is left. Return the exit status."""
    run = read_run(run_dir)
    memory_bytes = int(METRIC_MEMORY_GIB * PROGRAM_SHARE * 2**30)
    sandbox = Sandbox.probe(run.settings.metrics.allow_unsafe_code, memory_bytes)
    sys.stdout.write(f"programs are run at the level {sandbox.level}\n")
    sys.stdout.flush()
    with until_stopped():
        pull(run_dir, run, MetricJob(sandbox))
    return 0


class MetricJob(Puller):
    """Answers portions of questions."""

    kind = Pullers.METRIC

    idle_seconds = 120.0
    """It is longer than a network file system may hide a new file."""

    def __init__(self, sandbox: Sandbox) -> None:
        self._sandbox = sandbox

    def do(self, piece: Piece) -> None:
        """Answer the questions of a portion that no earlier attempt has answered.

        Programs at which earlier attempts died come last, so that they take no other answer with
        them.
        """
        ledger, portion, attempt = piece
        with contextlib.closing(AttemptWriter(ledger, portion, attempt)) as writer:
            lines = _files.lines(ledger.run.questions(portion))
            questions = {q.id: q for q in (Question.model_validate_json(line) for line in lines)}
            for line in ledger.earlier_lines(portion, attempt):
                with contextlib.suppress(ValueError):
                    if questions.pop(Answer.model_validate_json(line).id, None) is not None:
                        writer.write(line)
            deaths = ledger.deaths_while_running([portion])
            for question in sorted(questions.values(), key=lambda question: deaths[question.id]):
                if deaths[question.id] < MAX_DEATHS_OF_JOBS:
                    writer.note_running(question.id)
                    answer = verdict(self._sandbox, question, suspect=deaths[question.id] > 0)
                else:
                    answer = Answer(id=question.id, passed=False, result=DEADLY, seconds=0.0)
                writer.note_running("")  # what fails from here on is not the program's fault
                writer.write(answer.line())
            writer.publish()

    def give_up(self, piece: Piece, error: Exception) -> None:
        """End the job: programs die in their sandbox, so no question is at fault."""
        raise error


def verdict(
    sandbox: Sandbox,
    question: Question,
    *,
    suspect: bool,
    alone: Callable[[], AbstractContextManager[None]] | None = None,
) -> Answer:
    """Run a program. A verdict that may be for lack of resources counts if it comes again, alone.

    A suspect has ended a metric job. It runs alone from the start.

    Raises:
        SandboxError: the program could not be started, also not alone.
    """
    if not suspect:
        with contextlib.suppress(SandboxError):
            answer = _run(sandbox, question)
            if not may_be_scarcity(question, answer):
                return answer
    with alone() if alone else alone_on_this_node():
        return _run(sandbox, question)


def _run(sandbox: Sandbox, question: Question) -> Answer:
    """Run a program. A signal to this process ends it."""
    # A job has one core: a second program at the same time would slow the first one.
    try:
        (answer,) = sandbox.run_many([question], workers=1)
    except OSError as error:  # such as a node without processes, memory or space to spare
        raise SandboxError(f"a program could not be started: {error}") from error
    return answer


@contextlib.contextmanager
def alone_on_this_node(folder: Path = LOCKS) -> Iterator[None]:
    """Wait until no other process of this user on this node is in such a block, then run it.

    The kernel frees the lock of a process that dies. Everybody can write to the folder: where
    somebody else has put a file of that name, or the folder is missing, nobody waits for anybody.
    """
    path = folder / f"coordinate-eval-{os.getuid()}.alone"
    lock = _hold(path)
    try:
        yield
    finally:
        if lock is not None:
            path.unlink(missing_ok=True)
            os.close(lock)


def _hold(path: Path) -> int | None:
    """Return the open lock file, held; None if there can be none."""
    while True:
        try:
            flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
            lock = os.open(path, flags, 0o600)
        except OSError:
            return None
        try:
            found = os.fstat(lock)
            if not stat.S_ISREG(found.st_mode) or found.st_uid != os.getuid():
                os.close(lock)
                return None
            fcntl.flock(lock, fcntl.LOCK_EX)
            # Its last holder may have removed it meanwhile, and another one made it anew.
            with contextlib.suppress(FileNotFoundError):
                if path.lstat().st_ino == found.st_ino:
                    return lock
        except BaseException:
            os.close(lock)
            raise
        os.close(lock)
