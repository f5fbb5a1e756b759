"""The facts of a run at a poll: its files, the scheduler's answer, and the pace of its engines."""

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import replace
from statistics import median

from coordinate_eval import _files
from coordinate_eval.clusters.protocol import State, TaskStatus
from coordinate_eval.coordinator.incidents.incident import read_incidents
from coordinate_eval.coordinator.incidents.observe import (
    dead_keepers,
    dead_pullers,
    failed_jobs,
    kinds_that_worked,
    recorded,
    silent_ends,
)
from coordinate_eval.coordinator.incidents.remedies import count_idle_rounds
from coordinate_eval.coordinator.run import jobs, lease
from coordinate_eval.coordinator.run.claiming.claims import LEDGERS, Ledger, LedgerName
from coordinate_eval.coordinator.run.claiming.decided import without_withdrawn
from coordinate_eval.coordinator.run.claiming.pullers import Pullers
from coordinate_eval.coordinator.run.claiming.work import (
    all_spans,
    claimable,
    unbuildable,
    unscored_datasets,
)
from coordinate_eval.coordinator.run.jobs import read_submitted
from coordinate_eval.coordinator.run.measurements import measured_pace
from coordinate_eval.coordinator.run.paths import RunDir
from coordinate_eval.coordinator.run.records import (
    JudgeProgress,
    Round,
    Run,
    StageProgress,
    TrialProgress,
)
from coordinate_eval.coordinator.run.rounds import read_rounds, read_trials_of
from coordinate_eval.coordinator.supervisor.values import Facts, NodeKey
from coordinate_eval.records import Span


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
    found = Facts(
        now=now,
        tasks=tasks,
        submitted={s.job.name: s for s in read_submitted(run_dir)},
        cancelled=run_dir.cancelled.exists(),
        idle_arrays=idle_arrays,
        cores=cores,
        judge=_files.read_record_if_there(run_dir.judge, JudgeProgress),
    )
    return _with_troubles(run_dir, run, _with_rounds(run_dir, run, _with_work(run_dir, run, found)))


def _with_work(run_dir: RunDir, run: Run, found: Facts) -> Facts:
    """Add what is left of the work. Of a dataset that is scored or given up nothing is."""
    left = {dataset.name for dataset in unscored_datasets(run_dir, run)}
    outputs = Ledger(run_dir, "outputs")
    unpublished = outputs.unpublished(s.span for s in run.shards if s.dataset in left)
    return replace(
        found,
        unpublished=unpublished,
        claimable={"outputs": outputs.claimable(unpublished), **_claimable(run_dir, run)},
        open_claims=[
            (name, claim)
            for name in LEDGERS
            for claim in Ledger(run_dir, name).open_claims(
                span
                for span in all_spans(run, name)
                if span.dataset in left or name in ("looks", "comparisons")
            )
        ],
        claims_with_second_attempt=outputs.claims_with_second_attempt(unpublished),
        unbuilt=len(Ledger(run_dir, "requests").unpublished(all_spans(run, "requests"))),
        unbuildable=unbuildable(run_dir),
        unscored=len(left),
        deleted=bool(unpublished or not run.planned) and lease.is_deleted(run),
    )


def _with_rounds(run_dir: RunDir, run: Run, found: Facts) -> Facts:
    """Add the rounds that go on, and what came of all of them."""
    rounds = list(read_rounds(run_dir))
    released = frozenset(
        (round_.number, node.name)
        for round_ in rounds
        for node in round_.nodes
        if run_dir.released(round_.number, node.name).exists()
    )
    going_on = [round_ for round_ in rounds if _goes_on(run, round_, released, found.tasks)]
    stages = {
        (round_.number, name): stage
        for round_ in going_on
        for name in round_.node_names
        if (path := run_dir.stage(round_.number, name))
        and (stage := _files.read_record_if_there(path, StageProgress)) is not None
    }
    trials = {round_.number: list(read_trials_of(run_dir, round_)) for round_ in rounds}
    idle = count_idle_rounds(run_dir, run, rounds, found.now)
    in_work = [claim.span for name, claim in found.open_claims if name == "outputs"]
    most = (max(r.most_trials, sum(n.trials for n in r.nodes)) for r in rounds[:1])
    return replace(
        found,
        rounds=going_on,
        released=released,
        stages=stages,
        trials={t.trial: t for round_ in going_on for t in trials[round_.number]},
        last=_last(run_dir, rounds, trials),
        asked=rounds[-1].created if rounds else 0.0,
        answered=any(trial.responses for group in trials.values() for trial in group),
        idle_rounds=idle.rounds,
        waits=idle.waits,
        fruitless_rounds=_count_fruitless(trials),
        most_trials=max(most, default=0),
        ready_seconds=ready_seconds(run, trials, stages),
        pace=pace(without_withdrawn(run_dir, run), trials, found.unpublished, in_work),
    )


