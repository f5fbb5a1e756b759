"""The work of each ledger of a run: its spans, and those that can be claimed."""

from itertools import chain

from coordinate_eval.coordinator.run.claiming.claims import Ledger, LedgerName, whole
from coordinate_eval.coordinator.run.claiming.portions import all_portions, portions_with_questions
from coordinate_eval.coordinator.run.claiming.pullers import LEDGERS_OF, Pullers, works_on
from coordinate_eval.coordinator.run.paths import RunDir
from coordinate_eval.coordinator.run.records import Run
from coordinate_eval.records import Shard, Span


def all_spans(run: Run, ledger: LedgerName) -> list[Span]:
    """Return all spans of a ledger, done or not."""
    match ledger:
        case "outputs":
            return [shard.span for shard in run.shards]
        case "answers":
            return all_portions(run)
        case "questions":
            return [run.portions(shard)[-1] for shard in run.shards_with_questions()]
        case "requests":
            # All of them are there when the run is planned.
            return [] if run.planned else [whole(dataset.name) for dataset in run.suite.datasets]
        case "results":
            return [whole(dataset.name) for dataset in run.suite.datasets]
        case "estimates":
            return [whole(name) for name in {s.dataset: 0 for s in run.shards if s.signal}]


def claimable(run_dir: RunDir, run: Run, kind: Pullers) -> dict[LedgerName, list[Span]]:
    """Return the spans that a puller can claim now, by ledger: what they are made of is there."""
    ready: dict[LedgerName, list[Span]]
    match kind:
        case Pullers.BUILD:
            ready = {"requests": all_spans(run, "requests")}
        case Pullers.METRIC | Pullers.JUDGE:
            written = portions_with_questions(run_dir, run)
            ready = {"answers": [s for s in written if works_on(run, kind, "answers", s.dataset)]}
        case Pullers.SCORE:
            ready = _scorable(run_dir, run)
    return {name: Ledger(run_dir, name).claimable(spans) for name, spans in ready.items()}


def _scorable(run_dir: RunDir, run: Run) -> dict[LedgerName, list[Span]]:
    """Return the questions, estimates and results whose responses and answers are all there.

    Questions of the first signal come first, then those of the longest metrics; of datasets those
    come first whose scoring takes longest.
    """
    left = Ledger(run_dir, "results").unpublished(all_spans(run, "results"))
    unscored = {span.dataset for span in left}
    shards = [shard for shard in run.shards if shard.dataset in unscored]
    undone = set(Ledger(run_dir, "outputs").unpublished(shard.span for shard in shards))
    asking = [s for s in run.shards_with_questions() if s.dataset in unscored]
    portions = {shard.span: run.portions(shard) for shard in asking}
    unanswered = set(Ledger(run_dir, "answers").unpublished(chain(*portions.values())))

    def complete(shards: list[Shard]) -> list[Span]:
        waiting = {
            s.dataset
            for s in shards
            if s.span in undone or not unanswered.isdisjoint(portions.get(s.span, ()))
        }
        return [whole(name) for name in {s.dataset: 0 for s in shards} if name not in waiting]

    asking.sort(key=lambda shard: (not shard.signal, -shard.metric_cpu_seconds))
    return {
        "questions": [portions[shard.span][-1] for shard in asking if shard.span not in undone],
        "estimates": complete([shard for shard in shards if shard.signal]),
        "results": sorted(complete(shards), key=lambda s: -run.score_seconds.get(s.dataset, 0.0)),
    }


def work_left(run_dir: RunDir, run: Run, kind: Pullers) -> tuple[int, int]:
    """Return how much work pullers have left, and how often one died at what it was running.

    If both stay the same, nothing was done, and nothing was found out.
    """
    left = deaths = 0
    for ledger in (Ledger(run_dir, name) for name in LEDGERS_OF[kind]):
        spans = all_spans(run, ledger.name)
        mine = [span for span in spans if works_on(run, kind, ledger.name, span.dataset)]
        unpublished = ledger.unpublished(mine)
        left += len(unpublished)
        deaths += ledger.deaths_while_running(unpublished).total()
    return left, deaths
