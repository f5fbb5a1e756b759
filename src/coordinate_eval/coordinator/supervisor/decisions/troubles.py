"""Jobs that hang, trials that ended without saying why, and jobs whose cause is not known yet."""

from coordinate_eval._format import duration
from coordinate_eval.clusters.protocol import End, State
from coordinate_eval.coordinator.run import jobs
from coordinate_eval.coordinator.run.claiming.pullers import kind_of
from coordinate_eval.coordinator.run.records import Run
from coordinate_eval.coordinator.run.troubles.hangs import quiet_seconds, silence_seconds
from coordinate_eval.coordinator.run.troubles.trouble import How, Trouble
from coordinate_eval.coordinator.supervisor.decisions.values import (
    Action,
    Cancel,
    Diagnose,
    EndTrial,
    Facts,
    Note,
    Revoke,
)

END_SECONDS = 180.0
"""Time in which trials end by themselves when nothing is left for them to do, at most.

An engine ends, and what it has compiled is stored.
"""

MOST_LOGS = 32
"""Logs that are read between two polls: each takes a fraction of a second."""


def hanging_trials(run: Run, facts: Facts) -> list[Action]:
    """End the trials that have been silent for too long, and give their shards to others."""
    actions: list[Action] = []
    if not facts.unpublished:
        return []  # who still works was slower than another: see `needless_trials`
    for trial, ((_, node), task) in facts.running_trials(run).items():
        progress = facts.trials.get(trial)
        held = [
            (ledger, claim)
            for ledger, claim in facts.open_claims
            if ledger == "outputs" and claim.claim.owner == trial
        ]
        # It may work at shards at which others have begun second attempts since.
        slow = [claim for claim in facts.claims_with_second_attempt if claim.claim.owner == trial]
        claims = [*(claim for _, claim in held), *slow]
        # Those may have published all that it held while it goes on: at any dataset.
        datasets = {claim.span.dataset for claim in claims} or facts.due.keys()
        allowed = silence_seconds(run, progress, datasets, facts.due)
        silent = facts.silent.get(trial, 0.0)
        if silent < allowed:
            continue
        # One that its scheduler suspends says nothing either, and its node is well.
        how: How = End.PREEMPTED if task.suspended else "hung"
        trouble = Trouble(
            trial=trial,
            node=progress.node if progress else task.node or node,
            how=how,
            time=facts.now,
            message=f"no sign of life for {duration(silent)}, and was ended",
            log=progress.log if progress else "",
        )
        whole = facts.is_whole(run, task.name)
        # In a job for a whole node the process that started the trial ends it, unless the job is
        # suspended, and that process with it.
        by_itself = whole and not task.suspended
        actions.append(EndTrial(trouble, () if by_itself else (facts.id_of(run, task),)))
        end = End.PREEMPTED if task.suspended else End.UNKNOWN
        actions += [Revoke(ledger, claim, end) for ledger, claim in held]
    return actions


def hanging_pullers(run: Run, facts: Facts) -> list[Action]:
    """End the build, metric, judge's and scoring jobs that hang, and give their work to others."""
    actions: list[Action] = []
    for job_id, (task, seconds, begun) in facts.quiet.items():
        held = [
            (ledger, claim)
            for ledger, claim in facts.open_claims
            if claim.claim.task_id in task.ids
        ]
        # One that claimed something without a sign is of a version that gave none.
        if seconds < quiet_seconds(run, begun=begun) or (held and not begun):
            continue
        what = f"{kind_of(run, task.name)} job"
        where = f" on {task.node}" if task.node else ""
        why = f"no sign of life of this {what}{where} for {duration(seconds)}"
        actions.append(Cancel((job_id,), why))
        end = End.PREEMPTED if task.suspended else End.UNKNOWN
        actions += [Revoke(ledger, claim, end) for ledger, claim in held]
    return actions


def needless_trials(run: Run, facts: Facts) -> list[Action]:
    """Cancel the trials that hold GPUs long after the last shard was published.

    They were slower than others, and hang, or their engines do not end.
    """
    if facts.published < END_SECONDS:
        return []
    left = [
        facts.id_of(run, task)
        for task in facts.tasks
        if task.name in facts.submitted
        and jobs.is_trials(run, task.name)
        and task.state is State.RUNNING
        and not task.completing
    ]
    return [Cancel(tuple(left), "every shard is published")] if left else []


def lingering_tasks(run: Run, facts: Facts) -> list[Action]:
    """Cancel the tasks that go on long after their trials have ended: their processes hang."""
    lingering: dict[str, bool] = {}
    for trial, (_, task) in facts.trials_with_tasks(run).items():
        ended = facts.says_it_ended(trial) and facts.silent.get(trial, 0.0) >= END_SECONDS
        job_id = facts.id_of(run, task)
        lingering[job_id] = lingering.get(job_id, not task.completing) and ended
    left = tuple(job_id for job_id, all_ended in lingering.items() if all_ended)
    return [Cancel(left, "its trial has ended, and its process has not")] if left else []


def silent_ends(facts: Facts) -> list[Action]:
    """Note how trials ended that did not say so themselves."""
    living, ends = facts.living(), facts.ends()
    actions: list[Action] = []
    for trial, progress in facts.trials.items():
        task_id = progress.task.rsplit(".", 1)[0]
        if progress.state in ("ended", "failed") or task_id in living or trial in facts.troubles:
            continue
        how = ends.get(task_id, End.UNKNOWN)
        said = "ended without a word" if how is End.UNKNOWN else f"the scheduler says: {how}"
        actions.append(
            Note(
                Trouble(
                    trial=trial,
                    node=progress.node,
                    how=how,
                    time=facts.now,
                    message=said,
                    log=progress.log,
                )
            )
        )
    return actions


def undiagnosed(facts: Facts) -> list[Action]:
    """Have it written down why jobs died, once for each of them."""
    some = tuple(facts.undiagnosed[:MOST_LOGS])
    return [Diagnose(some)] if some else []
