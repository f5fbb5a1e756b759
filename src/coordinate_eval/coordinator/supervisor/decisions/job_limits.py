"""Limits on how many jobs run at once, at which a run's own jobs may keep its trials from starting.

Keepers, and a job that scores, run for as long as there are trials to come. Where they are all that
may run, none starts. From then on keepers and trials of a node are one job, as on whole nodes.
"""

from coordinate_eval.clusters.protocol import State, Waits
from coordinate_eval.coordinator.run import jobs
from coordinate_eval.coordinator.run.records import Run
from coordinate_eval.coordinator.supervisor.decisions.values import Facts


def holds_up_trials(run: Run, facts: Facts) -> bool:
    """Return whether trials wait for `patience_seconds` at such a limit, and none runs."""
    patience = run.settings.supervisor.patience_seconds
    trials = [task for task in facts.tasks if jobs.is_trials(run, task.name)]
    waited = [
        facts.now - facts.submitted[task.name].time
        for task in trials
        if task.waits is Waits.JOB_LIMIT and task.name in facts.submitted
    ]
    return max(waited, default=0.0) >= patience and all(
        t.state is not State.RUNNING for t in trials
    )
