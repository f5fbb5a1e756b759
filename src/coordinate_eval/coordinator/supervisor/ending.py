"""The end of a run: its nodes are released, its results written, and its jobs leave."""

import contextlib
import time
from collections.abc import Callable, Set
from typing import Any

from coordinate_eval import _files
from coordinate_eval.clusters.protocol import Cluster, State, TaskStatus
from coordinate_eval.coordinator.report import results as report
from coordinate_eval.coordinator.report.history import read_time_ledger
from coordinate_eval.coordinator.run import jobs
from coordinate_eval.coordinator.run.paths import RunDir
from coordinate_eval.coordinator.run.records import Run
from coordinate_eval.coordinator.run.rounds import read_rounds
from coordinate_eval.coordinator.supervisor.learn_from_run import store_observations
from coordinate_eval.errors import ClusterError

DRAIN_SECONDS = 60.0
"""Time that jobs get to remove the weights before they are cancelled."""


def release_nodes(run_dir: RunDir) -> None:
    """Let the keepers of all rounds remove the weights."""
    for round_ in read_rounds(run_dir):
        for node in round_.nodes:
            released = run_dir.released(round_.number, node.name)
            if not released.exists():
                _files.write(released, "")


def write_results(
    run_dir: RunDir, run: Run, cluster: Cluster, why: str, tell: Callable[[str], None]
) -> dict[str, Any]:
    """Write the results and return them; `why` says why some are missing."""
    results = report.collect_results(run_dir, run, why)
    results["scheduler_calls"] = dict(cluster.calls)
    results["ledger"] = None
    try:
        results["ledger"] = read_time_ledger(run_dir, run, ended=True).model_dump(mode="json")
    except Exception as error:  # where the GPU time went is no reason to have no results
        tell(f"cannot sum up the GPU time of this run: {error}")
    _files.write(run_dir.results, _files.pretty(results))
    return results


def learn(run_dir: RunDir, run: Run, tell: Callable[[str], None]) -> None:
    """Store the run's measurements for later plans. An error here does not end the run."""
    try:
        store_observations(run_dir, run)
    except Exception as error:
        tell(f"cannot store this run's measurements for later plans: {error}")


def drain(
    run: Run,
    cluster: Cluster,
    poll_seconds: float,
    check: Callable[[], None],
    successors: Set[str] = frozenset(),
) -> None:
    """Cancel all jobs but keepers, and wait for keepers to end. Cancel those that stay.

    On a local cluster keepers are cancelled too, which they notice sooner than their release.

    Args:
        run: the run.
        cluster: the scheduler.
        poll_seconds: between two polls, at most.
        check: raises where the run has another supervisor, whose jobs are left alone.
        successors: jobs of supervisors that waited in the queue when the run ended. They are
            cancelled, too; one of a run that is resumed meanwhile is not.
    """

    def leaves(task: TaskStatus) -> bool:
        may_stay = jobs.is_keeper(run, task.name) and task.state is not State.PENDING
        return cluster.local or not may_stay

    wait_for_jobs(run, cluster, poll_seconds, check, leaves, successors=successors)


def wait_for_jobs(
    run: Run,
    cluster: Cluster,
    poll_seconds: float,
    check: Callable[[], None],
    leaves: Callable[[TaskStatus], bool] = lambda task: False,
    *,
    seconds: float = DRAIN_SECONDS,
    successors: Set[str] = frozenset(),
) -> None:
    """Wait until all jobs of a run but its supervisors have ended, at most for twice `seconds`.

    Cancel at once those of which `leaves` is true, and all others after `seconds`. The other
    arguments are those of `drain`.
    """
    give_up = time.monotonic() + seconds
    pause = min(1.0, poll_seconds)
    cancelled: set[str] = set()
    while time.monotonic() < give_up + seconds:
        with contextlib.suppress(ClusterError, OSError):
            tasks = [
                t
                for t in cluster.poll(jobs.prefix(run))
                if t.state is not State.ENDED
                and (t.job_id in successors or not jobs.is_supervisor(run, t.name))
            ]
            if not tasks:
                return
            check()
            late = time.monotonic() > give_up
            leaving = {t.job_id for t in tasks if late or leaves(t)}
            if leaving - cancelled:
                cluster.cancel(sorted(leaving - cancelled))
                cancelled |= leaving
        time.sleep(pause)
        pause = min(2 * pause, poll_seconds)
