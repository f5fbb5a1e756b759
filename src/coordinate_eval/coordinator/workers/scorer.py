"""The scorer: it decides what to score next, and writes what comes of it.

`coordinate-eval _score RUN`, a child of the supervisor. While engines start, it loads small
datasets. As responses and answers are published, it writes

- the questions of a shard's metric, portion by portion, for metric jobs to answer;
- rough scores of a dataset's slice, when the slice of the first signal is complete;
- the results of a dataset, when all of its responses and answers are there.

The code of tasks, which reads what the model wrote, runs in processes below this one, confined
where the node can (see `evaluators/confined/`). This one asks them, checks what they say, and
writes every file. Tasks may crash or hang them without harm to the supervisor (see
`supervisor/scorer_process.py`). It ends with its parent, and they end with it.
"""

import contextlib
import itertools
import sys
import time
import traceback
from pathlib import Path

from coordinate_eval import _files, _owner
from coordinate_eval.coordinator.inputs.folders import why_not_for_tasks
from coordinate_eval.coordinator.inputs.suite import check_tasks
from coordinate_eval.coordinator.report import first_signal
from coordinate_eval.coordinator.report.first_signal import FirstSignal
from coordinate_eval.coordinator.report.results import unscored_datasets, unscored_indexes
from coordinate_eval.coordinator.run.claims import Ledger
from coordinate_eval.coordinator.run.paths import RunDir
from coordinate_eval.coordinator.run.records import Run, read_run
from coordinate_eval.errors import CoordinateError
from coordinate_eval.evaluators.base import Scorer
from coordinate_eval.evaluators.confined.evaluator import ConfinedEvaluator, Place
from coordinate_eval.evaluators.confined.messages import AnswerFiles, ResponseFiles, Setup
from coordinate_eval.evaluators.confined.process import ProcessEnded
from coordinate_eval.evaluators.harness.task_names import kept_file
from coordinate_eval.records import Dataset, DatasetRequests, Question, Span

MAX_LOADED_REQUESTS = 10_000
"""Requests of the datasets that are loaded before any response is there: about a minute's work."""

MEMORY_PART = 0.9
"""Part of the supervisor's memory that scoring may use: the rest is for supervisor and scorer."""


def run_scorer(run_dir: RunDir) -> int:
    """Score until every dataset has results or an error. Return the exit status."""
    run = read_run(run_dir)
    _owner.trust(run.settings.trusted_users)
    check_tasks(run.suite)
    try:
        with start_evaluator(run_dir, run) as evaluator:
            _score_all(run_dir, run, _Scorer(run_dir, run, evaluator))
    except ProcessEnded as error:
        # The supervisor starts the scorer again, and counts this against the dataset.
        sys.stderr.write(f"scoring stopped: {error}\n")
        return 1
    return 0


def start_evaluator(run_dir: RunDir, run: Run) -> ConfinedEvaluator:
    """Return the evaluator of the datasets that are still unscored."""
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
            memory_bytes=int(MEMORY_PART * settings.supervisor.memory_gib * 2**30),
        ),
        Place(
            run_dir.model,
            run_dir.published_folder("outputs", ""),
            run_dir.published_folder("answers", ""),
        ),
        [dataset.task for dataset in run.suite.datasets if dataset.task],
        unscored_indexes(run_dir, run),
        allow_unsafe=settings.metrics.allow_unsafe_code,
    )


def _score_all(run_dir: RunDir, run: Run, scorer: "_Scorer") -> None:
    scorer.load_small_datasets()
    idle = False
    while unscored_datasets(run_dir, run):
        wrote = scorer.write_questions_of_a_shard()
        wrote = scorer.estimate_a_dataset() or scorer.score_a_dataset() or wrote
        if not wrote:
            if not idle:
                _files.write(run_dir.scoring, "")
            time.sleep(0.5)
        idle = not wrote


