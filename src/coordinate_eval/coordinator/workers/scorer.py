"""Scoring jobs: turn responses and answers into results on CPUs, while trials still run.

`coordinate-eval _score RUN`. As responses and answers are published, a job claims and writes

- the questions of a shard's metric, portion by portion, for metric jobs to answer;
- rough scores of a dataset's slice, when the slice of the first signal is complete;
- the results of a dataset, when all of its responses and answers are there, the longest first.

The code of tasks, which reads what the model wrote, runs in processes below this one, confined
where the node can (see `evaluators/confined/`). This one asks them, checks what they say, and
writes every file. A process that crashes, hangs or takes too much memory is ended and asked again;
a dataset that ends several is given up. Where storage fails, the attempt is over, and any job makes
the next one, a few times.

The first job of an array stays until everything is scored, so that the last dataset waits for no
queue, unless the run has lost its supervisor. The others leave when they have found nothing to do
for a while.
"""

import contextlib
import itertools
import os
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO, TypeVar

from coordinate_eval import _files, _owner
from coordinate_eval.clusters.protocol import INDEX_VARIABLE
from coordinate_eval.coordinator.inputs.folders import why_not_for_tasks
from coordinate_eval.coordinator.inputs.suites.suite import check_tasks
from coordinate_eval.coordinator.report import first_signal
from coordinate_eval.coordinator.report.first_signal import Estimate, Signal
from coordinate_eval.coordinator.run.claiming.claims import MAX_DEATHS, Ledger, LedgerName, own_task
from coordinate_eval.coordinator.run.claiming.outcomes import request_indexes, unscored_datasets
from coordinate_eval.coordinator.run.claiming.pullers import Pullers
from coordinate_eval.coordinator.run.claiming.work import claimable
from coordinate_eval.coordinator.run.logs import own_log, tail
from coordinate_eval.coordinator.run.measurements import append_scoring
from coordinate_eval.coordinator.run.own import check_there
from coordinate_eval.coordinator.run.paths import RunDir
from coordinate_eval.coordinator.run.records import Run, read_run
from coordinate_eval.coordinator.workers.signals import StopRequested, stop_on_signals
from coordinate_eval.coordinator.workers.supervision import Supervision
from coordinate_eval.errors import CoordinateError
from coordinate_eval.evaluators.base import Scorer
from coordinate_eval.evaluators.confined.evaluator import ConfinedEvaluator, Place
from coordinate_eval.evaluators.confined.messages import AnswerFiles, ResponseFiles, Setup
from coordinate_eval.evaluators.confined.process import ProcessEnded
from coordinate_eval.evaluators.harness.tasks.task_names import kept_file
from coordinate_eval.records import (
    Dataset,
    DatasetRequests,
    Question,
    Shard,
    Span,
)

T = TypeVar("T")

IDLE_SECONDS = 600.0
"""Time after which a job that finds nothing to claim leaves; the supervisor starts others.

Datasets often end together, after minutes in which none does. Then all jobs should be there.
"""

POLL_SECONDS = 0.5
"""Time between two looks at what can be claimed."""

TRIES = 3
"""A dataset is given up when this many processes in a row did not score it."""

STORAGE_PAUSE_SECONDS = 10.0
"""Wait after a failure of storage before the next attempt, times the failures so far."""

MEMORY_PART = 0.9
"""Part of a job's memory that its processes may use: the rest is for the job itself."""


def run_scorer(run_dir: RunDir) -> int:
    """Score until every dataset has results or an error. Return the exit status."""
    run = read_run(run_dir)
    _owner.trust(run.settings.trusted_users)
    check_tasks(run.suite)
    index = int(os.environ.get(INDEX_VARIABLE, "0"))
    indexes = request_indexes(run_dir, run)
    stop_on_signals()
    with (
        contextlib.suppress(StopRequested),
        start_evaluator(run_dir, run, indexes) as evaluator,
    ):
        _Scorer(run_dir, run, evaluator, index, indexes).work()
    return 0


