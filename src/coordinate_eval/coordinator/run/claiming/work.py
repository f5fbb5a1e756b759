"""The work of each ledger of a run: its spans, those that can be claimed, and what became of them.

Questions are claimed and answered in portions, each a part of a shard's questions.
"""

import contextlib
from collections.abc import Iterable, Set
from itertools import chain
from typing import NamedTuple

from coordinate_eval import _files
from coordinate_eval.coordinator.run.claiming.claims import Ledger, LedgerName, own_task, whole
from coordinate_eval.coordinator.run.claiming.decided import count_looks, look_span, stopped
from coordinate_eval.coordinator.run.claiming.pullers import LEDGERS_OF, Pullers, works_on
from coordinate_eval.coordinator.run.paths import RunDir
from coordinate_eval.coordinator.run.records import Run
from coordinate_eval.errors import RecordError
from coordinate_eval.records import Answer, Dataset, DatasetRequests, Shard, Span


class Piece(NamedTuple):
    """A piece of work that this process has claimed."""

    ledger: Ledger
    span: Span
    attempt: int


def claim_next(run_dir: RunDir, run: Run, kind: Pullers, owner: str) -> Piece | None:
    """Claim the first piece of work that such a puller can do now; None if no piece is free."""
    for name, spans in claimable(run_dir, run, kind).items():
        ledger = Ledger(run_dir, name)
        for span in spans:
            attempt = ledger.claim(span, owner, own_task())
            if attempt is not None:
                return Piece(ledger, span, attempt)
    return None


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
        case "looks":
            numbers = range(1, count_looks(run) + 1)
            spans = (look_span(run, name, number) for number in numbers for name in run.stages)
            return list(dict.fromkeys(span for span in spans if span is not None))
        case "comparisons":
            looks = range(1, count_looks(run)) if run.against else ()
            return [whole(str(number)) for number in looks]


def all_portions(run: Run) -> list[Span]:
    """Return the portions of all questions: the first signal's first, then the longest metrics'."""
    return [portion for shard in _asking_shards(run) for portion in run.portions(shard)]


