"""Build, metric and scoring jobs and judges that died, as the scheduler says."""

import functools
from collections.abc import Iterable, Iterator, Sequence

from coordinate_eval import _files
from coordinate_eval.clusters.protocol import End, State, TaskStatus
from coordinate_eval.coordinator.report.failures import Failure
from coordinate_eval.coordinator.run import jobs
from coordinate_eval.coordinator.run.claiming.claims import Ledger, whole
from coordinate_eval.coordinator.run.claiming.pullers import LEDGERS_OF, Pullers, kind_of
from coordinate_eval.coordinator.run.paths import RunDir
from coordinate_eval.coordinator.run.records import Run

_DEATHS = frozenset({End.FAILED, End.OUT_OF_MEMORY})
"""Ends that a job, and not the scheduler, brings about."""


def undiagnosed_pullers(run_dir: RunDir, run: Run, tasks: Sequence[TaskStatus]) -> list[Failure]:
    """Return the pullers that died of what nobody has looked for, each once."""
    known = _files.names(run_dir.causes_folder)
    found: dict[str, Failure] = {}
    none_has_worked = functools.cache(functools.partial(_none_has_worked, run_dir, run))
    for task in tasks:
        kind = kind_of(run, task.name)
        if kind is None or task.state is not State.ENDED or task.end not in _DEATHS:
            continue
        name = f"{task.name.removeprefix(jobs.prefix(run))}_{task.index}"
        if f"{name}.json" not in known:
            found[name] = Failure(
                f"{kind} job", name, task.node, f"the scheduler says: {task.end}",
                _log(run_dir, task), task.end, name,
                before_work=none_has_worked(kind), pullers=kind,
            )  # fmt: skip
    return list(found.values())


def kinds_that_worked(run_dir: RunDir, run: Run, kinds: Iterable[Pullers]) -> frozenset[Pullers]:
    """Return the kinds of pullers of which one has worked by now."""
    return frozenset(kind for kind in kinds if not _none_has_worked(run_dir, run, kind))


def _log(run_dir: RunDir, task: TaskStatus) -> str:
    """Return the path of a task's log, as schedulers name it; empty if there is none."""
    there = _files.names(run_dir.logs)
    endings = [f".{task.job_id}_{task.index}", f".{task.job_id}", f"_{task.index}", ""]
    names = (f"{task.name}{ending}.log" for ending in endings)
    return next((str(run_dir.logs / name) for name in names if name in there), "")


def _none_has_worked(run_dir: RunDir, run: Run, kind: Pullers) -> bool:
    """Return whether no log of such a job has anything of items or answers.

    None has claimed work. What builders claim has neither, and counts when it is done.
    """
    claimed = list(_claimed(run_dir, run, kind))
    if kind is not Pullers.BUILD:
        return not claimed
    return len(Ledger(run_dir, "requests").unpublished(map(whole, claimed))) == len(claimed)


def _claimed(run_dir: RunDir, run: Run, kind: Pullers) -> Iterator[str]:
    """Yield the datasets of which such a job has ever claimed work."""
    for dataset in run.suite.datasets:
        folders = (run_dir.claims_folder(name, dataset.name) for name in LEDGERS_OF[kind])
        if any(_files.names(folder) for folder in folders):
            yield dataset.name
