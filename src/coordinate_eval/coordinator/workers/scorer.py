"""The scorer: a child of the supervisor in which the harness lives.

`coordinate-eval _score RUN`. It loads small datasets while engines start. For each shard whose
responses are published it writes the questions of its metric, portion by portion, the last one
last, for each dataset whose slice of the first signal has all responses and answers its rough
scores, and for each that has all of them its results. It is a process of its own so that a task's
own code, or the harness, can fail or hang without harm to the supervision (see
`supervisor.scorer_process`). It ends with its parent.
"""

import contextlib
import itertools
import os
import time
import traceback
from collections.abc import Iterator

from coordinate_eval import _files
from coordinate_eval.coordinator.run import first_signal
from coordinate_eval.coordinator.run.claims import Ledger
from coordinate_eval.coordinator.run.first_signal import FirstSignal
from coordinate_eval.coordinator.run.paths import RunDir
from coordinate_eval.coordinator.run.portions import all_portions
from coordinate_eval.coordinator.run.records import Run
from coordinate_eval.coordinator.run.results import unscored_datasets
from coordinate_eval.errors import CoordinateError
from coordinate_eval.evaluators.base import Evaluator, harness_evaluator
from coordinate_eval.records import (
    Answer,
    Dataset,
    DatasetRequests,
    Question,
    Response,
    Span,
)

MOST_LOADED_REQUESTS = 10_000
"""Requests of the datasets loaded before any response is there: about a minute's work."""


def run_scorer(run_dir: RunDir) -> int:
    """Score until every dataset has its results or its error; the exit status."""
    run = _files.read_record(run_dir.run, Run)
    os.chdir(run.folder)
    evaluator = harness_evaluator(
        run_dir.model, run.suite, run.settings.engine.name, run.max_length
    )
    _load_small(run_dir, evaluator, run)
    idle = False
    while unscored_datasets(run_dir, run):
        asked = _ask(run_dir, evaluator, run)
        scored = _signal(run_dir, evaluator, run) or _finish(run_dir, evaluator, run)
        if not asked and not scored:
            if not idle:
                _files.write(run_dir.scoring, "")
            time.sleep(0.5)
        idle = not asked and not scored
    return 0


def _load_small(run_dir: RunDir, evaluator: Evaluator, run: Run) -> None:
    """Load datasets until the first responses are published, while engines start.

    Large datasets are left to be loaded when they are scored: loading one of them would delay the
    scores of others.
    """
    ledger, room = Ledger(run_dir, "outputs"), MOST_LOADED_REQUESTS
    spans = [shard.span for shard in run.shards]
    for dataset in unscored_datasets(run_dir, run):
        if len(ledger.unpublished(spans)) < len(spans):
            return
        index = _files.read_record(run_dir.requests_index(dataset.name), DatasetRequests)
        if index.requests > room:
            continue
        room -= index.requests
        _files.write(run_dir.scoring, dataset.name)
        # What is wrong with it is told when it is scored.
        with contextlib.suppress(Exception):
            evaluator.load(dataset)


def _ask(run_dir: RunDir, evaluator: Evaluator, run: Run) -> bool:
    """Write the questions of one published shard; False when there is none to write."""
    ledger = Ledger(run_dir, "outputs")
    failed = {d.name for d in run.suite.datasets} - {
        d.name for d in unscored_datasets(run_dir, run)
    }
    for shard in run.shards_with_questions():
        if shard.dataset in failed:
            continue
        portions = run.portions(shard)
        # The last one is written last.
        if run_dir.questions(portions[-1]).exists() or not ledger.is_published(shard.span):
            continue
        dataset = next(d for d in run.suite.datasets if d.name == shard.dataset)
        _files.write(run_dir.scoring, dataset.name)
        try:
            questions = evaluator.questions(dataset, _responses(run_dir, [shard.span]))
            write_questions(run_dir, portions, questions)
        except Exception as error:
            _give_up(run_dir, dataset, error)
        return True
    return False


