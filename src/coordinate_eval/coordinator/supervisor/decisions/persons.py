"""Jobs that start only when a person changes something, such as a limit that they exceed."""

from coordinate_eval.clusters.protocol import State, TaskStatus
from coordinate_eval.coordinator.run import jobs
from coordinate_eval.coordinator.run.records import Run
from coordinate_eval.coordinator.supervisor.decisions.values import Action, Cancel, Facts, Finish


def never_starting(run: Run, facts: Facts) -> list[TaskStatus]:
    """Return the jobs that the run waits for, if none of them starts by itself; else none.

    It waits for its trials; without any, for keepers, and else for what builds and scores.
    """
    alive = [task for task in facts.tasks if task.state is not State.ENDED]
    trials = [task for task in alive if jobs.is_trials(run, task.name)]
    keepers = [task for task in alive if jobs.is_keeper(run, task.name)]
    others = [task for task in alive if not jobs.is_supervisor(run, task.name)]
    awaited = trials or keepers or others
    stuck = all(task.state is State.PENDING and task.never_starts for task in awaited)
    return awaited if stuck else []


def end_vain_wait(run: Run, facts: Facts) -> list[Action]:
    """Act when nothing has been able to start for `patience_seconds`.

    Trials are asked for once more, within what is allowed by then. Otherwise the run ends.
    """
    awaited = never_starting(run, facts)
    if not awaited or facts.stuck < run.settings.supervisor.patience_seconds:
        return []
    first = awaited[0]
    of_round = jobs.is_trials(run, first.name) or jobs.is_keeper(run, first.name)
    if of_round and facts.idle_rounds + facts.waits < 2:
        ids = {facts.id_of(run, task) for task in awaited}
        return [Cancel(tuple(sorted(ids)), in_words(first))]
    return [Finish(f"{in_words(first)}; {first.cure}")]


def in_words(task: TaskStatus) -> str:
    """Return that a task never starts, and why."""
    return f"job {task.job_id} never starts: {task.means} (the scheduler says: {task.reason})"
