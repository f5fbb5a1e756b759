"""Decisions on a run whose jobs have ended: to go on, or how to end."""

from collections.abc import Sequence

from coordinate_eval.clusters.protocol import State
from coordinate_eval.coordinator.incidents.incident import (
    Incident,
    batch_of_round,
    last_known,
    of_engines,
)
from coordinate_eval.coordinator.incidents.remedies import OPINIONS, Recurring, recurring
from coordinate_eval.coordinator.run import jobs
from coordinate_eval.coordinator.run.claiming.claims import MAX_DEATHS
from coordinate_eval.coordinator.run.claiming.pullers import Pullers, is_pullers
from coordinate_eval.coordinator.run.records import Run
from coordinate_eval.coordinator.supervisor.decisions.pullers import (
    MAX_IDLE_ARRAYS,
    all_die,
    is_hopeful,
    last_cause,
)
from coordinate_eval.coordinator.supervisor.decisions.values import (
    Action,
    Facts,
    Finish,
    MakePlan,
    NewRound,
)

MAX_IDLE_ROUNDS = 3
"""Rounds in a row without any response after which the run is given up."""

ROUND_PAUSE_SECONDS = 10.0
"""Wait between rounds without any response, times their number: the cause may pass."""


LONGEST_PAUSE_SECONDS = 1800.0
"""From one round to the next, at most, while nothing of ours is at fault: the pause doubles."""


def before_plan(run: Run, facts: Facts) -> list[Action]:
    """Wait until all requests are built, then plan or say which cannot be.

    A run that is not strict is planned without these, if there are others.
    """
    if not facts.unbuilt:
        others = len(facts.unbuildable) < len(run.suite.datasets)
        if not facts.unbuildable or (others and not run.strict):
            return [MakePlan()]
        names = ", ".join(facts.unbuildable)
        return [Finish(f"the requests of {names} cannot be built")]  # their errors say why
    if why := all_die(run, facts, Pullers.BUILD):
        return [Finish(why)]
    building = any(ledger == "requests" for ledger, _ in facts.open_claims) or any(
        is_pullers(run, task.name, Pullers.BUILD) and task.state is not State.ENDED
        for task in facts.tasks
    )
    idle = facts.idle_arrays[Pullers.BUILD]
    if building or (facts.claimable["requests"] and idle < MAX_IDLE_ARRAYS):
        return []
    if facts.claimable["requests"]:
        said = f"{idle} arrays of build jobs in a row built nothing"
        return [Finish(said + last_cause(facts, Pullers.BUILD))]
    said = f"{MAX_DEATHS} build jobs died at each dataset that is left"
    return [Finish(said + last_cause(facts, Pullers.BUILD))]


def next_round(run: Run, facts: Facts) -> list[Action]:
    """Start the next round after a pause, or give up where another one would not help."""
    found = last_round_recurs(facts)
    why = _why(found) if found else ""
    if found and (not found.elsewhere or facts.idle_rounds >= MAX_IDLE_ROUNDS):
        return [Finish(why)]
    if facts.idle_rounds >= MAX_IDLE_ROUNDS:
        said = f"{facts.idle_rounds} rounds in a row produced no response"
        last = last_known([*of_engines(facts.incidents), *_latest(facts)])
        known = f"; the last job of which the cause is known died of {last}" if last else ""
        return [Finish(said + known)]
    if not facts.claimable["outputs"] and not any(
        ledger == "outputs" for ledger, _ in facts.open_claims
    ):
        return waiting_for_scores(run, facts, "trials died on each shard that is left")
    pause = 0.0 if found else ROUND_PAUSE_SECONDS * facts.idle_rounds
    if facts.waits:
        doubled = ROUND_PAUSE_SECONDS * 2 ** min(facts.waits, 16)
        pause = max(pause, min(LONGEST_PAUSE_SECONDS, doubled))
    if not facts.claimable["outputs"] or facts.now - facts.asked < pause:
        return []
    # What lost trials held is claimable at the next poll.
    held = sum(ledger == "outputs" for ledger, _ in facts.open_claims)
    left = len(facts.claimable["outputs"]) + held
    return [NewRound(min(facts.most_trials or left, left), why)]


def ends_early(run: Run, facts: Facts) -> bool:
    """Return whether nothing has to be waited for, though jobs are left of the last round.

    Two nodes have shown what would happen, and no job runs that could show something else.
    """
    nodes = {incident.node for incident in _latest(facts)}
    copying = any(
        jobs.is_keeper(run, task.name) and task.state is State.RUNNING and task.node not in nodes
        for task in facts.tasks
    )
    idle = not copying and not facts.running_trials(run)
    return len(nodes) >= OPINIONS and idle and last_round_recurs(facts) is not None


def last_round_recurs(facts: Facts) -> Recurring | None:
    """Return why another round would fail like the last one; None if it may not.

    A trial that has ever answered proves that everything is right that all trials share.
    """
    latest = _latest(facts)
    if facts.answered or facts.last is None:
        return None
    dead = {incident.job for incident in latest}
    if any(trial.trial not in dead for trial in facts.last[1]):
        return None
    return recurring(latest, of_engines(facts.incidents))


def _why(found: Recurring) -> str:
    """Return why a run ends, in words for a person."""
    said = f"every {found.last.kind} of a round failed with the same error"
    words = f": {found.last.words}" if found.last.stops else ""
    return f"{said}; another round would fail too{words}"


def _latest(facts: Facts) -> Sequence[Incident]:
    """Return the incidents of the last round: of its trials, and of keepers that none followed."""
    if facts.last is None:
        return []
    round_, trials = facts.last
    tried = {trial.node for trial in trials}
    return [
        each
        for each in of_engines(facts.incidents)
        if each.batch == batch_of_round(round_.number)
        and (each.kind == "trial" or each.node not in tried)
    ]


def waiting_for_scores(
    run: Run, facts: Facts, otherwise: str = "the datasets that are left cannot be scored"
) -> list[Action]:
    """Wait for answers and scores, which are all that can still come, or give up.

    `otherwise` is why nothing else comes.
    """
    stuck = [kind for kind in Pullers if facts.waiting_for(run, kind)]
    hopeful = any(is_hopeful(run, facts, kind) for kind in stuck)
    # What the judge said last may be of the job before the one that is there.
    asking = any(
        is_pullers(run, task.name, Pullers.JUDGE) and task.state is not State.ENDED
        for task in facts.tasks
    )
    if facts.open_claims or hopeful or (asking and Pullers.JUDGE in stuck):
        return []
    if Pullers.JUDGE in stuck and facts.judge is not None and facts.judge.said:
        return [Finish(f"questions wait for their judge: {facts.judge.said}")]
    for kind in stuck:
        said = f"{facts.idle_arrays[kind]} arrays of {kind} jobs in a row did nothing"
        return [Finish(all_die(run, facts, kind) or said + last_cause(facts, kind))]
    return [Finish(otherwise + last_cause(facts, Pullers.SCORE))]
