"""Scoring jobs that are killed at any point: every dataset is scored, once, and questions too."""

import math
import multiprocessing
import os
import random
import signal
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

import pytest
from tests.decisions import make_run
from tests.random_examples import FACTOR
from tests.run_dirs import write_index

from coordinate_eval import _files
from coordinate_eval.clusters.protocol import TASK_VARIABLE, State, TaskStatus
from coordinate_eval.coordinator.run.claiming.claims import MAX_DEATHS, Ledger
from coordinate_eval.coordinator.run.claiming.work import all_spans, request_indexes
from coordinate_eval.coordinator.run.paths import RunDir
from coordinate_eval.coordinator.run.records import Run, read_run
from coordinate_eval.coordinator.supervisor.decide import decide
from coordinate_eval.coordinator.supervisor.gather import gather_facts
from coordinate_eval.coordinator.supervisor.values import Revoke
from coordinate_eval.coordinator.workers.pull import pull
from coordinate_eval.coordinator.workers.scorer import ScoringJob
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

NAMES = [f"d{n}" for n in range(8)]
ITEMS = 6
KILLS = MAX_DEATHS - 1
"""Too few to make a dataset be left alone, whichever jobs they meet."""


class SlowEvaluator:
    """Takes some time for each question and each dataset. Every item has a question."""

    def questions(self, dataset: Dataset, responses: ResponseFiles) -> list[Question]:
        time.sleep(0.01)
        start, stop = map(int, responses.paths[0].stem.split("-"))
        return [
            Question(
                id=f"{dataset.name}-{item}",
                kind=QuestionKind.PROGRAM,
                content="",
                timeout_seconds=1,
            )
            for item in range(start, stop)
        ]

    def finish(
        self,
        dataset: Dataset,
        responses: ResponseFiles,
        answers: AnswerFiles,
        *,
        part: bool = False,
    ) -> DatasetResults:
        time.sleep(0.03)
        return DatasetResults(dataset=dataset.name, items=len(answers), results={})


def job(run_dir: RunDir, number: int) -> None:
    """Be a scoring job, as the last thing that this process does."""

    os.environ[TASK_VARIABLE] = f"{number}_0.0"
    run = read_run(run_dir)
    work = ScoringJob(run_dir, run, SlowEvaluator(), request_indexes(run_dir, run), math.inf)
    pull(run_dir, run, work, sleep=lambda _: time.sleep(0.005))
    os._exit(0)


def made(folder: Path) -> tuple[RunDir, Run]:
    """A run whose responses are all there."""
    run_dir = RunDir(folder)
    run = make_run(
        folder=str(folder),
        suite=Suite(name="s", digest="d", datasets=[Dataset(name=n, task=n) for n in NAMES]),
        shards=[
            Shard(dataset=n, start=a, stop=a + 3, gpu_seconds=1, metric_cpu_seconds=10)
            for n in NAMES
            for a in range(0, ITEMS, 3)
        ],
        asks=NAMES,
    )
    _files.write_record(run_dir.run, run)
    for shard in run.shards:
        _files.write(run_dir.published("outputs", shard.span), "")
    for name in NAMES:
        write_index(run_dir, name, ITEMS, asks=True)
    return run_dir, run


def supervise(run_dir: RunDir, run: Run, alive: set[int]) -> None:
    """Revoke what dead jobs held, and answer questions."""
    tasks = [
        TaskStatus(name="score", job_id=str(n), index=0, state=State.RUNNING) for n in sorted(alive)
    ]
    facts = gather_facts(run_dir, run, tasks, time.time(), Counter())
    for action in decide(run, run_dir, facts):
        if isinstance(action, Revoke):
            span, attempt, _ = action.claim
            Ledger(run_dir, action.ledger).revoke(span, attempt, "died")
    for span in all_spans(run, "answers"):
        with suppress(FileNotFoundError):
            asked = [Question.model_validate_json(q) for q in _files.lines(run_dir.questions(span))]
            lines = [Answer(id=q.id, passed=True, result="", seconds=0).line() for q in asked]
            _files.create(run_dir.published("answers", span), "".join(lines))


@pytest.mark.random
@pytest.mark.parametrize("seed", range(4 * FACTOR))
def test_jobs_are_killed_at_random(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    dice = random.Random(seed)
    run_dir, run = made(tmp_path)
    context = multiprocessing.get_context("fork")
    jobs: dict[int, multiprocessing.process.BaseProcess] = {}
    started = kills = 0
    while Ledger(run_dir, "results").unpublished(all_spans(run, "results")):
        jobs = {n: process for n, process in jobs.items() if process.is_alive()}
        if len(jobs) < 2:
            started += 1
            jobs[started] = context.Process(target=job, args=(run_dir, started))
            jobs[started].start()
        if kills < KILLS:
            time.sleep(dice.uniform(0, 0.08))
            victim = dice.choice(list(jobs.values()))
            os.kill(victim.pid or 0, signal.SIGKILL)
            victim.join()
            kills += 1
        supervise(run_dir, run, {n for n, process in jobs.items() if process.is_alive()})
    for process in jobs.values():
        process.join()
    found = {
        path.name: _files.read_record(path, DatasetResults).items
        for path in run_dir.results_folder.iterdir()
    }
    assert found == {f"{name}.json": ITEMS for name in NAMES}
    asked = Counter(
        Question.model_validate_json(line).id
        for span in all_spans(run, "answers")
        for line in _files.lines(run_dir.questions(span))
    )
    assert asked == Counter(f"{name}-{item}" for name in NAMES for item in range(ITEMS))
