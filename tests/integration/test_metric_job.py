"""Metric jobs that die while they run a program: the program is given up, not its dataset."""

import os
import signal
import subprocess
from functools import partial
from pathlib import Path

from tests.decisions import make_run
from tests.runs import command, until

from coordinate_eval import _files
from coordinate_eval.clusters.protocol import TASK_VARIABLE
from coordinate_eval.coordinator.run.claiming.claims import Ledger
from coordinate_eval.coordinator.run.paths import RunDir
from coordinate_eval.records import Answer, Question, QuestionKind, Shard, Span

PORTION = Span("a", 0, 5)

NAMED = "import ctypes, time\nctypes.CDLL(None).prctl(15, {name!r})\ntime.sleep(1000)"
"""A program that goes by a name, so that a test sees that it runs."""


def make_questions(run_dir: RunDir, programs: dict[str, str]) -> None:
    """Write a run with one portion, and these programs as its questions."""
    shard = Shard(dataset="a", start=0, stop=5, gpu_seconds=1, metric_cpu_seconds=0)
    _files.write_record(run_dir.run, make_run(asks=["a"], shards=[shard]))
    lines = [
        Question(id=name, kind=QuestionKind.PROGRAM, content=text, timeout_seconds=1000).line()
        for name, text in programs.items()
    ]
    _files.write(run_dir.questions(PORTION), "".join(lines))


def processes_named(name: bytes) -> list[Path]:
    """Processes that go by this name."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if (entry / "comm").read_bytes() == name + b"\n":
                found.append(entry)
        except OSError:  # it has just ended
            pass
    return found


def runs_or_is_over(name: bytes, job: subprocess.Popen[bytes]) -> bool:
    return bool(processes_named(name)) or job.poll() is not None


def test_a_program_at_which_metric_jobs_die_fails_alone(tmp_path: Path) -> None:
    run_dir, ledger = RunDir(tmp_path), Ledger(RunDir(tmp_path), "answers")
    deadly = f"ce{os.getpid()}x".encode()
    programs = {"first": "pass", "deadly": NAMED.format(name=deadly), "last": "assert 0"}
    make_questions(run_dir, programs)
    deaths = 0
    while not ledger.is_published(PORTION):
        assert ledger.claimable([PORTION]), f"given up after {deaths} deaths"
        job = subprocess.Popen(
            command("_metric", tmp_path), env=os.environ | {TASK_VARIABLE: f"{deaths}.0"}
        )
        until(partial(runs_or_is_over, deadly, job), "the program")
        if job.poll() is None:
            job.send_signal(signal.SIGKILL)
            deaths += 1
        job.wait()
        until(lambda: not processes_named(deadly), "the end of the program")
        for claim in ledger.open_claims([PORTION]):
            ledger.revoke(claim.span, claim.attempt, "died")  # as the supervisor does
    lines = list(_files.lines(run_dir.published("answers", PORTION)))
    answers = {answer.id: answer for answer in map(Answer.model_validate_json, lines)}
    assert deaths == 3
    assert sorted(answers) == sorted(programs)
    assert len(lines) == len(programs)
    assert answers["first"].passed
    assert answers["last"].result == "failed: AssertionError"
    assert answers["deadly"].result == "failed: ended its metric job 3 times"