def _with_troubles(run_dir: RunDir, run: Run, found: Facts) -> Facts:
    """Add the incidents that are written, and those that are seen now."""
    incidents, known = read_incidents(run_dir), recorded(run_dir)
    kinds = {each.kind for each in incidents if isinstance(each.kind, Pullers)}
    trials = {
        round_.number: [
            found.trials[name] for name, _ in jobs.trials_of(round_) if name in found.trials
        ]
        for round_ in found.rounds
    }
    return replace(
        found,
        incidents=incidents,
        worked=kinds_that_worked(run_dir, run, kinds),
        observed=[
            *dead_pullers(run_dir, run, found.tasks, found.now, known),
            *dead_keepers(run_dir, run, found.tasks, found.now, known),
            *failed_jobs(run_dir, found.now, known),
            *silent_ends(found.tasks, trials, found.now, known),
        ],
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


def _count_fruitless(trials: Mapping[int, Sequence[TrialProgress]]) -> int:
    """Return how many of the last rounds in a row have no trial that has answered."""
    count = 0
    for number in sorted(trials, reverse=True):
        if any(trial.responses for trial in trials[number]):
            break
        count += 1
    return count


def _last(
    run_dir: RunDir, rounds: Sequence[Round], trials: Mapping[int, Sequence[TrialProgress]]
) -> tuple[Round, Sequence[TrialProgress]] | None:
    """Return the last round with its trials; None if it began before the last resume."""
    if not rounds:
        return None
    last = rounds[-1]
    if _files.modified(run_dir.round(last.number)) < _files.modified(run_dir.resumed):
        return None
    return last, trials[last.number]


def refresh_listings(run_dir: RunDir, datasets: Iterable[str]) -> None:
    """Make a network file system list the folders of these datasets afresh.

    A change that this machine makes to a folder drops what its client remembers of it.
    """
    for ledger in (Ledger(run_dir, name) for name in LEDGERS):
        for dataset in datasets:
            for folder in (ledger.folder(dataset), run_dir.claims_folder(ledger.name, dataset)):
                _files.touch(folder)


SLOWEST = 10.0
"""Highest pace: what is in work blurs it."""


def ready_seconds(
    run: Run,
    trials: Mapping[int, Sequence[TrialProgress]],
    stages: Mapping[NodeKey, StageProgress],
) -> float:
    """Return the seconds from the copy of the weights until an engine has started.

    Return the median of the engines that have started, else the prediction.
    """
    seen = []
    for number, group in trials.items():
        for trial in group:
            if trial.running is not None:
                stage = stages.get((number, trial.node))
                # Weights that were there long before are not waited for.
                begun = min(trial.started, stage.started) if stage else trial.started
                seen.append(trial.running - begun)
    predicted = (run.copy_seconds or 0.0) + run.engine_start_seconds
    return max(0.0, median(seen)) if seen else predicted


def pace(
    run: Run,
    trials: Mapping[int, Sequence[TrialProgress]],
    unpublished: Sequence[Span],
    in_work: Sequence[Span],
) -> float | None:
    """Return the GPU seconds that a predicted second took; None before the first response.

    Shards in work count as half done. It is 1 while little is done.
    """
    answered = [t for group in trials.values() for t in group if t.ready is not None]
    if not answered:
        return None
    undone, half_done = set(unpublished), set(in_work)
    whole = sum(shard.gpu_seconds for shard in run.shards)
    done = sum(
        shard.gpu_seconds * (0.5 if shard.span in half_done else 1.0)
        for shard in run.shards
        if shard.span not in undone or shard.span in half_done
    )
    return min(SLOWEST, measured_pace(answered, done, whole))
