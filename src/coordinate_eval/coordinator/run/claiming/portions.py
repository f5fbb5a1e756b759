"""Portions: the spans of questions that are claimed and answered together."""

import contextlib

from coordinate_eval import _files
from coordinate_eval.coordinator.run.claiming.claims import Ledger
from coordinate_eval.coordinator.run.paths import RunDir
from coordinate_eval.coordinator.run.records import Run
from coordinate_eval.records import Answer, Span


def all_portions(run: Run) -> list[Span]:
    """Return the portions of all questions: the first signal's first, then the longest metrics'."""
    shards = sorted(
        run.shards_with_questions(), key=lambda s: (not s.signal, -s.metric_cpu_seconds)
    )
    return [portion for shard in shards for portion in run.portions(shard)]


def portions_with_questions(run_dir: RunDir, run: Run) -> list[Span]:
    """Return the portions whose questions are written, without those of failed datasets."""
    written: dict[str, frozenset[str]] = {}
    for dataset in run.asks:
        failed = run_dir.dataset_error(dataset).exists()
        folder = run_dir.questions_folder(dataset)
        written[dataset] = frozenset() if failed else _files.names(folder)
    return [span for span in all_portions(run) if f"{span.stem}.jsonl" in written[span.dataset]]


def unanswered_portions(run_dir: RunDir, run: Run, *, judged: bool) -> list[Span]:
    """Return the portions whose answers are not published, with or without written questions.

    They are those of questions to a judge, or those of all others.
    """
    mine = [span for span in all_portions(run) if (span.dataset in run.judged) == judged]
    return Ledger(run_dir, "answers").unpublished(mine)


def recorded_answers(run_dir: RunDir, run: Run) -> dict[str, Answer]:
    """Return the answers of the run's judge so far by question, those of all attempts."""
    found: dict[str, Answer] = {}
    for dataset in {span.dataset for span in all_portions(run) if span.dataset in run.judged}:
        found = recorded_answers_about(run_dir, dataset) | found
    return found


def recorded_answers_about(run_dir: RunDir, dataset: str) -> dict[str, Answer]:
    """Return the answers about a dataset so far by question, those of all attempts."""
    found: dict[str, Answer] = {}
    folder = run_dir.published_folder("answers", dataset)
    for name in sorted(_files.names(folder)):
        if name.endswith((".jsonl", ".part")) and not name.startswith("."):
            for line in _files.whole_lines(folder / name):
                with contextlib.suppress(ValueError):
                    answer = Answer.model_validate_json(line)
                    found.setdefault(answer.id, answer)
    return found
