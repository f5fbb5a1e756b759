"""The memory of nodes after a run: what killed processes left there is removed.

The last process that uses a node's weights removes them. If that one is killed, nobody does.
"""

import contextlib
from collections import defaultdict
from collections.abc import Callable
from math import inf

from coordinate_eval import _files
from coordinate_eval.clusters.protocol import Cluster
from coordinate_eval.coordinator.incidents.incident import Incident
from coordinate_eval.coordinator.run import jobs
from coordinate_eval.coordinator.run.paths import RunDir
from coordinate_eval.coordinator.run.records import JudgeProgress, Run, StageProgress
from coordinate_eval.coordinator.run.rounds import read_rounds, read_trials_of
from coordinate_eval.coordinator.supervisor.ending import wait_for_jobs
from coordinate_eval.coordinator.workers.on_node import node_memory
from coordinate_eval.errors import ClusterError, RecordError, SubmitRefused, UserError

SWEEP_SECONDS = 30.0
"""Time that sweepers get to begin and end before they are cancelled."""


def sweep(
    run: Run,
    run_dir: RunDir,
    cluster: Cluster,
    poll_seconds: float,
    check: Callable[[], None] = lambda: None,
    *,
    note: Callable[[str], None],
) -> None:
    """Remove what killed processes of a run left in the memory of its nodes. Wait for that.

    On a local cluster this machine is the only node, and what earlier runs left goes, too. On
    others a small job on each node does it. One that the scheduler does not take or start soon
    is given up: the user's next keeper there does the same.

    Args:
        run: the run, whose jobs have all ended.
        run_dir: its folder.
        cluster: the scheduler.
        poll_seconds: between two polls, at most.
        check: raises where the run has another supervisor.
        note: called with what is done, in words for a log.
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
        wait_for_jobs(run, cluster, poll_seconds, check, seconds=SWEEP_SECONDS)


def nodes_to_sweep(run_dir: RunDir) -> list[str]:
    """Return the nodes on which the last process that held the weights was killed.

    A keeper and a trial say so when they end by themselves. A keeper removes the weights that
    dead trials held if it ends after them. A judge's job names the node that it has weights on.
    """
    ended: dict[str, float] = defaultdict(float)
    killed: dict[str, float] = {}
    for round_ in read_rounds(run_dir):
        for node in round_.nodes:
            path = run_dir.stage(round_.number, node.name)
            stage = _files.read_record_if_there(path, StageProgress)
            if stage is None:
                continue
            if stage.state in ("copying", "ready"):
                killed[node.name] = inf
            else:
                ended[node.name] = max(ended[node.name], stage.updated)
        for trial in read_trials_of(run_dir, round_):
            if trial.state not in ("ended", "failed"):
                path = run_dir.incident(trial.trial)
                incident = _files.read_record_if_there(path, Incident)
                when = inf if incident is None else incident.time
                killed[trial.node] = max(killed.get(trial.node, 0.0), when)
    judge = _files.read_record_if_there(run_dir.judge, JudgeProgress)
    of_judge = judge.nodes if judge else []
    return sorted({*of_judge, *(node for node, when in killed.items() if ended[node] <= when)})
