"""Jobs that are pending: which are cancelled, and what follows where none starts.

Some start only when a person changes something, such as a limit that they exceed. At a limit on how
many jobs run at once, a run's own keepers, and a job that scores, may keep its trials from
starting: they run for as long as there are trials to come.
"""

from coordinate_eval.clusters.protocol import State, TaskStatus, Waits
from coordinate_eval.coordinator.run import jobs
from coordinate_eval.coordinator.run.records import Run
from coordinate_eval.coordinator.run.rounds import UNAVAILABLE_SECONDS
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


def cancel_late(run: Run, facts: Facts, name: str, *, patient: bool = False) -> list[Action]:
    """Cancel tasks that are pending for longer than `patience_seconds`, unless a person holds them.

    With `patient`, only those are cancelled that are held because their launch failed: the others
    keep their place. Without, those whose node takes no jobs are cancelled sooner.
    """
    waited = facts.now - facts.submitted[name].time
    patience = run.settings.supervisor.patience_seconds
    shorter = min(patience, UNAVAILABLE_SECONDS)
    stuck = never_starting(run, facts)
    late = [
        task
        for task in facts.alive(name)
        if task.state is State.PENDING
        and not (task.held_by_person or task in stuck)
        and not (patient and (task.in_turn or task.never_starts))
        and waited >= (shorter if task.node_unavailable else patience)
    ]
    if not late:
        return []
    said = f"not started within {waited:.0f} s (the scheduler says: {late[0].reason})"
    return cancel(run, facts, late, said)


def cancel(run: Run, facts: Facts, tasks: list[TaskStatus], why: str) -> list[Action]:
    """Cancel these tasks, if there are any."""
    ids = {facts.id_of(run, task) for task in tasks}
    return [Cancel(tuple(sorted(ids)), why)] if ids else []
