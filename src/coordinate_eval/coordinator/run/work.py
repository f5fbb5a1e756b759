"""The work of each ledger of a run: its spans, and those that can be claimed."""

from coordinate_eval.coordinator.run.claims import Ledger, LedgerName, whole
from coordinate_eval.coordinator.run.paths import RunDir
from coordinate_eval.coordinator.run.portions import all_portions, portions_with_questions
from coordinate_eval.coordinator.run.pullers import LEDGERS_OF, Pullers
from coordinate_eval.coordinator.run.records import Run
from coordinate_eval.records import Span


def all_spans(run: Run, ledger: LedgerName) -> list[Span]:
    """Return all spans of a ledger, done or not."""
    match ledger:
        case "outputs":
            return [shard.span for shard in run.shards]
        case "answers":
            return all_portions(run)
        case "questions":
            return [run.portions(shard)[-1] for shard in run.shards_with_questions()]
        case "requests" | "results":
            return [whole(dataset.name) for dataset in run.suite.datasets]
        case "estimates":
            return [whole(name) for name in {s.dataset: 0 for s in run.shards if s.signal}]


def claimable(run_dir: RunDir, run: Run, ledger: LedgerName) -> list[Span]:
    """Return the spans that a puller can claim now: what they are made of is there."""
    ready = portions_with_questions(run_dir, run) if ledger == "answers" else all_spans(run, ledger)
    return Ledger(run_dir, ledger).claimable(ready)


def work_left(run_dir: RunDir, run: Run, kind: Pullers) -> tuple[int, int]:
    """Return how much work pullers have left, and how often one died at what it was running.

    If both stay the same, nothing was done, and nothing was found out.
    """
    left = deaths = 0
    for ledger in (Ledger(run_dir, name) for name in LEDGERS_OF[kind]):
        unpublished = ledger.unpublished(all_spans(run, ledger.name))
        left += len(unpublished)
        deaths += ledger.deaths_while_running(unpublished).total()
    return left, deaths
