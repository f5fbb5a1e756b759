"""Scoring jobs: several share the work, and what fails costs one dataset at most."""

import errno
import math
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.decisions import make_run
from tests.run_dirs import write_index
from tests.runs import PATIENCE_SECONDS

from coordinate_eval import _files
from coordinate_eval.coordinator.run.claiming.claims import MAX_DEATHS, Ledger, whole
from coordinate_eval.coordinator.run.claiming.work import given_up, request_indexes
from coordinate_eval.coordinator.run.measurements import read_scorings
from coordinate_eval.coordinator.run.paths import RunDir
from coordinate_eval.coordinator.run.records import read_run
from coordinate_eval.coordinator.workers import scorer
from coordinate_eval.coordinator.workers.pull import POLL_SECONDS, STORAGE_PAUSE_SECONDS, pull
from coordinate_eval.coordinator.workers.signals import StopRequested, until_stopped
from coordinate_eval.errors import UserError
from coordinate_eval.evaluators.confined.process import ProcessEnded
from coordinate_eval.evaluators.confined.run_files import AnswerFiles, ResponseFiles
from coordinate_eval.records import (
    Answer,
    Dataset,
    DatasetResults,
    Question,
    QuestionKind,
    Shard,
    Suite,
)

CPU_SECONDS = 1234.5
SECONDS = {"short": 1.0, "long": 100.0, "asks": 10.0}


class FakeEvaluator:
    """Scores at once. `does` is called first, with the dataset's name."""

    def __init__(self, does: Callable[[str], None] = lambda _: None) -> None:
        self._does = does
        self.finished: list[str] = []
        self.asked: list[str] = []

    def questions(self, dataset: Dataset, responses: ResponseFiles) -> list[Question]:
        self.asked += [path.stem for path in responses.paths]
        return [
            Question(id="q", kind=QuestionKind.PROGRAM, content="", timeout_seconds=1),
        ]

    def finish(
        self,
        dataset: Dataset,
        responses: ResponseFiles,
        answers: AnswerFiles,
        *,
        part: bool = False,
    ) -> DatasetResults:
        self.finished.append(dataset.name)
        self._does(dataset.name)
        return DatasetResults(
            dataset=dataset.name, items=len(answers), results={}, cpu_seconds=CPU_SECONDS
        )


@pytest.fixture
def run_dir(tmp_path: Path) -> RunDir:
    """A run of three datasets with all responses; the questions of one are to be answered."""
    made = RunDir(tmp_path)
    run = make_run(
        folder=str(tmp_path),
        suite=Suite(name="s", digest="d", datasets=[Dataset(name=n, task=n) for n in SECONDS]),
        shards=[
            Shard(dataset=n, start=a, stop=a + 2, gpu_seconds=1, metric_cpu_seconds=1)
            for n in SECONDS
            for a in (0, 2)
        ],
        asks=["asks"],
        score_seconds=SECONDS,
    )
    _files.write_record(made.run, run)
    for name in SECONDS:
        write_index(made, name, 4)
    for shard in run.shards:
        _files.write(made.published("outputs", shard.span), "")
    return made


def answer(run_dir: RunDir) -> None:
    """Answer the questions that are there, as metric jobs do."""
    for path in run_dir.questions_folder("asks").glob("*.jsonl"):
        answers = run_dir.published_folder("answers", "asks") / path.name
        line = Answer(id=path.stem, passed=True, result="passed", seconds=0).line()
        _files.create(answers, line)


def work(
    run_dir: RunDir,
    evaluator: FakeEvaluator,
    idle_seconds: float = math.inf,
    sleep: Callable[[float], None] = lambda _: time.sleep(0.01),
) -> None:
    """Run a scoring job to its end."""
    run = read_run(run_dir)
    indexes = request_indexes(run_dir, run)
    job = scorer.ScoringJob(run_dir, run, evaluator, indexes, idle_seconds)
    with until_stopped():
        pull(run_dir, run, job, sleep)


@contextmanager
def answering(run_dir: RunDir) -> Iterator[None]:
    """Answer questions all the time."""
    over = threading.Event()

    def go() -> None:
        while not over.wait(0.01):
            answer(run_dir)

    thread = threading.Thread(target=go)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def results(run_dir: RunDir) -> dict[str, int]:
    """Datasets with results, and the answers that each was scored from."""
    return {
        path.stem: _files.read_record(path, DatasetResults).items
        for path in run_dir.results_folder.glob("*.json")
    }


ALL = {"short": 0, "long": 0, "asks": 2}


def test_the_longest_dataset_first_and_each_once(run_dir: RunDir) -> None:
    evaluator = FakeEvaluator()
    with answering(run_dir):
        work(run_dir, evaluator)
    assert results(run_dir) == ALL
    assert sorted(evaluator.asked) == ["0-2", "2-4"]
    assert [name for name in evaluator.finished if name != "asks"] == ["long", "short"]
    # Later plans learn from what each took, however long it waited for a core.
    assert {
        name: [seen.seconds for seen in read_scorings(run_dir.scorings(name))] for name in ALL
    } == {name: [CPU_SECONDS] for name in ALL}


