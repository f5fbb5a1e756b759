"""Find what has gone wrong and is not written yet: jobs say so, or ended without a word.

Nothing here reads a log. An incident has no cause before it is judged.
"""

import functools
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set

from coordinate_eval import _files
from coordinate_eval.clusters.protocol import End, State, TaskStatus
from coordinate_eval.coordinator.incidents.incident import (
    How,
    Incident,
    batch_of_round,
    keeper_id,
)
from coordinate_eval.coordinator.run import jobs
from coordinate_eval.coordinator.run.claiming.claims import Ledger, whole
from coordinate_eval.coordinator.run.claiming.pullers import LEDGERS_OF, Pullers, kind_of
from coordinate_eval.coordinator.run.paths import RunDir
from coordinate_eval.coordinator.run.records import Run, StageProgress, TrialProgress
from coordinate_eval.coordinator.run.rounds import read_rounds, read_trials_of

_DEATHS = frozenset({End.FAILED, End.OUT_OF_MEMORY})
"""Ends that a job on CPUs, and not the scheduler, brings about."""


def recorded(run_dir: RunDir) -> frozenset[str]:
    """Return the jobs whose incident is written, also before the run was last resumed."""
    return frozenset(name.removesuffix(".json") for name in _files.names(run_dir.incidents_folder))


def failed_jobs(run_dir: RunDir, now: float, known: Set[str]) -> Iterator[Incident]:
    """Yield the keepers and trials that say that they failed since the run was last resumed."""
    since = _files.modified(run_dir.resumed)
    for round_ in read_rounds(run_dir):
        for name in round_.node_names:
            job, path = keeper_id(round_.number, name), run_dir.stage(round_.number, name)
            stage = None if job in known else _files.read_record_if_there(path, StageProgress)
            if stage is not None and stage.state == "failed" and _files.modified(path) >= since:
                yield of_keeper(round_.number, name, "error", stage.message, now, stage.log)
        for trial in read_trials_of(run_dir, round_):
            new = trial.state == "failed" and trial.trial not in known
            if new and _files.modified(run_dir.trial(trial.trial)) >= since:
                yield of_trial(trial, "error", trial.message, now, round_.number)


def living_and_ended(tasks: Iterable[TaskStatus]) -> tuple[set[str], dict[str, End]]:
    """Return the ids of the tasks that have not ended, and how the others ended, by their ids."""
    living: set[str] = set()
    ends: dict[str, End] = {}
    for task in tasks:
        if task.state is State.ENDED:
            ends |= dict.fromkeys(task.ids, task.end)
        else:
            living |= task.ids
    return living, ends


def silent_ends(
    tasks: Sequence[TaskStatus],
    trials: Mapping[int, Sequence[TrialProgress]],
    now: float,
    known: Set[str],
) -> Iterator[Incident]:
    """Yield the trials whose tasks have ended and that did not say so themselves."""
    living, ends = living_and_ended(tasks)
    for number, group in trials.items():
        for trial in group:
            task_id = trial.task.rsplit(".", 1)[0]
            told = trial.state in ("ended", "failed") or trial.trial in known
            if not told and task_id not in living:
                how = ends.get(task_id, End.UNKNOWN)
                said = (
                    "ended without a word" if how is End.UNKNOWN else f"the scheduler says: {how}"
                )
                yield of_trial(trial, how, said, now, number)


def dead_pullers(
    run_dir: RunDir, run: Run, tasks: Sequence[TaskStatus], now: float, known: Set[str]
) -> Iterator[Incident]:
    """Yield the build, metric, judge's and scoring jobs that died, as the scheduler says."""
    worked = functools.cache(lambda kind: bool(kinds_that_worked(run_dir, run, [kind])))
    for task in tasks:
        kind = kind_of(run, task.name)
        if kind is None or task.state is not State.ENDED or task.end not in _DEATHS:
            continue
        found = of_puller(run, kind, task, task.end, f"the scheduler says: {task.end}", now)
        if found.job not in known:
            update = {"before_work": not worked(kind), "log": _log(run_dir, task)}
            yield found.model_copy(update=update)


def dead_keepers(
    run_dir: RunDir, run: Run, tasks: Sequence[TaskStatus], now: float, known: Set[str]
) -> Iterator[Incident]:
    """Yield the keepers that died before they wrote a word, such as in a container that fails."""
    names = {
        jobs.keeper_name(run, round_.number, name): (round_.number, name)
        for round_ in read_rounds(run_dir)
        for name in round_.node_names
    }
    for task in tasks:
        if task.name not in names or task.state is not State.ENDED or task.end not in _DEATHS:
            continue
        number, node = names[task.name]
        if keeper_id(number, node) not in known and not run_dir.stage(number, node).exists():
            said = f"the scheduler says: {task.end}"
            yield of_keeper(number, node, task.end, said, now, _log(run_dir, task))


def of_keeper(
    round_number: int, node: str, how: How, message: str, now: float, log: str
) -> Incident:
    """Return what went wrong with a keeper."""
    return Incident(
        job=keeper_id(round_number, node), kind="keeper", batch=batch_of_round(round_number),
        node=node, how=how, time=now, message=message, log=log, before_work=True,
    )  # fmt: skip


def of_trial(
    trial: TrialProgress, how: How, message: str, now: float, round_number: int
) -> Incident:
    """Return what went wrong with a trial."""
    return Incident(
        job=trial.trial,
        kind="trial",
        batch=batch_of_round(round_number),
        node=trial.node,
        how=how,
        time=now,
        message=message,
        log=trial.log,
        before_work=how == "error" and trial.running is None,
        said=trial.cause,
        sequences=trial.sequences,
    )


def of_puller(
    run: Run, kind: Pullers, task: TaskStatus, how: How, message: str, now: float
) -> Incident:
    """Return what went wrong with a task of an array of pullers."""
    batch = task.name.removeprefix(jobs.prefix(run))
    return Incident(
        job=f"{batch}_{task.index}", kind=kind, batch=batch, node=task.node, how=how, time=now,
        message=message,
    )  # fmt: skip


def kinds_that_worked(run_dir: RunDir, run: Run, kinds: Iterable[Pullers]) -> frozenset[Pullers]:
    """Return the kinds of pullers that have claimed work by now.

    Builders count when something is built: their logs have nothing of items or answers before.
    """
    found = set()
    for kind in kinds:
        claimed = list(_claimed(run_dir, run, kind))
        if kind is Pullers.BUILD:
            left = Ledger(run_dir, "requests").unpublished(map(whole, claimed))
            claimed = claimed[len(left) :]
        if claimed:
            found.add(kind)
    return frozenset(found)


def _claimed(run_dir: RunDir, run: Run, kind: Pullers) -> Iterator[str]:
    """Yield the datasets of which such a job has ever claimed work."""
    for dataset in run.suite.datasets:
        folders = (run_dir.claims_folder(name, dataset.name) for name in LEDGERS_OF[kind])
        if any(_files.names(folder) for folder in folders):
            yield dataset.name


def _log(run_dir: RunDir, task: TaskStatus) -> str:
    """Return the path of a task's log, as schedulers name it; empty if there is none."""
    there = _files.names(run_dir.logs)
    endings = [f".{task.job_id}_{task.index}", f".{task.job_id}", f"_{task.index}", ""]
    names = (f"{task.name}{ending}.log" for ending in endings)
    return next((str(run_dir.logs / name) for name in names if name in there), "")