def write_questions(run_dir: RunDir, portions: list[Span], questions: list[Question]) -> None:
    """Deal questions to portions, always in the same way: what another scorer has written may be
    answered already, and stays. Where that one was asked other questions, its share is added to
    the last portion.
    """
    ordered = sorted(questions, key=lambda question: question.id)
    edges = [len(ordered) * n // len(portions) for n in range(len(portions) + 1)]
    added: list[Question] = []
    for portion, (start, stop) in zip(portions, itertools.pairwise(edges), strict=True):
        path, mine = run_dir.questions(portion), ordered[start:stop]
        if portion == portions[-1]:
            mine += added
        if not _files.create(path, "".join(question.line() for question in mine)):
            there = {Question.model_validate_json(line).id for line in _files.lines(path)}
            added += [question for question in mine if question.id not in there]


def _signal(run_dir: RunDir, evaluator: Evaluator, run: Run) -> bool:
    """Estimate one dataset whose slice has everything; False when none has."""
    slices = first_signal.slices(run)
    if not slices:
        return False
    path = run_dir.first_signal
    known = _files.read_record_if_there(path, FirstSignal) or first_signal.begun(run)
    for dataset in unscored_datasets(run_dir, run):
        mine = slices.get(dataset.name, [])
        if known.tried(dataset.name) or Ledger(run_dir, "outputs").unpublished(mine):
            continue
        asked = [p for s in run.shards_with_questions() if s.span in mine for p in run.portions(s)]
        if Ledger(run_dir, "answers").unpublished(asked):
            continue
        _files.write(run_dir.scoring, dataset.name)
        # Said first, so that a scorer that this ends does not try it again.
        began = known.with_dataset(dataset.name, first_signal.UNFINISHED, _age(run))
        _files.write_record(path, began)
        try:
            answers = {a.id: a for a in _answers(run_dir, asked)}
            results = evaluator.finish_part(dataset, _responses(run_dir, mine), answers)
            index = _files.read_record(run_dir.requests_index(dataset.name), DatasetRequests)
            found: first_signal.Signal | str = first_signal.signal(results, index)
        except Exception as error:
            found = _in_words(error)
        _files.write_record(path, began.with_dataset(dataset.name, found, _age(run)))
        return True
    return False


def _finish(run_dir: RunDir, evaluator: Evaluator, run: Run) -> bool:
    """Score one dataset that has everything; False when none has."""
    spans: dict[str, list[Span]] = {}
    for shard in run.shards:
        spans.setdefault(shard.dataset, []).append(shard.span)
    portions: dict[str, list[Span]] = {name: [] for name in spans}
    for span in all_portions(run):
        portions[span.dataset].append(span)
    for dataset in unscored_datasets(run_dir, run):
        mine, asked = spans[dataset.name], portions[dataset.name]
        if Ledger(run_dir, "outputs").unpublished(mine) or Ledger(run_dir, "answers").unpublished(
            asked
        ):
            continue
        _files.write(run_dir.scoring, dataset.name)
        try:
            answers = {a.id: a for a in _answers(run_dir, asked)}
            results = evaluator.finish(dataset, _responses(run_dir, mine), answers)
            _files.write_record(run_dir.dataset_results(dataset.name), results)
        except Exception as error:
            _give_up(run_dir, dataset, error)
        return True
    return False


def _responses(run_dir: RunDir, spans: list[Span]) -> Iterator[Response]:
    for span in spans:
        for line in _files.lines(run_dir.published("outputs", span)):
            yield Response.model_validate_json(line)


def _answers(run_dir: RunDir, spans: list[Span]) -> Iterator[Answer]:
    for span in spans:
        for line in _files.lines(run_dir.published("answers", span)):
            yield Answer.model_validate_json(line)


def _give_up(run_dir: RunDir, dataset: Dataset, error: Exception) -> None:
    """A task's own code may raise anything: the dataset fails, the others go on."""
    _files.write(run_dir.dataset_error(dataset.name), _in_words(error) + "\n")


def _in_words(error: Exception) -> str:
    message = str(error) if isinstance(error, CoordinateError) else traceback.format_exc()
    return message.strip()


def _age(run: Run) -> float:
    """Seconds since the run was created."""
    return time.time() - run.created