def start_evaluator(
    run_dir: RunDir,
    run: Run,
    indexes: dict[str, DatasetRequests],
    log: BinaryIO | None = None,
) -> ConfinedEvaluator:
    """Return the evaluator of these datasets of a run.

    The output of its processes goes to `log`, or else to where the errors of this one go.
    """
    settings = run.settings
    may_work = run.folder and not why_not_for_tasks(Path(run.folder), run.checkpoint)
    return ConfinedEvaluator(
        Setup(
            tokenizer=str(run_dir.model),
            include_path=run.suite.include_path,
            engine=settings.engine.name,
            max_length=run.max_length,
            kept_tasks=str(kept_file(Path(settings.cache_dir).expanduser()) or ""),
            folder=run.folder if may_work else "",
            judge_model=settings.judge.model or "",
            judge_revision=settings.judge.revision,
            baselines=str(run_dir.baselines_folder) if run_dir.baselines_folder.is_dir() else "",
            memory_bytes=int(MEMORY_PART * settings.harness.memory_gib * 2**30),
        ),
        Place(
            run_dir.model,
            run_dir.requests_folder,
            run_dir.published_folder("outputs", ""),
            run_dir.published_folder("answers", ""),
        ),
        [dataset.task for dataset in run.suite.datasets if dataset.task],
        indexes,
        most_seconds=60 * settings.harness.dataset_minutes,
        allow_unsafe=settings.metrics.allow_unsafe_code,
        log=log,
    )


class _Scorer:
    """One scoring job."""

    def __init__(
        self,
        run_dir: RunDir,
        run: Run,
        evaluator: Scorer,
        index: int,
        indexes: dict[str, DatasetRequests],
    ) -> None:
        self._dir, self._run, self._evaluator = run_dir, run, evaluator
        self._index, self._indexes = index, indexes
        self._datasets = {dataset.name: dataset for dataset in run.suite.datasets}
        asking = run.shards_with_questions()
        self._shards = {run.portions(shard)[-1]: shard for shard in asking}
        self._steps: dict[LedgerName, Callable[[Dataset, Span], None]] = {
            "questions": self._write_questions,
            "estimates": self._write_estimate,
            "results": self._write_results,
        }

    def work(self) -> None:
        """Score what others have not claimed, until nothing is left or this job may leave."""
        idle_since = time.monotonic()
        patience = self._run.settings.supervisor.patience_seconds
        supervision = Supervision(self._dir, patience)
        while unscored_datasets(self._dir, self._run):
            check_there(self._dir)
            lost = supervision.is_lost()
            if self._work_on_one():
                idle_since = time.monotonic()
            elif lost or (self._index and time.monotonic() - idle_since > IDLE_SECONDS):
                return
            else:
                time.sleep(POLL_SECONDS)

    def _work_on_one(self) -> bool:
        """Claim and do one piece of work. Return False if there was none."""
        for name, spans in claimable(self._dir, self._run, Pullers.SCORE).items():
            ledger = Ledger(self._dir, name)
            for span in spans:
                attempt = ledger.claim(span, f"score-{self._index}", own_task())
                if attempt is not None:
                    self._do(ledger, span, attempt)
                    return True
        return False

    def _do(self, ledger: Ledger, span: Span, attempt: int) -> None:
        """Do what is claimed. A task's own code may raise anything, at the dataset's cost."""
        dataset = self._datasets[span.dataset]
        with ledger.held(span, attempt):
            try:
                self._steps[ledger.name](dataset, span)
            except Exception as error:
                failures = ledger.count_deaths(span) + 1
                if isinstance(error, OSError) and failures < MAX_DEATHS:
                    pause = STORAGE_PAUSE_SECONDS * failures
                    sys.stderr.write(f"{error}; {dataset.name} is tried again in {pause:g} s\n")
                    time.sleep(pause)
                    ledger.revoke(span, attempt, "died")
                else:
                    self._give_up(ledger, dataset, _describe(error))
                    # The next supervisor removes the error, and the dataset is tried again.
                    ledger.revoke(span, attempt, "released")

    def _give_up(self, ledger: Ledger, dataset: Dataset, why: str) -> None:
        """Write why a dataset has no scores, or no estimate."""
        if ledger.name == "estimates":
            self._store_estimate(dataset, None, why)
        elif not self._dir.dataset_results(dataset.name).exists():
            _files.write(self._dir.dataset_error(dataset.name), why + "\n")

    def _write_questions(self, dataset: Dataset, last: Span) -> None:
        """Write the questions of the shard with this last portion."""
        shard = self._shards[last]
        responses = self._responses([shard])
        questions = _ask(lambda: self._evaluator.questions(dataset, responses))
        write_questions(self._dir, self._run.portions(shard), questions)

    def _write_estimate(self, dataset: Dataset, _: Span) -> None:
        """Write rough scores of a slice."""
        shards = [s for s in self._run.shards if s.signal and s.dataset == dataset.name]
        shards.sort(key=lambda shard: shard.start)
        results = self._evaluator.finish_part(
            dataset, self._responses(shards), self._answers(shards)
        )
        self._store_estimate(dataset, first_signal.estimate(results, self._indexes[dataset.name]))

    def _store_estimate(self, dataset: Dataset, signal: Signal | None, why_not: str = "") -> None:
        age = time.time() - self._run.created
        estimate = Estimate(seconds=age, signal=signal, why_not=why_not)
        _files.write_record(self._dir.estimate(dataset.name), estimate)

    def _write_results(self, dataset: Dataset, _: Span) -> None:
        shards = [shard for shard in self._run.shards if shard.dataset == dataset.name]
        responses, answers = self._responses(shards), self._answers(shards)
        results = _ask(lambda: self._evaluator.finish(dataset, responses, answers))
        if (index := self._indexes.get(dataset.name)) is not None:
            append_scoring(self._dir.scorings(dataset.name), results.cpu_seconds, index)
        # Another job that was taken for dead may have been first.
        text = results.model_dump_json(by_alias=True, indent=1)
        _files.create(self._dir.dataset_results(dataset.name), text)

    def _responses(self, shards: list[Shard]) -> ResponseFiles:
        return response_files(self._dir, shards)

    def _answers(self, shards: list[Shard]) -> AnswerFiles:
        return answer_files(self._dir, self._run, shards)


