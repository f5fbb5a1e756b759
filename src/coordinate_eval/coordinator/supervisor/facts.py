"""What is the case: the run directory and one poll, read into `Facts`."""

from coordinate_eval import _files
from coordinate_eval.coordinator.cluster import TaskStatus
from coordinate_eval.coordinator.run.claims import Ledger
from coordinate_eval.coordinator.run.failures import read_trials, recurring_failure
from coordinate_eval.coordinator.run.jobs import read_submitted
from coordinate_eval.coordinator.run.paths import RunDir
from coordinate_eval.coordinator.run.portions import all_portions, portions_with_questions
from coordinate_eval.coordinator.run.records import (
    Round,
    Run,
    StageProgress,
)
from coordinate_eval.coordinator.run.results import unscored_datasets
from coordinate_eval.coordinator.run.rounds import read_rounds
from coordinate_eval.coordinator.supervisor.decide import Facts
from coordinate_eval.records import Span


def gather(
    run_dir: RunDir, run: Run, tasks: list[TaskStatus], now: float, idle_arrays: int
) -> Facts:
    """Facts as of a poll made just before; claims are read after it, so no living owner of one
    can be missing from the poll.
    """
    spans = [shard.span for shard in run.shards]
    outputs, answers = Ledger(run_dir, "outputs"), Ledger(run_dir, "answers")
    unpublished = outputs.unpublished(spans)
    rounds = list(read_rounds(run_dir))
    current = rounds[-1] if rounds else None
    questions = portions_with_questions(run_dir, run)
    stages: dict[str, StageProgress] = {}
    released: set[str] = set()
    for node in current.nodes if current else []:
        number = current.number if current else 0
        stage = _files.read_record_if_there(run_dir.stage(number, node.name), StageProgress)
        if stage is not None:
            stages[node.name] = stage
        if run_dir.released(number, node.name).exists():
            released.add(node.name)
    return Facts(
        now=now,
        cancelled=run_dir.cancelled.exists(),
        round=current,
        submitted={s.job.name: s for s in read_submitted(run_dir)},
        tasks=tasks,
        stages=stages,
        released=frozenset(released),
        unpublished=unpublished,
        claimable=outputs.claimable(unpublished),
        open_claims=[
            *(("outputs", claim) for claim in outputs.open_claims(unpublished)),
            *(("answers", claim) for claim in answers.open_claims(questions)),
        ],
        answerable=answers.claimable(questions),
        unscored=len(unscored_datasets(run_dir, run)),
        scorable=scorable(run_dir, run, unpublished),
        idle_rounds=idle_rounds(run_dir, run, rounds, now),
        idle_arrays=idle_arrays,
        recurring=recurring_failure(run_dir, rounds),
    )


def scorable(run_dir: RunDir, run: Run, unpublished: list[Span]) -> int:
    """How many datasets or spans only the scorer can bring further."""
    waiting = {span.dataset for span in unpublished}
    unanswered = {s.dataset for s in Ledger(run_dir, "answers").unpublished(all_portions(run))}
    unasked = {
        shard.dataset
        for shard in run.shards_with_questions()
        if not run_dir.questions(run.portions(shard)[-1]).exists()
    }
    return sum(
        1
        for dataset in unscored_datasets(run_dir, run)
        if dataset.name not in waiting
        and (dataset.name not in unanswered or dataset.name in unasked)
    )


def idle_rounds(run_dir: RunDir, run: Run, rounds: list[Round], now: float) -> int:
    """How many of the last rounds answered nothing, since the run was last resumed.

    Those that waited in the queue until patience ended are no sign of a fault and do not count;
    one that ended sooner, or whose trials began, does.
    """
    patience = run.settings.supervisor.patience_seconds
    since = _files.modified(run_dir.resumed)
    idle, end = 0, now
    for round_ in reversed(rounds):
        trials = list(read_trials(run_dir, round_))
        if round_.created < since or any(trial.responses for trial in trials):
            break
        idle += bool(trials) or end - round_.created < patience
        end = round_.created
    return idle


def refresh(run_dir: RunDir, spans: list[Span]) -> None:
    """Make this machine see what others have put beside these spans: a change of one's own to a
    folder ends what a network file system remembers of it.
    """
    for ledger in ("outputs", "answers"):
        for span in {span.dataset: span for span in spans}.values():
            for folder in (
                run_dir.published_folder(ledger, span.dataset),
                run_dir.claims_folder(ledger, span.dataset),
            ):
                _files.touch(folder)
