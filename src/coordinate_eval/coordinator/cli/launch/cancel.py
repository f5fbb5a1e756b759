"""`coordinate-eval cancel`: end all jobs of a run."""

import time

from coordinate_eval import _files
from coordinate_eval._format import plural
from coordinate_eval.clusters.protocol import Cluster, State
from coordinate_eval.coordinator.cli.output import say
from coordinate_eval.coordinator.inputs import clusters
from coordinate_eval.coordinator.run import jobs
from coordinate_eval.coordinator.run.paths import RunDir
from coordinate_eval.coordinator.run.records import Run, read_run
from coordinate_eval.coordinator.supervisor.sweeping import sweep
from coordinate_eval.errors import ClusterSilent

CANCEL_SECONDS = 60.0
"""Longest time for which `cancel` looks for jobs that are submitted meanwhile."""

POLL_SECONDS = 0.5
"""Time between two polls."""


def cancel_run(run_dir: RunDir) -> None:
    """End all jobs of a run, and mark its directory.

    Raises:
        ClusterSilent: the scheduler did not answer; the run is marked, so try again.
    """
    run = read_run(run_dir)
    _files.write(run_dir.cancelled, "")
    cluster = clusters.by_name(run.cluster, run.settings)
    if cluster.local:
        say(f"run {run.id} ends as soon as its supervisor sees that")
        return
    try:
        with cluster:
            count = _cancel_all(run, cluster)
            sweep(run, run_dir, cluster, POLL_SECONDS, note=say)
    except ClusterSilent as error:
        raise ClusterSilent(
            f"{error}\nrun {run.id} is marked as cancelled: its supervisor ends it as soon as the "
            "scheduler answers. Cancel it again then, in case it has no supervisor"
        ) from error
    said = f"cancelled {plural(count, 'job')}" if count else "no job was left to cancel"
    say(f"run {run.id}: {said}")


def _cancel_all(run: Run, cluster: Cluster) -> int:
    """Cancel until no job is left: a supervisor may submit another one meanwhile."""
    cancelled: set[str] = set()
    give_up = time.monotonic() + CANCEL_SECONDS
    while time.monotonic() < give_up:
        tasks = clusters.patiently(lambda: cluster.poll(jobs.prefix(run)))
        alive = [t for t in tasks if t.state is not State.ENDED]
        if not alive:
            break
        alive.sort(key=lambda t: not jobs.is_supervisor(run, t.name))
        ids = [i for i in dict.fromkeys(t.job_id for t in alive) if i not in cancelled]
        if ids:
            cluster.cancel(ids)
            cancelled.update(ids)
        time.sleep(POLL_SECONDS)
    return len(cancelled)