def response_files(run_dir: RunDir, shards: list[Shard]) -> ResponseFiles:
    """Return the responses of some shards that are done."""
    return ResponseFiles(tuple(run_dir.published("outputs", s.span) for s in shards))


def answer_files(run_dir: RunDir, run: Run, shards: list[Shard]) -> AnswerFiles:
    """Return the answers to the questions of some shards."""
    asking = [shard for shard in shards if shard.dataset in run.asks]
    portions = itertools.chain.from_iterable(map(run.portions, asking))
    return AnswerFiles(tuple(run_dir.published("answers", p) for p in portions))


def _ask(question: Callable[[], T]) -> T:
    """Return what a process of the harness replies; ask a new one if it has ended.

    Raises:
        ProcessEnded: several have.
    """
    for _ in range(TRIES - 1):
        try:
            return question()
        except ProcessEnded as error:
            sys.stderr.write(f"scoring stopped: {error}; trying again\n")
    try:
        return question()
    except ProcessEnded as error:
        # What they said last is in this job's log.
        said = [f"{TRIES} times, {error}", *tail(own_log())]
        raise ProcessEnded("\n".join(said)) from error


def write_questions(run_dir: RunDir, portions: list[Span], questions: list[Question]) -> None:
    """Write the questions of one shard, dealt to its portions.

    A portion that an earlier job has written may be answered already, and stays. Questions of
    this call that it lacks are added to the last portion.
    """
    ordered = sorted(questions, key=lambda question: question.id)
    edges = [len(ordered) * n // len(portions) for n in range(len(portions) + 1)]
    lacking: list[Question] = []
    for portion, (start, stop) in zip(portions, itertools.pairwise(edges), strict=True):
        path, mine = run_dir.questions(portion), ordered[start:stop]
        if portion == portions[-1]:
            mine += lacking
        if not _files.create(path, "".join(question.line() for question in mine)):
            there = {Question.model_validate_json(line).id for line in _files.lines(path)}
            lacking += [question for question in mine if question.id not in there]


def _describe(error: Exception) -> str:
    message = str(error) if isinstance(error, CoordinateError | OSError) else traceback.format_exc()
    return message.strip()
