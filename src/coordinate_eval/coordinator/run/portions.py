"""Portions: spans of questions that metric jobs claim and answer."""

from coordinate_eval import _files
from coordinate_eval.coordinator.run.claims import Ledger
from coordinate_eval.coordinator.run.paths import RunDir
from coordinate_eval.coordinator.run.records import Run
from coordinate_eval.records import Span


def asking(run: Run) -> list[Span]:
    """Portions of all questions, the first signal's first, then those of the longest metrics."""
    shards = sorted(run.asking(), key=lambda s: (not s.signal, -s.metric_cpu_seconds))
    return [span for shard in shards for span in run.portions(shard)]


def asked(run_dir: RunDir, run: Run) -> list[Span]:
    """Those whose questions are written."""
    there: dict[str, set[str]] = {}
    for dataset in run.asks:
        failed = run_dir.dataset_error(dataset).exists()
        folder = run_dir.questions(Span(dataset, 0, 0)).parent
        there[dataset] = set() if failed else _files.names(folder)
    return [span for span in asking(run) if f"{span.stem}.jsonl" in there[span.dataset]]


def unanswered(run_dir: RunDir, run: Run) -> list[Span]:
    """Those whose answers are not all there, whether asked yet or not."""
    return Ledger(run_dir, "answers").undone(asking(run))