def portions_with_questions(run_dir: RunDir, run: Run) -> list[Span]:
    """Return the portions whose questions are written, without those of failed datasets."""
    written: dict[str, frozenset[str]] = {}
    for dataset in run.asks:
        failed = run_dir.dataset_error(dataset).exists()
        folder = run_dir.questions_folder(dataset)
        written[dataset] = frozenset() if failed else _files.names(folder)
    return [span for span in all_portions(run) if f"{span.stem}.jsonl" in written[span.dataset]]


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

    Datasets whose scoring takes longest come first.
    """
    used = stopped(run_dir)  # first: what is withdrawn below may be wanted in full from now on
    unscored = {dataset.name for dataset in unscored_datasets(run_dir, run)}
    shards = [shard for shard in run.shards if shard.dataset in unscored]
    undone = set(Ledger(run_dir, "outputs").unpublished(shard.span for shard in shards))
    asking = [shard for shard in _asking_shards(run) if shard.dataset in unscored]
    portions = {shard.span: run.portions(shard) for shard in asking}
    unanswered = set(Ledger(run_dir, "answers").unpublished(chain(*portions.values())))

    def is_waiting(shard: Shard) -> bool:
        return shard.span in undone or not unanswered.isdisjoint(portions.get(shard.span, ()))

    def complete(shards: list[Shard]) -> list[Span]:
        waiting = {shard.dataset for shard in shards if is_waiting(shard)}
        return [whole(name) for name in {s.dataset: 0 for s in shards} if name not in waiting]

    lost = given_up(run_dir)
    begun: dict[str, int] = {}  # the first item that looks wait for
    for shard in shards if run.stages else ():
        if is_waiting(shard):
            begun[shard.dataset] = min(shard.start, begun.get(shard.dataset, shard.start))
    looks = [
        span
        for span in all_spans(run, "looks")
        if span.dataset not in lost and span.stop <= begun.get(span.dataset, span.stop)
    ]
    return {
        "questions": [portions[shard.span][-1] for shard in asking if shard.span not in undone],
        "looks": looks,
        "comparisons": _comparable(run_dir, run, unscored),
        "estimates": complete([shard for shard in shards if shard.signal]),
        "results": sorted(
            (span for span in complete(shards) if span.dataset not in used),
            key=lambda s: -run.score_seconds.get(s.dataset, 0.0),
        ),
    }


def _comparable(run_dir: RunDir, run: Run, unscored: Set[str]) -> list[Span]:
    """Return the next comparison, if the scores of all datasets are there for it.

    Its bound depends on the comparisons before it, so no two are made at once. Nobody waits for a
    dataset that a judge rates, or that cannot be scored.
    """
    waiting = set(Ledger(run_dir, "looks").unpublished(all_spans(run, "looks")))
    lost = given_up(run_dir)
    names = [d.name for d in run.suite.datasets if d.rubric is None and d.name not in lost]
    following = Ledger(run_dir, "comparisons").unpublished(all_spans(run, "comparisons"))[:1]
    for comparison in following:
        looks = {name: look_span(run, name, int(comparison.dataset)) for name in names}
        if any((look in waiting) if look else (n in unscored) for n, look in looks.items()):
            return []
    return following


def _asking_shards(run: Run) -> list[Shard]:
    """Return the shards with questions: the first signal's first, then the longest metrics'."""
    return sorted(run.shards_with_questions(), key=lambda s: (not s.signal, -s.metric_cpu_seconds))


def unfinished(run_dir: RunDir, run: Run, kind: Pullers) -> list[Span]:
    """Return what such pullers are for and have not done: the spans left of their last ledger."""
    return _left(run_dir, run, kind, LEDGERS_OF[kind][-1])


def work_left(run_dir: RunDir, run: Run, kind: Pullers) -> tuple[int, int]:
    """Return how much work pullers have left, and how often a puller died at its work.

    If both stay the same, nothing was done, and nothing was found out.
    """
    left = deaths = 0
    for name in LEDGERS_OF[kind]:
        spans = _left(run_dir, run, kind, name)
        left += len(spans)
        deaths += Ledger(run_dir, name).deaths_while_running(spans).total()
    return left, deaths


def _left(run_dir: RunDir, run: Run, kind: Pullers, name: LedgerName) -> list[Span]:
    mine = [span for span in all_spans(run, name) if works_on(run, kind, name, span.dataset)]
    return Ledger(run_dir, name).unpublished(mine)


def given_up(run_dir: RunDir) -> set[str]:
    """Return the datasets that cannot be scored: further responses to them are no use."""
    names = _files.names(run_dir.results_folder)
    return {name.removesuffix(".error") for name in names if name.endswith(".error")}


def unbuildable(run_dir: RunDir) -> list[str]:
    """Return the datasets whose requests cannot be built, in alphabetical order."""
    names = _files.names(run_dir.requests_folder)
    return sorted(name.removesuffix(".error") for name in names if name.endswith(".error"))


def unscored_datasets(run_dir: RunDir, run: Run) -> list[Dataset]:
    """Return the datasets with neither results nor an error."""
    left = Ledger(run_dir, "results").unpublished(all_spans(run, "results"))
    names = {span.dataset for span in left}
    return [dataset for dataset in run.suite.datasets if dataset.name in names]


def request_indexes(run_dir: RunDir, run: Run) -> dict[str, DatasetRequests]:
    """Return the indexes of the datasets' requests, without any that cannot be read."""
    found = {}
    for dataset in run.suite.datasets:
        with contextlib.suppress(RecordError):
            path = run_dir.requests_index(dataset.name)
            found[dataset.name] = _files.read_record(path, DatasetRequests)
    return found


def recorded_answers(run_dir: RunDir, datasets: Iterable[str]) -> dict[str, Answer]:
    """Return the answers about some datasets so far, by question, from all attempts."""
    found: dict[str, Answer] = {}
    for folder in (run_dir.published_folder("answers", dataset) for dataset in datasets):
        for name in sorted(_files.names(folder)):
            if name.endswith((".jsonl", ".part")) and not name.startswith("."):
                for line in _files.whole_lines(folder / name):
                    with contextlib.suppress(ValueError):
                        answer = Answer.model_validate_json(line)
                        found.setdefault(answer.id, answer)
    return found
