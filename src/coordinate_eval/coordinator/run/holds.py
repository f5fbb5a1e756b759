"""Jobs that the scheduler holds: who wants that, and what lets them start."""

from collections.abc import Iterable

from coordinate_eval.clusters.protocol import Hold, State, TaskStatus
from coordinate_eval.coordinator.run import jobs
from coordinate_eval.coordinator.run.records import Run


def in_words(task: TaskStatus) -> str:
    """Return that a job is held, or what else keeps it, and what its user does about it."""
    if not task.held:
        return f"job {task.job_id}: {task.means} ({task.reason}): {task.cure}"
    said = f"job {task.job_id} is held {task.held} ({task.reason})"
    if task.held is Hold.ADMIN:
        return f"{said}: ask the administrators to release it"
    return f"{said}: `scontrol release {task.job_id}` lets it start"


def all_in_words(tasks: Iterable[TaskStatus]) -> list[str]:
    """Return a line for each job that is held, or for which a person can do something."""
    return [in_words(task) for task in {t.job_id: t for t in tasks if t.held or t.cure}.values()]


def supervisors(run: Run, tasks: Iterable[TaskStatus]) -> list[TaskStatus]:
    """Return the jobs of supervisors that run or wait, those that are held last.

    One that is held because its launch failed counts as lost: nobody wants that, or ends it.
    """
    found = [task for task in _alive(run, tasks) if task.held is not Hold.LAUNCH]
    return sorted(found, key=lambda task: task.held != Hold.NONE)


def held_supervisor(run: Run, tasks: Iterable[TaskStatus]) -> TaskStatus | None:
    """Return the supervisor that somebody holds, unless the run has another one."""
    first = next(iter(supervisors(run, tasks)), None)
    return first if first is not None and first.held else None


def unlaunched_supervisors(run: Run, tasks: Iterable[TaskStatus]) -> list[str]:
    """Return the jobs of supervisors that are held because their launch failed."""
    return [task.job_id for task in _alive(run, tasks) if task.held is Hold.LAUNCH]


def _alive(run: Run, tasks: Iterable[TaskStatus]) -> list[TaskStatus]:
    return [t for t in tasks if t.state is not State.ENDED and jobs.is_supervisor(run, t.name)]
