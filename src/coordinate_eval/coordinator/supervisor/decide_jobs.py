"""Decisions on jobs: how many to submit on CPUs, which pending or hanging ones to end."""

from coordinate_eval._format import duration
from coordinate_eval.clusters.protocol import End, Hold, State, TaskStatus, Waits
from coordinate_eval.coordinator.incidents.hangs import quiet_seconds, silence_seconds
from coordinate_eval.coordinator.incidents.incident import How, Incident, batch_of_round, last_known
from coordinate_eval.coordinator.incidents.observe import of_puller, of_trial
from coordinate_eval.coordinator.incidents.remedies import recurring
from coordinate_eval.coordinator.run import jobs
from coordinate_eval.coordinator.run.claiming.claims import LedgerName, OpenClaim
from coordinate_eval.coordinator.run.claiming.pullers import (
    Pullers,
    is_pullers,
    kind_of,
    most_pullers,
    pullers_job,
    useful_pullers,
)
from coordinate_eval.coordinator.run.paths import RunDir
from coordinate_eval.coordinator.run.records import Run
from coordinate_eval.coordinator.run.rounds import UNAVAILABLE_SECONDS
from coordinate_eval.coordinator.supervisor.values import (
    Action,
    Cancel,
    EndHung,
    Facts,
    Finish,
    Revoke,
    Submit,
)


def never_starting(run: Run, facts: Facts) -> list[TaskStatus]:
    """Return the jobs that the run waits for, if none of them starts by itself; else none.

    The run waits for trials; without trials, for keepers; without keepers, for jobs that build and
    score.
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
        return [Cancel(tuple(sorted(ids)), why_it_waits(first))]
    return [Finish(f"{why_it_waits(first)}; {first.cure}")]


def why_it_waits(task: TaskStatus) -> str:
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

    With `patient`, only tasks that are held because their launch failed are cancelled: the others
    keep their place. Otherwise tasks whose node takes no jobs are cancelled sooner.
    """
    waited = facts.now - facts.submitted[name].time
    patience = run.settings.supervisor.patience_seconds
    shorter = min(patience, UNAVAILABLE_SECONDS)
    stuck = never_starting(run, facts)
    late = [
        task
        for task in facts.alive(name)
        if task.state is State.PENDING
        and not (task.held in (Hold.ADMIN, Hold.USER) or task in stuck)
        and not (patient and (task.in_turn or task.never_starts))
        and waited >= (shorter if task.waits is Waits.NODE and not task.held else patience)
    ]
    if not late:
        return []
    said = f"not started within {waited:.0f} s (the scheduler says: {late[0].reason})"
    return cancel(run, facts, late, said)


def cancel(run: Run, facts: Facts, tasks: list[TaskStatus], why: str) -> list[Action]:
    """Cancel these tasks, if there are any."""
    ids = {facts.id_of(run, task) for task in tasks}
    return [Cancel(tuple(sorted(ids)), why)] if ids else []


MAX_IDLE_ARRAYS = 3
"""Arrays of pullers in a row that did nothing, after which their work is given up."""

ARRAY_PAUSE_SECONDS = 30.0
"""Wait after an array before one that is not the only hope: what is wrong may pass."""


def more_pullers(run: Run, run_dir: RunDir, facts: Facts, kind: Pullers, busy: int) -> list[Action]:
    """Submit an array of pullers if work waits for more than twice the pullers that are idle.

    `busy` is the number of pullers that have work.
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
    # The harness starts while engines do; beside a keeper they may still need the last job.
    early = (
        kind is Pullers.SCORE
        and not alive
        and facts.unscored > 0
        and any(jobs.is_trials(run, t.name) for t in facts.tasks if t.state is State.RUNNING)
    )
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
    return [Submit(pullers_job(run, run_dir, kind, len(arrays), count, facts.now))]


def is_hopeful(run: Run, facts: Facts, kind: Pullers) -> bool:
    """Return whether another array of pullers may do what the arrays before it have not done.

    A judge that was silent may answer again. The run waits for it as long as other work goes on.
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
    """Return why another array of pullers would die like the last one; empty if it may work.

    It would die if no puller of the kind runs, or has ever done anything.
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
    """Return a clause that names the latest known cause of such a job's end; empty if unknown."""
    words = last_known(facts.of_pullers(kind))
    return f"; the last one died of {words}" if words else ""


