"""Jobs that give no sign of life, or go on with nothing left to do: they are ended."""

from coordinate_eval._format import duration
from coordinate_eval.clusters.protocol import End, TaskStatus
from coordinate_eval.coordinator.incidents.hangs import quiet_seconds, silence_seconds
from coordinate_eval.coordinator.incidents.incident import How, Incident, batch_of_round
from coordinate_eval.coordinator.incidents.observe import of_puller, of_trial
from coordinate_eval.coordinator.run.claiming.claims import LedgerName, OpenClaim
from coordinate_eval.coordinator.run.claiming.pullers import kind_of
from coordinate_eval.coordinator.run.records import Run
from coordinate_eval.coordinator.supervisor.decisions.values import (
    Action,
    Cancel,
    EndHung,
    Facts,
    Revoke,
)

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
        # Those may have published all that it held while it goes on: at any dataset.
        datasets = {claim.span.dataset for claim in claims} or facts.due.keys()
        silent = facts.silent.get(trial, 0.0)
        if silent < silence_seconds(run, progress, datasets, facts.due):
            continue
        how, said = _how(task), _words(silent)
        if progress is not None:
            incident = of_trial(progress, how, said, facts.now, number)
        else:
            incident = Incident(
                job=trial, kind="trial", batch=batch_of_round(number), node=task.node or node,
                how=how, time=facts.now, message=said,
            )  # fmt: skip
        # In a job for a whole node the process that started the trial ends it, unless the job is
        # suspended, and that process with it.
        by_itself = facts.is_whole(run, task.name) and not task.suspended
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
        # One that claimed something without a sign is of a version that gave none.
        if kind is None or seconds < quiet_seconds(run, begun=begun) or (held and not begun):
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
