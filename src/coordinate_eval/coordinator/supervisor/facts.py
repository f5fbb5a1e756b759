"""Reading the run directory and one poll into `Facts`."""

from collections.abc import Iterable, Mapping

from coordinate_eval import _files
from coordinate_eval.cluster import TaskStatus
from coordinate_eval.coordinator.report.failures import read_trials_of, recurring_failure
from coordinate_eval.coordinator.report.results import given_up, unbuildable, unscored_datasets
from coordinate_eval.coordinator.run.claims import LEDGERS, Ledger, LedgerName
from coordinate_eval.coordinator.run.jobs import read_submitted
from coordinate_eval.coordinator.run.paths import RunDir
from coordinate_eval.coordinator.run.pullers import Pullers
from coordinate_eval.coordinator.run.records import JudgeProgress, Round, Run, StageProgress
from coordinate_eval.coordinator.run.rounds import read_rounds
from coordinate_eval.coordinator.run.work import all_spans, claimable
from coordinate_eval.coordinator.supervisor.decide import Facts
from coordinate_eval.records import Span


def gather_facts(
    run_dir: RunDir,
    run: Run,
    tasks: list[TaskStatus],
    now: float,
    idle_arrays: Mapping[Pullers, int],
    cores: int | None = None,
) -> Facts:
    """Return the facts after a poll that was made just before.

    Claims must be read after the poll: then no living owner of a claim is missing from it.
    """
    lost = given_up(run_dir)
    spans = [shard.span for shard in run.shards if shard.dataset not in lost]
    outputs = Ledger(run_dir, "outputs")
    unpublished = outputs.unpublished(spans)
    rounds = list(read_rounds(run_dir))
    current = rounds[-1] if rounds else None
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
        claimable={
            "outputs": outputs.claimable(unpublished),
            **_claimable(run_dir, run),
        },
        open_claims=[
            (name, claim)
            for name in LEDGERS
            for claim in Ledger(run_dir, name).open_claims(all_spans(run, name))
            if claim.span.dataset not in lost
        ],
        unbuilt=len(Ledger(run_dir, "requests").unpublished(all_spans(run, "requests"))),
        unbuildable=unbuildable(run_dir),
        unscored=len(unscored_datasets(run_dir, run)),
        idle_rounds=count_idle_rounds(run_dir, run, rounds, now),
        idle_arrays=idle_arrays,
        cores=cores,
        recurring=recurring_failure(run_dir, rounds),
        judge=_files.read_record_if_there(run_dir.judge, JudgeProgress),
    )


def _claimable(run_dir: RunDir, run: Run) -> dict[LedgerName, list[Span]]:
    """Return what pullers can claim now, by ledger."""
    found: dict[LedgerName, list[Span]] = {}
    for kind in Pullers:
        for name, spans in claimable(run_dir, run, kind).items():
            found.setdefault(name, []).extend(spans)
    return found


def count_idle_rounds(run_dir: RunDir, run: Run, rounds: list[Round], now: float) -> int:
    """Return how many of the last rounds in a row, since the last resume, brought no response.

    A round does not count if none of its trials began and it lasted `patience_seconds`: it waited
    in the queue, and nothing failed.
    """
    patience = run.settings.supervisor.patience_seconds
    since = _files.modified(run_dir.resumed)
    idle, end = 0, now
    for round_ in reversed(rounds):
        trials = list(read_trials_of(run_dir, round_))
        created = _files.modified(run_dir.round(round_.number))
        if created < since or any(trial.responses for trial in trials):
            break
        idle += bool(trials) or end - round_.created < patience
        end = round_.created
    return idle


def count_short_rounds(run_dir: RunDir, run: Run, rounds: list[Round], now: float) -> int:
    """Return how many of the last rounds in a row perhaps were too short for a response.

    It is 0 if all trials of the last round ended with an error.
    """
    states = {trial.state for round_ in rounds[-1:] for trial in read_trials_of(run_dir, round_)}
    return count_idle_rounds(run_dir, run, rounds, now) if states - {"failed"} else 0


def refresh_listings(run_dir: RunDir, datasets: Iterable[str]) -> None:
    """Make a network file system list the folders of these datasets afresh.

    A change that this machine makes to a folder drops what its client remembers of it.
    """
    for ledger in (Ledger(run_dir, name) for name in LEDGERS):
        for dataset in datasets:
            for folder in (ledger.folder(dataset), run_dir.claims_folder(ledger.name, dataset)):
                _files.touch(folder)
