"""Decide how many build, metric and scoring jobs and judges to submit, and when."""

from coordinate_eval.clusters.protocol import State
from coordinate_eval.coordinator.incidents.incident import last_known
from coordinate_eval.coordinator.incidents.remedies import recurring
from coordinate_eval.coordinator.run import jobs
from coordinate_eval.coordinator.run.claiming.pullers import (
    Pullers,
    is_pullers,
    most_pullers,
    pullers_job,
    useful_pullers,
)
from coordinate_eval.coordinator.run.paths import RunDir
from coordinate_eval.coordinator.run.records import Run
from coordinate_eval.coordinator.supervisor.decisions.values import Action, Facts, Submit

MAX_IDLE_ARRAYS = 3
"""Arrays of pullers in a row that did nothing, after which their work is given up."""

ARRAY_PAUSE_SECONDS = 30.0
"""Wait after an array before one that is not the only hope: what is wrong may pass."""


def more_pullers(run: Run, run_dir: RunDir, facts: Facts, kind: Pullers, busy: int) -> list[Action]:
    """Submit an array of pullers if there is work and fewer than half of those for it are there.

    `busy` of those that are there have work.
    """
    if kind is Pullers.SCORE and facts.job_limit and facts.to_come(run):
        return []  # it would stay until all is scored, in the place of trials
    if kind is Pullers.JUDGE and run.settings.judge.checkpoint and facts.expects_questions(run):
        return []  # its GPUs would wait for them
    if not is_hopeful(run, facts, kind) or any(each.kind is kind for each in facts.observed):
        return []
    arrays = [name for name in facts.submitted if is_pullers(run, name, kind)]
    alive = sum(len(facts.alive(name)) for name in arrays)
    last = max((facts.submitted[name].time for name in arrays), default=0.0)
    free = alive - busy
    waiting = facts.waiting_for(run, kind)
    # The harness starts while engines do.
    early = kind is Pullers.SCORE and not alive and facts.unscored > 0 and _has_trials(run, facts)
    wanted = min(most_pullers(run, kind, facts.cores) - busy, max(waiting, early))
    if wanted <= 0 or free >= wanted / 2:
        return []
    # Where nothing waits for them, those before may have ended because none can run here.
    pause = ARRAY_PAUSE_SECONDS * (1 if waiting else len(arrays))
    # The server of a checkpoint that judges may have failed for what passes.
    serves = kind is Pullers.JUDGE and bool(run.settings.judge.checkpoint)
    if (alive or not waiting or serves) and facts.now - last < pause:
        return []
    # More work is to come when the first ones start.
    count = wanted - free if arrays else useful_pullers(run, kind, facts.cores)
    if kind is Pullers.BUILD:  # no other work of this kind comes later
        count = min(count, waiting)
    return [Submit(pullers_job(run, run_dir, kind, len(arrays), count))]


def is_hopeful(run: Run, facts: Facts, kind: Pullers) -> bool:
    """Return whether another array of pullers may do what those before it have not done.

    A judge that was silent may answer again. It is waited for as long as other work goes on.
    """
    if all_die(run, facts, kind):
        return False
    if kind is not Pullers.JUDGE or facts.judge is None or facts.judge.state == "asking":
        return facts.idle_arrays[kind] < MAX_IDLE_ARRAYS
    if facts.judge.asked_no_more:
        return False
    others = [each for each in Pullers if each is not Pullers.JUDGE]
    return bool(facts.to_come(run)) or any(
        facts.held_by(run, each) or (facts.waiting_for(run, each) and is_hopeful(run, facts, each))
        for each in others
    )


def all_die(run: Run, facts: Facts, kind: Pullers) -> str:
    """Return why another array of pullers would die like those before it; empty if it may not.

    None of the kind runs or has ever done anything.
    """
    dead = facts.of_pullers(kind)
    alive = any(
        task.state is not State.ENDED and is_pullers(run, task.name, kind) for task in facts.tasks
    )
    if not dead or alive or kind in facts.worked:
        return ""
    found = recurring([each for each in dead if each.batch == dead[-1].batch], dead)
    if found is None or found.elsewhere:
        return ""
    return f"every {kind} job dies of the same cause: {found.last.words}"


def last_cause(facts: Facts, kind: Pullers) -> str:
    """Return of what the last of such jobs died, to be added to a sentence; empty if unknown."""
    words = last_known(facts.of_pullers(kind))
    return f"; the last one died of {words}" if words else ""


def _has_trials(run: Run, facts: Facts) -> bool:
    """Return whether a trial runs. Beside a keeper it may still need the last job that may run."""
    running = [task.name for task in facts.tasks if task.state is State.RUNNING]
    return any(jobs.is_trials(run, name) for name in running)
