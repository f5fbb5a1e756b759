"""Metric jobs: answer the questions of metrics on CPUs, while trials still run.

`coordinate-eval _metric RUN`. A job claims a portion whose questions are written, runs their
programs in the sandbox, and publishes the answers. It leaves when all portions are answered, or
when it has found none to claim for a while.
"""

import contextlib
import os
import sys
import time

from coordinate_eval import _files
from coordinate_eval.clusters.protocol import INDEX_VARIABLE
from coordinate_eval.coordinator.run.claiming.claims import AttemptWriter, Ledger, own_task
from coordinate_eval.coordinator.run.claiming.portions import unanswered_portions
from coordinate_eval.coordinator.run.claiming.pullers import Pullers
from coordinate_eval.coordinator.run.claiming.work import claimable
from coordinate_eval.coordinator.run.own import check_there
from coordinate_eval.coordinator.run.paths import RunDir
from coordinate_eval.coordinator.run.records import Run, read_run
from coordinate_eval.coordinator.workers.alone import alone_on_this_node
from coordinate_eval.coordinator.workers.signals import StopRequested, stop_on_signals
from coordinate_eval.evaluators.sandbox.sandbox import Sandbox, SandboxError
from coordinate_eval.evaluators.sandbox.verdicts import may_be_scarcity
from coordinate_eval.records import Answer, Question, Span

IDLE_SECONDS = 120.0
"""Time after which a metric job that finds nothing to claim leaves; the supervisor starts others.

It is longer than a network file system may hide a new file.
"""

PROGRAM_SHARE = 7 / 8
"""Part of a metric job's memory that one program may use. The rest is for the job's own process,
the program's files in memory (128 MiB), and what a program takes before it is noticed."""

MAX_DEATHS_OF_JOBS = 3
"""A program is given up when this many metric jobs died while it ran."""

DEADLY = f"failed: ended its metric job {MAX_DEATHS_OF_JOBS} times"


def run_metric(run_dir: RunDir) -> int:
    """Answer portions of questions until none is left. Return the exit status."""
    run = read_run(run_dir)
    settings = run.settings.metrics
    memory_bytes = int(settings.memory_gib * PROGRAM_SHARE * 2**30)
    sandbox = Sandbox.probe(settings.allow_unsafe_code, memory_bytes)
    sys.stdout.write(f"programs are run at the level {sandbox.level}\n")
    sys.stdout.flush()
    index = int(os.environ.get(INDEX_VARIABLE, "0"))
    ledger = Ledger(run_dir, "answers")
    stop_on_signals()
    idle_since = time.monotonic()
    with contextlib.suppress(StopRequested):
        while time.monotonic() - idle_since < IDLE_SECONDS:
            check_there(run_dir)
            claimed = _claim(run_dir, run, ledger, index)
            if claimed is not None:
                _answer(run_dir, ledger, *claimed, sandbox)
                idle_since = time.monotonic()
            elif not unanswered_portions(run_dir, run, judged=False):
                return 0
            else:
                time.sleep(0.5)
    return 0


def _claim(run_dir: RunDir, run: Run, ledger: Ledger, index: int) -> tuple[Span, int] | None:
    """Claim a free portion. Return it and the attempt's number, or None if none is free.

    Each job begins its search elsewhere, so that not all try the first portion.
    """
    portions = claimable(run_dir, run, Pullers.METRIC)["answers"]
    first = index % len(portions) if portions else 0
    for portion in portions[first:] + portions[:first]:
        attempt = ledger.claim(portion, f"metric-{index}", own_task())
        if attempt is not None:
            return portion, attempt
    return None


def _answer(run_dir: RunDir, ledger: Ledger, portion: Span, attempt: int, sandbox: Sandbox) -> None:
    """Answer the questions of a claimed portion that no earlier attempt has answered.

    Programs at which earlier attempts died come last, so that they take no other answer with them.
    """
    writer = AttemptWriter(ledger, portion, attempt)
    try:
        lines = _files.lines(run_dir.questions(portion))
        questions = {q.id: q for q in (Question.model_validate_json(line) for line in lines)}
        for line in ledger.earlier_lines(portion, attempt):
            with contextlib.suppress(ValueError):
                if questions.pop(Answer.model_validate_json(line).id, None) is not None:
                    writer.write(line)
        deaths = ledger.deaths_while_running([portion])
        for question in sorted(questions.values(), key=lambda question: deaths[question.id]):
            if deaths[question.id] < MAX_DEATHS_OF_JOBS:
                writer.note_running(question.id)
                answer = _verdict(sandbox, question, suspect=deaths[question.id] > 0)
            else:
                answer = Answer(id=question.id, passed=False, result=DEADLY, seconds=0.0)
            writer.write(answer.line())
            writer.note_running("")
    except BaseException:
        # Programs die in their sandbox. What ends a metric job is not its questions' fault.
        writer.give_back("released")
        raise
    writer.publish()


def _verdict(sandbox: Sandbox, question: Question, suspect: bool) -> Answer:
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
    with alone_on_this_node():
        return _run(sandbox, question)


def _run(sandbox: Sandbox, question: Question) -> Answer:
    """Run a program. A signal to this process ends it."""
    # A job has one core: a second program at the same time would slow the first one.
    (answer,) = sandbox.run_many([question], workers=1)
    return answer
