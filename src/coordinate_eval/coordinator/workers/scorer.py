"""Scoring jobs: turn responses and answers into results on CPUs, while trials still run.

`coordinate-eval _score RUN`. As responses and answers are published, a job claims and writes

- the questions of a shard's metric, portion by portion, for metric jobs to answer;
- the scores of a dataset's first items at each look, of a sample or of a run that goes on until it
  is decided how all datasets compare with those of another run;
- rough scores of a dataset's slice, when the slice of the first signal is complete;
- the results of a dataset, when all of its responses and answers are there, the longest first.

The code of tasks, which reads what the model wrote, runs in processes below this one, confined
where the node can (see `evaluators/confined/`). This one asks them, checks what they say, and
writes every file. A process that crashes, hangs or takes too much memory is ended and asked again;
a dataset that ends several is given up.

The first job of an array stays until everything is scored, so that the last dataset waits for no
queue.
"""

import itertools
import math
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO, Protocol, TypeVar

from coordinate_eval import _files
from coordinate_eval.coordinator.comparison.deciding import compare_at
from coordinate_eval.coordinator.inputs.folders import folder_for_tasks
from coordinate_eval.coordinator.inputs.suites.suite import check_tasks
from coordinate_eval.coordinator.report import first_signal
from coordinate_eval.coordinator.report.first_signal import Estimate, Signal
from coordinate_eval.coordinator.run.claiming.decided import PartScores
from coordinate_eval.coordinator.run.claiming.pullers import Pullers
from coordinate_eval.coordinator.run.claiming.work import Piece, request_indexes
from coordinate_eval.coordinator.run.logs import own_log, tail
from coordinate_eval.coordinator.run.measurements import append_scoring
from coordinate_eval.coordinator.run.paths import RunDir
from coordinate_eval.coordinator.run.records import Run, read_run
from coordinate_eval.coordinator.workers.pull import Puller, own_index, pull
from coordinate_eval.coordinator.workers.signals import until_stopped
from coordinate_eval.errors import CoordinateError
from coordinate_eval.evaluators.confined.evaluator import ConfinedEvaluator
from coordinate_eval.evaluators.confined.messages import Setup
from coordinate_eval.evaluators.confined.process import ProcessEnded
from coordinate_eval.evaluators.confined.run_files import AnswerFiles, ResponseFiles
from coordinate_eval.evaluators.harness.tasks.task_names import kept_file
from coordinate_eval.records import (
    Dataset,
    DatasetItems,
    DatasetRequests,
    DatasetResults,
    Question,
    Shard,
    Span,
)

T = TypeVar("T")

IDLE_SECONDS = 600.0
"""Time without work after which a job leaves, unless it is the first of its array.

Datasets often end together, after minutes in which none does. Then all jobs should be there.
"""

TRIES = 3
"""A dataset is given up when this many processes in a row did not score it."""

MEMORY_PART = 0.9
"""Part of a job's memory that its processes may use: the rest is for the job itself."""


def run_scorer(run_dir: RunDir) -> int:
    """Score until every dataset has results or an error. Return the exit status."""
    run = read_run(run_dir)
    check_tasks(run.suite, run.settings.trusted_users)
    indexes = request_indexes(run_dir, run)
    with until_stopped(), start_evaluator(run_dir, run, indexes) as evaluator:
        idle_seconds = IDLE_SECONDS if own_index() else math.inf
        pull(run_dir, run, ScoringJob(run_dir, run, evaluator, indexes, idle_seconds))
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
    return ConfinedEvaluator(
        Setup(
            tokenizer=str(run_dir.model),
            include_path=run.suite.include_path,
            engine=settings.engine.name,
            max_length=run.max_length,
            kept_tasks=str(kept_file(Path(settings.cache_dir).expanduser()) or ""),
            folder=folder_for_tasks(run.folder, run.checkpoint),
            judge_model=settings.judge.model or "",
            judge_revision=settings.judge.revision,
            baselines=str(run_dir.baselines_folder) if run_dir.baselines_folder.is_dir() else "",
            memory_bytes=int(MEMORY_PART * settings.harness.memory_gib * 2**30),
        ),
        [dataset.task for dataset in run.suite.datasets if dataset.task],
        indexes,
        most_seconds=2 * 60 * settings.trial.hang_minutes,
        allow_unsafe=settings.metrics.allow_unsafe_code,
        log=log,
    )


class Scorer(Protocol):
    """The part of `ConfinedEvaluator` that a job asks."""

    def questions(self, dataset: Dataset, responses: ResponseFiles) -> list[Question]:
        """Return the questions that the metric asks about some items, without duplicates."""
        ...

    def finish(
        self,
        dataset: Dataset,
        responses: ResponseFiles,
        answers: AnswerFiles,
        *,
        part: bool = False,
    ) -> DatasetResults:
        """Score the dataset from all of its responses, or some items as if it had no others."""
        ...