END_SECONDS = 180.0
"""Time in which trials end by themselves when nothing is left for them to do, at most.

An engine ends, and what it has compiled is stored.
"""

Held = list[tuple[LedgerName, OpenClaim]]


def hanging_trials(run: Run, facts: Facts) -> list[Action]:
    """End the trials that have been silent for too long, and give their shards to others."""
    actions: list[Action] = []
    if not facts.unpublished:
        return []  # who still works was slower than another: see `needless_tasks`
    for trial, ((number, node), task) in facts.running_trials(run).items():
        progress = facts.trials.get(trial)
        held: Held = [
            (ledger, claim)
            for ledger, claim in facts.open_claims
            if ledger == "outputs" and claim.claim.owner == trial
        ]
        # It may work at shards at which others have begun second attempts since.
        slow = [claim for claim in facts.claims_with_second_attempt if claim.claim.owner == trial]
        claims = [*(claim for _, claim in held), *slow]
        # Others may have published all that the job held while it goes on, at any dataset.
        datasets = {claim.span.dataset for claim in claims} or facts.due.keys()
        silent = facts.silent.get(trial, 0.0)
        if silent < silence_seconds(run, progress, datasets, facts.due):
            continue
        how, said = _how(task), _words(silent)
        if progress is not None:
            incident = of_trial(progress, how, said, facts.now, number)
        else:
            known = task.node if run.nodes_per_trial == 1 else ""
            incident = Incident(
                job=trial, kind="trial", batch=batch_of_round(number), node=known or node,
                how=how, time=facts.now, message=said,
            )  # fmt: skip
        # In a job for a whole node the process that started the trial ends it, unless the job is
        # suspended, and that process with it.
        by_itself = facts.is_one_job(run, task.name) and not task.suspended
        actions += _end(incident, task, () if by_itself else (facts.id_of(run, task),), held)
    return actions


def hanging_pullers(run: Run, facts: Facts) -> list[Action]:
    """End the build, metric, judge's and scoring jobs that hang, and give their work to others."""
    actions: list[Action] = []
    for job_id, (task, seconds, begun) in facts.quiet.items():
        held: Held = [
            (ledger, claim)
            for ledger, claim in facts.open_claims
            if claim.claim.task_id in task.ids
        ]
        kind = kind_of(run, task.name)
        if kind is None or seconds < quiet_seconds(run, begun=begun):
            continue
        incident = of_puller(run, kind, task, _how(task), _words(seconds), facts.now)
        actions += _end(incident, task, (job_id,), held)
    return actions


def needless_tasks(run: Run, facts: Facts) -> list[Action]:
    """Cancel the tasks that go on though nothing is left to do for their trials.

    Every shard is published, or the trials have ended: what is left of them hangs.
    """
    needless: dict[str, bool] = {}
    for trial, (_, task) in facts.trials_with_tasks(run).items():
        idle = not facts.unpublished or facts.says_it_ended(trial)
        over = idle and facts.silent.get(trial, 0.0) >= END_SECONDS
        job_id = facts.id_of(run, task)
        needless[job_id] = needless.get(job_id, not task.completing) and over
    left = tuple(job_id for job_id, all_over in needless.items() if all_over)
    return [Cancel(left, "nothing is left for its trials to do, and it goes on")] if left else []


def _how(task: TaskStatus) -> How:
    """Return how a silent task ends. A suspended one says nothing either, and its node is well."""
    return End.PREEMPTED if task.suspended else "hung"


def _words(seconds: float) -> str:
    return f"no sign of life for {duration(seconds)}, and was ended"


def _end(
    incident: Incident, task: TaskStatus, job_ids: tuple[str, ...], held: Held
) -> list[Action]:
    end = End.PREEMPTED if task.suspended else End.UNKNOWN
    revoked = [Revoke(ledger, claim, end) for ledger, claim in held]
    return [EndHung(incident, job_ids), *revoked]
