"""Metric pullers: answer what metrics ask, on CPUs, while trials still run.

`coordinate-eval _metric RUN`. Each claims a portion whose questions are written, answers them in
the sandbox, publishes the answers, and leaves when it has seen nothing to do for a while.
"""

import contextlib
import os
import time

from coordinate_eval import _files
from coordinate_eval.coordinator.cluster import INDEX_VARIABLE, TASK_VARIABLE
from coordinate_eval.coordinator.run.claims import AttemptWriter, Ledger
from coordinate_eval.coordinator.run.paths import RunDir
from coordinate_eval.coordinator.run.portions import portions_with_questions, unanswered_portions
from coordinate_eval.coordinator.run.records import Run
from coordinate_eval.coordinator.workers.signals import StopRequested, stop_on_signals
from coordinate_eval.evaluators.sandbox.sandbox import Sandbox
from coordinate_eval.records import Answer, Question, Span

IDLE_SECONDS = 120.0
"""A puller that had nothing to do for so long leaves; the supervisor starts others. Longer than
a network file system may hide a new file."""


def run_metric(run_dir: RunDir) -> int:
    """Answer until nothing is left; the exit status."""
    run = _files.read_record(run_dir.run, Run)
    sandbox = Sandbox.probe(allow_unsafe=run.settings.metrics.allow_unsafe_code)
    ledger = Ledger(run_dir, "answers")
    index = int(os.environ.get(INDEX_VARIABLE, "0"))
    owner = f"metric-{index}"
    task = os.environ.get(TASK_VARIABLE, f"{os.uname().nodename}:{os.getpid()}")
    stop_on_signals()
    idle_since = time.monotonic()
    with contextlib.suppress(StopRequested):
        while time.monotonic() - idle_since < IDLE_SECONDS:
            spans = ledger.claimable(portions_with_questions(run_dir, run))
            # Each begins elsewhere, so that they don't all try the first.
            first = index % len(spans) if spans else 0
            for span in spans[first:] + spans[:first]:
                attempt = ledger.claim(span, owner, task)
                if attempt is not None:
                    _answer(run_dir, ledger, span, attempt, sandbox)
                    idle_since = time.monotonic()
                    break
            else:
                if not unanswered_portions(run_dir, run):
                    return 0
                time.sleep(0.5)
    return 0


def _answer(run_dir: RunDir, ledger: Ledger, span: Span, attempt: int, sandbox: Sandbox) -> None:
    writer = AttemptWriter(ledger, span, attempt)
    try:
        lines = _files.lines(run_dir.questions(span))
        questions = {q.id: q for q in (Question.model_validate_json(line) for line in lines)}
        for line in ledger.earlier_lines(span, attempt):
            with contextlib.suppress(ValueError):
                if questions.pop(Answer.model_validate_json(line).id, None) is not None:
                    writer.write(line)
        # One core a puller: a second program at the same time would only slow the first one.
        for answer in sandbox.run_many(list(questions.values()), workers=1):
            writer.write(answer.line())
    except BaseException:
        # Programs die alone, in their sandbox: whatever ends a puller is not what they hold.
        writer.give_back("released")
        raise
    writer.publish()