class ScoringJob(Puller):
    """Writes questions, estimates and results."""

    kind = Pullers.SCORE

    def __init__(
        self,
        run_dir: RunDir,
        run: Run,
        evaluator: Scorer,
        indexes: dict[str, DatasetRequests],
        idle_seconds: float,
    ) -> None:
        self.idle_seconds = idle_seconds
        self._dir, self._run, self._evaluator, self._indexes = run_dir, run, evaluator, indexes
        self._datasets = {dataset.name: dataset for dataset in run.suite.datasets}
        asking = run.shards_with_questions()
        self._shards = {run.portions(shard)[-1]: shard for shard in asking}

    def do(self, piece: Piece) -> None:
        """Write what a piece is named for. A task's own code may raise anything."""
        if piece.ledger.name == "comparisons":
            compare_at(self._dir, self._run, int(piece.span.dataset))
            return
        dataset = self._datasets[piece.span.dataset]
        shards = [shard for shard in self._run.shards if shard.dataset == dataset.name]
        match piece.ledger.name:
            case "questions":
                self._write_questions(dataset, self._shards[piece.span])
            case "estimates":
                sliced = sorted((s for s in shards if s.signal), key=lambda s: s.start)
                self._write_estimate(dataset, sliced)
            case "looks":
                self._write_look(dataset, piece.span, shards)
            case "results":
                self._write_results(dataset, shards)

    def give_up(self, piece: Piece, error: Exception) -> None:
        """Write why a dataset has no scores, or no estimate."""
        name, why = piece.span.dataset, _describe(error)
        if piece.ledger.name == "comparisons":
            raise error
        if piece.ledger.name == "looks" and piece.span.stop != self._run.sampled.get(name):
            self._store_look(piece.span, PartScores(why_not=why))
        elif piece.ledger.name == "estimates":
            self._store_estimate(name, None, why)
        elif not self._dir.dataset_results(name).exists():
            _files.write(self._dir.dataset_error(name), why + "\n")

    def _write_questions(self, dataset: Dataset, shard: Shard) -> None:
        responses = response_files(self._dir, [shard])
        questions = _ask(lambda: self._evaluator.questions(dataset, responses))
        write_questions(self._dir, self._run.portions(shard), questions)

    def _write_estimate(self, dataset: Dataset, shards: list[Shard]) -> None:
        responses = response_files(self._dir, shards)
        answers = answer_files(self._dir, self._run, shards)
        results = self._evaluator.finish(dataset, responses, answers, part=True)
        signal = first_signal.estimate(results, self._indexes[dataset.name])
        self._store_estimate(dataset.name, signal)

    def _store_estimate(self, dataset: str, signal: Signal | None, why_not: str = "") -> None:
        age = time.time() - self._run.created
        estimate = Estimate(seconds=age, signal=signal, why_not=why_not)
        _files.write_record(self._dir.estimate(dataset), estimate)

    def _write_look(self, dataset: Dataset, span: Span, shards: list[Shard]) -> None:
        first = [shard for shard in shards if shard.stop <= span.stop]
        responses = response_files(self._dir, first)
        answers = answer_files(self._dir, self._run, first)
        results = _ask(lambda: self._evaluator.finish(dataset, responses, answers, part=True))
        scored = DatasetItems(dataset=dataset.name, tables=results.item_scores)
        self._store_look(span, PartScores(results=results, items=scored))

    def _store_look(self, span: Span, scores: PartScores) -> None:
        _files.create(self._dir.published("looks", span), scores.line())

    def _write_results(self, dataset: Dataset, shards: list[Shard]) -> None:
        responses = response_files(self._dir, shards)
        answers = answer_files(self._dir, self._run, shards)
        results = _ask(lambda: self._evaluator.finish(dataset, responses, answers))
        if (index := self._indexes.get(dataset.name)) is not None:
            append_scoring(self._dir.scorings(dataset.name), results.cpu_seconds, index)
        if results.item_scores:
            scored = DatasetItems(dataset=dataset.name, tables=results.item_scores)
            _files.create(self._dir.items(dataset.name), scored.model_dump_json(by_alias=True))
        # Another job that was taken for dead may have been first.
        _files.create_record(self._dir.dataset_results(dataset.name), results)


def response_files(run_dir: RunDir, shards: list[Shard]) -> ResponseFiles:
    """Return the responses of some shards that are done."""
    return ResponseFiles(tuple(run_dir.published("outputs", s.span) for s in shards))


def answer_files(run_dir: RunDir, run: Run, shards: list[Shard]) -> AnswerFiles:
    """Return the answers to the questions of some shards."""
    asking = [shard for shard in shards if shard.dataset in run.asks]
    portions = itertools.chain.from_iterable(map(run.portions, asking))
    return AnswerFiles(tuple(run_dir.published("answers", p) for p in portions))


def _ask(question: Callable[[], T]) -> T:
    """Return the reply of a process of the harness; ask a new process if this one has ended."""
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
