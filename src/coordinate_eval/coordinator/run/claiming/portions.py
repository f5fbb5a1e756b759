"""Portions: the spans of questions that are claimed and answered together."""

from coordinate_eval import _files
from coordinate_eval.coordinator.run.claiming.claims import Ledger
from coordinate_eval.coordinator.run.paths import RunDir
from coordinate_eval.coordinator.run.records import Run
from coordinate_eval.records import Span


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