def test_two_jobs_share_the_work(run_dir: RunDir) -> None:
    both = threading.Barrier(2, timeout=PATIENCE_SECONDS)

    def wait_for_the_other(name: str) -> None:
        if name != "asks":
            both.wait()

    evaluator = FakeEvaluator(wait_for_the_other)
    with answering(run_dir):
        jobs = [threading.Thread(target=work, args=(run_dir, evaluator)) for n in range(2)]
        for job in jobs:
            job.start()
        for job in jobs:
            job.join()
    assert results(run_dir) == ALL
    assert sorted(evaluator.finished) == sorted(ALL)
    assert sorted(evaluator.asked) == ["0-2", "2-4"]


@pytest.mark.parametrize(("failures", "lost"), [(scorer.TRIES - 1, False), (scorer.TRIES, True)])
def test_a_dataset_that_ends_three_processes_is_given_up(
    run_dir: RunDir, failures: int, lost: bool
) -> None:
    ended: list[str] = []

    def ends(name: str) -> None:
        if name == "long" and len(ended) < failures:
            ended.append(name)
            raise ProcessEnded("scoring did not end within 20 minutes")

    with answering(run_dir):
        work(run_dir, FakeEvaluator(ends))
    assert len(ended) == failures
    assert given_up(run_dir) == ({"long"} if lost else set())
    assert results(run_dir).keys() == ALL.keys() - given_up(run_dir)
    if lost:
        error = run_dir.dataset_error("long").read_text()
        assert error == "3 times, scoring did not end within 20 minutes\n"


@pytest.mark.parametrize(("failures", "lost"), [(MAX_DEATHS - 1, False), (MAX_DEATHS, True)])
def test_storage_that_fails_costs_attempts_before_it_costs_a_dataset(
    run_dir: RunDir, failures: int, lost: bool
) -> None:
    failed: list[str] = []

    def fails(name: str) -> None:
        if name == "long" and len(failed) < failures:
            failed.append(name)
            raise OSError(errno.EIO, "Input/output error", "/runs/r/outputs/long/0-2.jsonl")

    pauses: list[float] = []
    with answering(run_dir):
        work(run_dir, FakeEvaluator(fails), sleep=pauses.append)
    assert len(failed) == failures
    waited = [pause for pause in pauses if pause != POLL_SECONDS]
    assert waited == [n * STORAGE_PAUSE_SECONDS for n in range(1, MAX_DEATHS)]
    assert given_up(run_dir) == ({"long"} if lost else set())
    assert results(run_dir).keys() == ALL.keys() - given_up(run_dir)
    if lost:
        error = run_dir.dataset_error("long").read_text()
        assert error == "[Errno 5] Input/output error: '/runs/r/outputs/long/0-2.jsonl'\n"
        # A later supervisor has it tried again.
        assert Ledger(run_dir, "results").count_deaths(whole("long")) < MAX_DEATHS


def test_what_cannot_be_scored_is_tried_again_by_the_next_supervisor(run_dir: RunDir) -> None:
    full = True

    def fails(name: str) -> None:
        if name == "long" and full:
            raise UserError("the disk is full")

    with answering(run_dir):
        work(run_dir, FakeEvaluator(fails))
        assert run_dir.dataset_error("long").read_text() == "the disk is full\n"
        run_dir.dataset_error("long").unlink()
        full = False
        work(run_dir, FakeEvaluator(fails))
    assert results(run_dir) == ALL


def test_one_that_is_stopped_gives_its_dataset_back(run_dir: RunDir) -> None:
    def stops(name: str) -> None:
        raise StopRequested("signal 15")

    ledger = Ledger(run_dir, "results")
    for _ in range(MAX_DEATHS + 1):
        work(run_dir, FakeEvaluator(stops))
    assert ledger.open_claims([whole("long")]) == []
    assert ledger.claimable([whole("long")]) == [whole("long")]


def test_what_another_job_holds_is_left_to_it(run_dir: RunDir) -> None:
    assert Ledger(run_dir, "results").claim(whole("long"), "score-0", "7_0.0") == 1
    evaluator = FakeEvaluator()
    answer(run_dir)
    work(run_dir, evaluator, idle_seconds=0.0)
    assert "long" not in evaluator.finished
    assert "short" in evaluator.finished


def test_results_never_change(run_dir: RunDir) -> None:
    """A job that was taken for dead may be late."""
    first = DatasetResults(dataset="long", items=77, results={})

    def another_is_first(name: str) -> None:
        if name == "long":
            _files.write_record(run_dir.dataset_results("long"), first)

    def fails_too_late(name: str) -> None:
        another_is_first(name)
        raise UserError("too late")

    with answering(run_dir):
        work(run_dir, FakeEvaluator(another_is_first))
    assert results(run_dir)["long"] == 77
    for name in SECONDS:
        run_dir.dataset_results(name).unlink()
    for name in SECONDS:
        for n, claim in enumerate(Ledger(run_dir, "results").open_claims([whole(name)]), 1):
            Ledger(run_dir, "results").revoke(claim.span, n, "died")
    work(run_dir, FakeEvaluator(fails_too_late))
    assert given_up(run_dir) == {"short", "asks"}
