"""Jobs that the scheduler knows by another name than they were submitted with.

Jobs are found by their names. A job_submit plugin of Slurm may change these: then all jobs of a
run look as if they had ended.
"""

from coordinate_eval.clusters.protocol import Cluster
from coordinate_eval.coordinator.run import jobs
from coordinate_eval.coordinator.run.records import Run
from coordinate_eval.errors import ClusterError

CURE = (
    f"have the administrators exempt job names that begin with {jobs.PREFIX!r} from the job_submit "
    "plugin that changes them"
)
"""What to do about it."""


def name_of(cluster: Cluster, task: str) -> str | None:
    """Return the name by which a scheduler knows a job; None if it does not say.

    Args:
        cluster: the scheduler, which is asked for all jobs of the user.
        task: an id of the job or of its task.
    """
    try:
        return next((each.name for each in cluster.poll("") if task in each.ids), None)
    except ClusterError:
        return None


def why_no_job_is_found(run: Run, cluster: Cluster, task: str) -> str:
    """Return why the supervisor in this task would find no job of its run; empty if it would."""
    name = name_of(cluster, task) if task else None
    if name is None or jobs.supervised_run(name) == jobs.prefix(run):
        return ""
    return (
        f"the scheduler knows job {task}, the supervisor, as {name!r}, which is not the name that "
        f"it was submitted with, and jobs are found by their names: {CURE}, then resume the run"
    )
