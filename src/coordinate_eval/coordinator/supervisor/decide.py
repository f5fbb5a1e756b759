"""Supervision as a pure function of facts: no clock, no files, no scheduler.

`decide` is called after each poll. `decide_rounds.py` has what it decides on rounds and on their
nodes, `decide_jobs.py` on single jobs.
"""

from dataclasses import replace

from coordinate_eval.clusters.protocol import End, State
from coordinate_eval.coordinator.incidents.observe import living_and_ended
from coordinate_eval.coordinator.run import jobs
from coordinate_eval.coordinator.run.claiming.pullers import Pullers
from coordinate_eval.coordinator.run.paths import RunDir
from coordinate_eval.coordinator.run.records import Run
from coordinate_eval.coordinator.supervisor.decide_jobs import (
    end_vain_wait,
    hanging_pullers,
    hanging_trials,
    more_pullers,
    needless_tasks,
)
from coordinate_eval.coordinator.supervisor.decide_rounds import (
    before_plan,
    ends_early,
    for_node,
    has_weights,
    is_over,
    next_round,
    replace_lost,
    waiting_for_scores,
    why_deleted,
    without_weights,
)
from coordinate_eval.coordinator.supervisor.values import (
    Action,
    Cancel,
    EndHung,
    Facts,
    FindCauses,
    Finish,
    Release,
    Revoke,
)

MOST_LOGS = 32
"""Logs that are read between two polls: each takes a fraction of a second."""

_ORDER = ((Cancel,), (FindCauses,), (Release, EndHung, Revoke))


def decide(run: Run, run_dir: RunDir, facts: Facts) -> list[Action]:
    """Return the actions that are due now, in order.

    An error ends a pass. So actions that free nodes come before submissions, and those that need no
    file come first. Incidents are judged before nodes are released, and no node is released while
    an incident waits: once all nodes of a round are released, nobody asks how its trials ended.
    """
    if facts.cancelled:
        return [Finish("cancelled")]
    actions = end_vain_wait(run, facts) or _due(run, run_dir, facts)
    if len(facts.observed) > MOST_LOGS:
        actions = [action for action in actions if not isinstance(action, Release)]
    return sorted(actions, key=_rank)


def _rank(action: Action) -> int:
    return next((n for n, kinds in enumerate(_ORDER) if isinstance(action, kinds)), len(_ORDER))


def _due(run: Run, run_dir: RunDir, facts: Facts) -> list[Action]:
    orphans = _orphaned_claims(facts)
    actions: list[Action] = [*orphans]
    actions += _submitted_twice(run, facts)
    over = {(orphan.ledger, orphan.claim) for orphan in orphans}
    held = replace(facts, open_claims=[c for c in facts.open_claims if c not in over])
    actions += hanging_pullers(run, held)
    for kind in Pullers:
        actions += more_pullers(run, run_dir, facts, kind, held.held_by(run, kind))
    # The causes of new incidents are found, of a few of them at once.
    unclear = [FindCauses(tuple(facts.observed[:MOST_LOGS]))] if facts.observed else []
    if not run.planned:
        return [*actions, *(unclear or before_plan(run, facts))]
    refused = [stage.message for stage in facts.stages.values() if stage.refused]
    if refused and facts.unpublished:
        return [*actions, Finish(refused[0])]
    nodes = [(round_, node) for round_ in facts.rounds for node in round_.nodes]
    actions += [*hanging_trials(run, held), *needless_tasks(run, held), *unclear]
    for round_, node in nodes:
        if facts.deleted and not has_weights(run, facts, round_, node):
            actions += without_weights(run, facts, round_, node)
        else:
            actions += for_node(run, run_dir, facts, round_, node)
    all_over = all(is_over(run, facts, round_, node) for round_, node in nodes)
    if facts.unscored == 0:
        actions.append(Finish())
    elif facts.unpublished and facts.deleted:
        if all(is_over(run, facts, *each) or not has_weights(run, facts, *each) for each in nodes):
            actions.append(Finish(why_deleted(run)))
    elif facts.unpublished and unclear:
        # What follows from incidents is known at the next poll.
        pass
    elif facts.unpublished and (all_over or ends_early(run, facts)):
        actions += next_round(run, facts)
    elif facts.unpublished and not any(orphan.ledger == "outputs" for orphan in orphans):
        # What lost trials held is claimable at the next poll.
        actions += replace_lost(run, facts)
    elif all_over:
        actions += waiting_for_scores(run, facts)
    return actions


def _orphaned_claims(facts: Facts) -> list[Revoke]:
    """Revoke the open claims of tasks that have ended without giving them back."""
    living, ends = living_and_ended(facts.tasks)
    return [
        Revoke(ledger, held, ends.get(held.claim.task_id, End.UNKNOWN))
        for ledger, held in facts.open_claims
        if held.claim.task_id not in living
    ]


def _submitted_twice(run: Run, facts: Facts) -> list[Action]:
    """Cancel jobs that two supervisors submitted at the same time, but for the recorded ones."""
    twice = set()
    for task in facts.tasks:
        first = facts.submitted.get(task.name)
        if task.state is State.ENDED or first is None or jobs.is_supervisor(run, task.name):
            continue
        if first.job_id not in (None, task.job_id):
            twice.add(task.job_id)
    why = "another supervisor had submitted the same jobs"
    return [Cancel(tuple(sorted(twice)), why)] if twice else []
