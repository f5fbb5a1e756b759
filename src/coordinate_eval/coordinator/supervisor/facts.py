"""Reading the run directory and one poll into `Facts`."""

from collections.abc import Iterable, Mapping, Sequence, Set

from coordinate_eval import _files
from coordinate_eval.cluster import State, TaskStatus
from coordinate_eval.coordinator.report.failures import read_trials_of, recurring_failure
from coordinate_eval.coordinator.report.results import unbuildable, unscored_datasets
from coordinate_eval.coordinator.run import jobs
from coordinate_eval.coordinator.run.claiming.claims import LEDGERS, Ledger, LedgerName
from coordinate_eval.coordinator.run.claiming.pullers import Pullers
from coordinate_eval.coordinator.run.claiming.work import all_spans, claimable
from coordinate_eval.coordinator.run.jobs import read_submitted
from coordinate_eval.coordinator.run.paths import RunDir
from coordinate_eval.coordinator.run.records import (
    JudgeProgress,
    Round,
    Run,
    StageProgress,
    TrialProgress,
)
from coordinate_eval.coordinator.run.rounds import read_rounds
from coordinate_eval.coordinator.supervisor.decisions.values import Facts, NodeKey
from coordinate_eval.coordinator.supervisor.engine_pace import pace, ready_seconds
from coordinate_eval.records import Span

MAX_SEARCHING_ROUNDS = 6
"""Rounds without any response in which items that end engines are looked for: about four do."""


@_files.one_look()
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
    # Of a dataset that is scored or given up nothing is left to be done.
    left = {dataset.name for dataset in unscored_datasets(run_dir, run)}
    spans = [shard.span for shard in run.shards if shard.dataset in left]
    outputs = Ledger(run_dir, "outputs")
    unpublished = outputs.unpublished(spans)
    rounds = list(read_rounds(run_dir))
    released = {
        (round_.number, node.name)
        for round_ in rounds
        for node in round_.nodes
        if run_dir.released(round_.number, node.name).exists()
    }
    going_on = [round_ for round_ in rounds if _goes_on(run, round_, released, tasks)]
    stages: dict[NodeKey, StageProgress] = {}
    for round_ in going_on:
        for node in round_.nodes:
            path = run_dir.stage(round_.number, node.name)
            stage = _files.read_record_if_there(path, StageProgress)
            if stage is not None:
                stages[round_.number, node.name] = stage
    trials = {round_.number: list(read_trials_of(run_dir, round_)) for round_ in rounds}
    open_claims = [
        (name, claim)
        for name in LEDGERS
        for claim in Ledger(run_dir, name).open_claims(
            span for span in all_spans(run, name) if span.dataset in left
        )
    ]
    in_work = [claim.span for name, claim in open_claims if name == "outputs"]
    return Facts(
        now=now,
        cancelled=run_dir.cancelled.exists(),
        rounds=going_on,
        asked=rounds[-1].created if rounds else 0.0,
        submitted={s.job.name: s for s in read_submitted(run_dir)},
        tasks=tasks,
        stages=stages,
        released=frozenset(released),
        unpublished=unpublished,
        claimable={
            "outputs": outputs.claimable(unpublished),
            **_claimable(run_dir, run),
        },
        open_claims=open_claims,
        unbuilt=len(Ledger(run_dir, "requests").unpublished(all_spans(run, "requests"))),
        unbuildable=unbuildable(run_dir),
        unscored=len(left),
        idle_rounds=count_idle_rounds(run_dir, run, rounds, now),
        idle_arrays=idle_arrays,
        cores=cores,
        fruitless_rounds=_count_fruitless(trials),
        most_trials=sum(node.trials for round_ in rounds[:1] for node in round_.nodes),
        ready_seconds=ready_seconds(run, trials, stages),
        pace=pace(run, trials, unpublished, in_work),
        recurring=recurring_failure(run_dir, rounds),
        judge=_files.read_record_if_there(run_dir.judge, JudgeProgress),
        trials={t.trial: t for round_ in going_on for t in trials[round_.number]},
        troubles=frozenset(
            name.removesuffix(".json") for name in _files.names(run_dir.troubles_folder)
        ),
    )


def _goes_on(run: Run, round_: Round, released: Set[NodeKey], tasks: list[TaskStatus]) -> bool:
    """Return whether a round has jobs, or may get some: every node is released at its end."""
    alive = {task.name for task in tasks if task.state is not State.ENDED}
    return any(
        (round_.number, node.name) not in released
        or jobs.trials_name(run, round_.number, node.name) in alive
        for node in round_.nodes
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

    A round that began while an earlier one's trials still answered does not count, nor do those
    before it. Nor does a round of which no trial began and which lasted `patience_seconds`: it
    waited in the queue, and nothing failed. Nor do a few in which items that end engines were
    looked for.
    """
    patience = run.settings.supervisor.patience_seconds
    answering = [
        _files.modified(run_dir.trial(trial.trial))
        for round_ in rounds
        for trial in read_trials_of(run_dir, round_)
        if trial.responses
    ]
    since = max(_files.modified(run_dir.resumed), *answering, 0.0)
    idle, searching, end = 0, 0, now
    for round_ in reversed(rounds):
        created = _files.modified(run_dir.round(round_.number))
        if created < since:
            break
        trials = list(read_trials_of(run_dir, round_))
        if any(trial.responses for trial in trials):
            break
        searched = bool(answering) and any(trial.suspects for trial in trials)
        searching += searched
        if not searched or searching > MAX_SEARCHING_ROUNDS:
            idle += bool(trials) or end - round_.created < patience
        end = round_.created
    return idle


def _count_fruitless(trials: Mapping[int, Sequence[TrialProgress]]) -> int:
    """Return how many of the last rounds in a row have no trial that has answered."""
    count = 0
    for number in sorted(trials, reverse=True):
        if any(trial.responses for trial in trials[number]):
            break
        count += 1
    return count


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
