"""The end of a run: results, its last jobs, and what killed processes left on its nodes."""

import contextlib
from collections import defaultdict
from collections.abc import Callable, Set
from math import inf
from typing import Any

from coordinate_eval import _files
from coordinate_eval._clock import Clock
from coordinate_eval.clusters.protocol import Cluster, State, TaskStatus
from coordinate_eval.coordinator.comparison.deciding import conclude
from coordinate_eval.coordinator.history import measured
from coordinate_eval.coordinator.incidents.incident import Incident
from coordinate_eval.coordinator.report import results as report
from coordinate_eval.coordinator.report.time_ledger import read_time_ledger
from coordinate_eval.coordinator.run import jobs
from coordinate_eval.coordinator.run.claiming.claims import Ledger
from coordinate_eval.coordinator.run.claiming.work import all_spans
from coordinate_eval.coordinator.run.paths import RunDir
from coordinate_eval.coordinator.run.records import JudgeProgress, Run, StageProgress
from coordinate_eval.coordinator.run.rounds import read_rounds, read_trials_of
from coordinate_eval.coordinator.supervisor.learn_from_run import store_observations
from coordinate_eval.coordinator.workers.on_node import node_memory
from coordinate_eval.errors import (
    ClusterError,
    CoordinateError,
    RecordError,
    SubmitRefused,
    UserError,
)

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
    if not Ledger(run_dir, "results").unpublished(all_spans(run, "results")):
        conclude(run_dir, run)
    results = report.collect_results(run_dir, run, why)
    results["scheduler_calls"] = dict(cluster.calls)
    results["ledger"] = None
    try:
        results["ledger"] = read_time_ledger(run_dir, run, ended=True).model_dump(mode="json")
    except Exception as error:  # where the GPU time went is no reason to have no results
        tell(f"cannot sum up the GPU time of this run: {error}")
    _files.write(run_dir.results, _files.pretty(results))
    try:
        measured.keep(run.settings.runs_dir, measured.measure(run_dir, run, results))
    except (CoordinateError, OSError) as error:
        tell(f"the scores of this run are not kept in the history: {error}")
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
    clock: Clock,
    successors: Set[str] = frozenset(),
) -> None:
    """Cancel all jobs but keepers, and wait for keepers to end. Cancel keepers that stay.

    On a local cluster keepers are cancelled too, which they notice sooner than their release.

    Args:
        poll_seconds: between two polls, at most.
        check: raises where the run has another supervisor, whose jobs are left alone.
        successors: jobs of supervisors that waited in the queue when the run ended. They are
            cancelled, too; one of a run that is resumed meanwhile is not.
    """

    def leaves(task: TaskStatus) -> bool:
        may_stay = jobs.is_keeper(run, task.name) and task.state is not State.PENDING
        return cluster.local or not may_stay

    wait_for_jobs(run, cluster, poll_seconds, check, clock, leaves, successors=successors)


def wait_for_jobs(
    run: Run,
    cluster: Cluster,
    poll_seconds: float,
    check: Callable[[], None],
    clock: Clock,
    leaves: Callable[[TaskStatus], bool] = lambda task: False,
    *,
    seconds: float = DRAIN_SECONDS,
    successors: Set[str] = frozenset(),
) -> None:
    """Wait until all jobs of a run but its supervisors have ended, at most for twice `seconds`.

    Cancel jobs for which `leaves` is true at once, and all others after `seconds`. The other
    arguments are those of `drain`.
    """
    give_up = clock.passed() + seconds
    pause = min(1.0, poll_seconds)
    cancelled: set[str] = set()
    while clock.passed() < give_up + seconds:
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
            late = clock.passed() > give_up
            leaving = {t.job_id for t in tasks if late or leaves(t)}
            if leaving - cancelled:
                cluster.cancel(sorted(leaving - cancelled))
                cancelled |= leaving
        clock.sleep(pause)
        pause = min(2 * pause, poll_seconds)


SWEEP_SECONDS = 30.0
"""Time that sweepers get to begin and end before they are cancelled."""


def sweep(
    run: Run,
    run_dir: RunDir,
    cluster: Cluster,
    poll_seconds: float,
    clock: Clock,
    check: Callable[[], None] = lambda: None,
    *,
    note: Callable[[str], None],
) -> None:
    """Remove what killed processes of a run left in the memory of its nodes. Wait for that.

    On a local cluster this machine is the only node, and what earlier runs left is removed as well.
    On other clusters a small job on each node does it. If the scheduler does not take or start that
    job soon, it is given up: the user's next keeper on the node does the same.

    Args:
        check: raises where the run has another supervisor.
    """
    if cluster.local:
        with contextlib.suppress(OSError):
            node_memory.remove_abandoned(node_memory.user_folder(run.settings.stage.folder))
        return
    nodes: list[str] = []
    with contextlib.suppress(OSError, RecordError):
        nodes = nodes_to_sweep(run_dir)
    swept = []
    for node in nodes:
        check()
        try:
            cluster.submit(jobs.sweeper_job(run, run_dir, node))
            swept.append(node)
        except (SubmitRefused, UserError):  # such as a reservation that has ended
            continue
        except (ClusterError, OSError):
            break
    if swept:
        note(f"removing what killed processes left in the memory of {', '.join(swept)}")
        wait_for_jobs(run, cluster, poll_seconds, check, clock, seconds=SWEEP_SECONDS)


def nodes_to_sweep(run_dir: RunDir) -> list[str]:
    """Return the nodes on which the last process that held the weights was killed.

    A keeper and a trial say so when they end by themselves. Of a trial on several nodes that also
    says why, another process may have been killed. A keeper removes the weights that dead trials
    held if it ends after them. A judge's job names the node that it has weights on.
    """
    ended: dict[str, float] = defaultdict(float)
    killed: dict[str, float] = {}
    for round_ in read_rounds(run_dir):
        for name in round_.node_names:
            path = run_dir.stage(round_.number, name)
            stage = _files.read_record_if_there(path, StageProgress)
            if stage is None:
                continue
            if stage.state in ("copying", "ready"):
                killed[name] = inf
            else:
                ended[name] = max(ended[name], stage.updated)
        for trial in read_trials_of(run_dir, round_):
            told = trial.state in ("ended", "failed")
            if not told or (trial.others and trial.message):
                path = run_dir.incident(trial.trial)
                incident = _files.read_record_if_there(path, Incident)
                untold = trial.updated if told else inf
                when = untold if incident is None else incident.time
                for name in (trial.node, *trial.others):
                    killed[name] = max(killed.get(name, 0.0), when)
    judge = _files.read_record_if_there(run_dir.judge, JudgeProgress)
    of_judge = judge.nodes if judge else []
    return sorted({*of_judge, *(node for node, when in killed.items() if ended[node] <= when)})