class _Scorer:
    """The steps of scoring. Each of the last three does one piece of work, or returns False."""

    def __init__(self, run_dir: RunDir, run: Run, evaluator: Scorer) -> None:
        self._dir, self._run, self._evaluator = run_dir, run, evaluator
        self._outputs = Ledger(run_dir, "outputs")
        self._answers = Ledger(run_dir, "answers")

    def load_small_datasets(self) -> None:
        """Load datasets until the first responses are published, while engines start.

        Large datasets are loaded when they are scored: loading one here would delay the scores of
        others.
        """
        room = MAX_LOADED_REQUESTS
        spans = [shard.span for shard in self._run.shards]
        for dataset in unscored_datasets(self._dir, self._run):
            if len(self._outputs.unpublished(spans)) < len(spans):
                return
            # An error comes again when the dataset is scored, and is reported then.
            with contextlib.suppress(Exception):
                path = self._dir.requests_index(dataset.name)
                index = _files.read_record(path, DatasetRequests)
                if index.requests > room:
                    continue
                room -= index.requests
                _files.write(self._dir.scoring, dataset.name)
                self._evaluator.load(dataset)

    def write_questions_of_a_shard(self) -> bool:
        """Write the questions of one published shard."""
        unscored = {dataset.name: dataset for dataset in unscored_datasets(self._dir, self._run)}
        for shard in self._run.shards_with_questions():
            if shard.dataset not in unscored:
                continue
            portions = self._run.portions(shard)
            # The last portion is written last: where it is, all are.
            written = self._dir.questions(portions[-1]).exists()
            if written or not self._outputs.is_published(shard.span):
                continue
            dataset = unscored[shard.dataset]
            _files.write(self._dir.scoring, dataset.name)
            try:
                questions = self._evaluator.questions(dataset, self._responses([shard.span]))
                write_questions(self._dir, portions, questions)
            except ProcessEnded:
                raise
            except Exception as error:
                self._write_error(dataset, error)
            return True
        return False

    def estimate_a_dataset(self) -> bool:
        """Write rough scores of one dataset whose slice has all responses and answers."""
        slices = first_signal.slices(self._run)
        if not slices:
            return False
        path = self._dir.first_signal
        known = _files.read_record_if_there(path, FirstSignal) or first_signal.empty(self._run)
        for dataset in unscored_datasets(self._dir, self._run):
            spans = slices.get(dataset.name, [])
            portions = self._portions(spans)
            if known.is_settled(dataset.name) or not self._is_complete(spans, portions):
                continue
            _files.write(self._dir.scoring, dataset.name)
            # Written first, so that a scorer that this kills does not try it again.
            tried = known.with_dataset(dataset.name, first_signal.UNFINISHED, self._age())
            _files.write_record(path, tried)
            found = self._estimate(dataset, spans, portions)
            _files.write_record(path, tried.with_dataset(dataset.name, found, self._age()))
            return True
        return False

    def score_a_dataset(self) -> bool:
        """Write the results of one dataset that has all responses and answers."""
        spans: dict[str, list[Span]] = {}
        for shard in self._run.shards:
            spans.setdefault(shard.dataset, []).append(shard.span)
        for dataset in unscored_datasets(self._dir, self._run):
            mine = spans[dataset.name]
            portions = self._portions(mine)
            if not self._is_complete(mine, portions):
                continue
            _files.write(self._dir.scoring, dataset.name)
            try:
                answers = self._given_answers(portions)
                results = self._evaluator.finish(dataset, self._responses(mine), answers)
                _files.write_record(self._dir.dataset_results(dataset.name), results)
            except ProcessEnded:
                raise
            except Exception as error:
                self._write_error(dataset, error)
            return True
        return False

    def _estimate(
        self, dataset: Dataset, spans: list[Span], portions: list[Span]
    ) -> first_signal.Signal | str:
        """Return the scores of a slice, or the error."""
        try:
            answers = self._given_answers(portions)
            results = self._evaluator.finish_part(dataset, self._responses(spans), answers)
            index = _files.read_record(self._dir.requests_index(dataset.name), DatasetRequests)
            return first_signal.estimate(results, index)
        except ProcessEnded:
            raise
        except Exception as error:
            return _describe(error)

    def _portions(self, spans: list[Span]) -> list[Span]:
        """Return the portions of questions of these shards."""
        wanted = set(spans)
        return [
            portion
            for shard in self._run.shards_with_questions()
            if shard.span in wanted
            for portion in self._run.portions(shard)
        ]

    def _is_complete(self, spans: list[Span], portions: list[Span]) -> bool:
        return not self._outputs.unpublished(spans) and not self._answers.unpublished(portions)

    def _responses(self, spans: list[Span]) -> ResponseFiles:
        return ResponseFiles(tuple(self._dir.published("outputs", span) for span in spans))

    def _given_answers(self, portions: list[Span]) -> AnswerFiles:
        return AnswerFiles(tuple(self._dir.published("answers", portion) for portion in portions))

    def _write_error(self, dataset: Dataset, error: Exception) -> None:
        """Record that a dataset cannot be scored. A task's own code may raise anything."""
        _files.write(self._dir.dataset_error(dataset.name), _describe(error) + "\n")

    def _age(self) -> float:
        """Return the seconds since the run was created."""
        return time.time() - self._run.created


def write_questions(run_dir: RunDir, portions: list[Span], questions: list[Question]) -> None:
    """Write the questions of one shard, dealt to its portions.

    A portion that an earlier scorer has written may be answered already, and stays. Questions of
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
    message = str(error) if isinstance(error, CoordinateError) else traceback.format_exc()
    return message.strip()
