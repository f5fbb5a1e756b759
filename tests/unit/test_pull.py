"""The loop of jobs that claim work: what a failure, or a lost supervisor, comes to."""

import errno
import math
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import cast

import pytest
from tests.decisions import make_run

from coordinate_eval import _files
from coordinate_eval.coordinator.run.claiming.claims import MAX_DEATHS, Ledger
from coordinate_eval.coordinator.run.claiming.pullers import Pullers
from coordinate_eval.coordinator.run.claiming.work import Piece
from coordinate_eval.coordinator.run.paths import RunDir
from coordinate_eval.coordinator.run.records import Run
from coordinate_eval.coordinator.workers.metric import MetricJob
from coordinate_eval.coordinator.workers.pull import Puller, pull
from coordinate_eval.errors import UserError
from coordinate_eval.evaluators.sandbox.sandbox import Sandbox, SandboxError
from coordinate_eval.records import Answer, Question, QuestionKind, Shard, Span

PORTION = Span("a", 0, 5)


class Job(Puller):
    """Answers portions, after a call of `does`. No error is a portion's fault."""

    kind = Pullers.METRIC

    def __init__(self, does: Callable[[], None] = lambda: None) -> None:
        self.idle_seconds, self._does, self.tries = math.inf, does, 0

    def do(self, piece: Piece) -> None:
        self.tries += 1
        self._does()
        _files.write(piece.ledger.run.published("answers", piece.span), "")

    def give_up(self, piece: Piece, error: Exception) -> None:
        raise error


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """A run with the questions of one portion."""
    shard = Shard(dataset="a", start=0, stop=5, gpu_seconds=1, metric_cpu_seconds=1)
    made = make_run(asks=["a"], shards=[shard])
    _files.write_record(RunDir(tmp_path).run, made)
    _files.write(RunDir(tmp_path).questions(PORTION), "")
    return made


def fails() -> None:
    raise OSError(errno.EIO, "Input/output error")


def test_it_ends_when_all_is_done(tmp_path: Path, run: Run) -> None:
    job = Job()
    pull(RunDir(tmp_path), run, job)
    assert job.tries == 1


def test_storage_that_fails_on_and_on_ends_a_job_without_a_piece_to_blame(
    tmp_path: Path, run: Run
) -> None:
    job = Job(fails)
    with pytest.raises(OSError, match="Input/output"):
        pull(RunDir(tmp_path), run, job, sleep=lambda _: None)
    assert job.tries == MAX_DEATHS
    assert Ledger(RunDir(tmp_path), "answers").claimable([PORTION]) == [PORTION]


def test_a_node_that_starts_no_program_gives_no_verdict(tmp_path: Path, run: Run) -> None:
    class Full:
        def run_many(self, questions: Iterable[Question], workers: int) -> Iterator[Answer]:
            raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")

    question = Question(id="q", kind=QuestionKind.PROGRAM, content="", timeout_seconds=1.0)
    run_dir, ledger = RunDir(tmp_path), Ledger(RunDir(tmp_path), "answers")
    _files.write(run_dir.questions(PORTION), question.line())
    for _ in range(MAX_DEATHS + 1):
        with pytest.raises(SandboxError, match="temporarily unavailable"):
            pull(run_dir, run, MetricJob(cast("Sandbox", Full())), sleep=lambda _: None)
    assert ledger.claimable([PORTION]) == [PORTION]
    assert not ledger.deaths_while_running([PORTION])


def test_an_error_that_is_no_fault_of_the_piece_ends_the_job_and_gives_it_back(
    tmp_path: Path, run: Run
) -> None:
    def refuses() -> None:
        raise UserError("nothing confines programs here")

    ledger = Ledger(RunDir(tmp_path), "answers")
    for _ in range(MAX_DEATHS + 1):
        with pytest.raises(UserError):
            pull(RunDir(tmp_path), run, Job(refuses))
        assert ledger.claimable([PORTION]) == [PORTION]


def test_it_waits_for_others_as_long_as_somebody_supervises(tmp_path: Path, run: Run) -> None:
    ledger = Ledger(RunDir(tmp_path), "answers")
    assert ledger.claim(PORTION, "metric-1", "7_1.0") == 1
    job, waits = Job(), 0

    def the_other_dies(_: float) -> None:
        nonlocal waits
        waits += 1
        if waits == 3:
            ledger.revoke(PORTION, 1, "died")

    pull(RunDir(tmp_path), run, job, the_other_dies)
    assert (job.tries, waits) == (1, 3)


def test_it_leaves_when_nobody_supervises(tmp_path: Path, run: Run) -> None:
    settings = run.settings.model_copy(
        update={"supervisor": run.settings.supervisor.model_copy(update={"patience_seconds": 0.0})}
    )
    assert Ledger(RunDir(tmp_path), "answers").claim(PORTION, "metric-1", "7_1.0") == 1
    lost = run.model_copy(update={"settings": settings})
    pull(RunDir(tmp_path), lost, Job(), sleep=lambda _: time.sleep(0.001))
