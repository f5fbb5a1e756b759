"""Decisions on rounds: each of their nodes, lost trials, and what follows when all have ended."""

from collections.abc import Iterator, Sequence

from coordinate_eval._clock import growing
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
from coordinate_eval.coordinator.run.paths import RunDir
from coordinate_eval.coordinator.run.records import ANY_NODE, Round, RoundNode, Run
from coordinate_eval.coordinator.supervisor.decide_jobs import (
    MAX_IDLE_ARRAYS,
    all_die,
    cancel,
    cancel_late,
    is_hopeful,
    last_cause,
)
from coordinate_eval.coordinator.supervisor.values import (
    Action,
    Facts,
    Finish,
    MakePlan,
    NewRound,
    NodeKey,
    Release,
    Submit,
)

POLLS_PER_REPLACEMENT = 6
"""Polls between a round and one that replaces trials, doubled for each that answered nothing."""


def replace_lost(run: Run, facts: Facts) -> list[Action]:
    """Start a round beside those that go on, for as many trials as are missing and pay."""
    first = POLLS_PER_REPLACEMENT * run.settings.supervisor.poll_seconds
    if facts.now - facts.asked < growing(first, facts.fruitless_rounds):
        return []
    missing = missing_trials(run, facts)
    return [NewRound(missing)] if missing > 0 else []


def missing_trials(run: Run, facts: Facts) -> int:
    """Return how many trials are missing of those that the plan has and the work left pays for.

    No replacement starts before the first response: what ended some trials may end all others.
    """
    if facts.pace is None:
        return 0
    running, coming = count_trials(run, facts)
    claimable = set(facts.claimable["outputs"])
    predicted = sum(shard.gpu_seconds for shard in run.shards if shard.span in claimable)
    # A trial pays that answers as long as it takes to be ready. Those that run go on meanwhile.
    left_then = facts.pace * predicted - running * facts.ready_seconds
    wanted = min(facts.most_trials, int(left_then / max(1.0, facts.ready_seconds)))
    return max(0, min(wanted - running - coming, len(claimable) - coming))


def count_trials(run: Run, facts: Facts) -> tuple[int, int]:
    """Return how many trials run, and how many are to come: pending ones, or not submitted yet."""
    found = list(_by_node(run, facts))
    return sum(running for _, running, _ in found), sum(coming for _, _, coming in found)


def held_nodes(run: Run, facts: Facts) -> set[str]:
    """Return the nodes of these trials."""
    return {
        name
        for node, running, coming in _by_node(run, facts)
        if running or coming
        for name in node.names
    }


def _by_node(run: Run, facts: Facts) -> Iterator[tuple[RoundNode, int, int]]:
    """Yield each node of each round, how many of its trials run, and how many are to come."""
    for round_ in facts.rounds:
        for node in round_.nodes:
            name = jobs.trials_name(run, round_.number, node.name)
            if name not in facts.submitted:
                released = (round_.number, node.name) in facts.released
                yield node, 0, 0 if released else node.trials
                continue
            of_task = node.trials if facts.is_one_job(run, name) else 1
            states = [task.state for task in facts.alive(name)]
            waiting = states.count(State.PENDING)
            yield node, of_task * states.count(State.RUNNING), of_task * waiting


def for_node(
    run: Run, run_dir: RunDir, facts: Facts, round_: Round, node: RoundNode
) -> list[Action]:
    """Decide for one node of a round: keeper, then trials, then release."""
    keepers = [jobs.keeper_name(run, round_.number, name) for name in node.names]
    trials = jobs.trials_name(run, round_.number, node.name)
    key = round_.number, node.name
    keys = [(round_.number, name) for name in node.names]
    if trials in facts.submitted:
        late = [a for keeper in keepers for a in _late_keeper(run, facts, keeper, trials)]
        return [*late, *_trials(run, facts, key, trials)]
    if key in facts.released:
        return []
    if not facts.unpublished or all(_waits_in_vain(run, facts, each) for each in keys):
        return _release(facts, key)
    if node.anywhere:
        return [Submit(jobs.trials_job(run, run_dir, round_, node))]
    missing = [keeper for keeper in keepers if keeper not in facts.submitted]
    if run.exclusive or (facts.job_limit and missing):
        return [Submit(jobs.node_job(run, run_dir, round_, node))]
    nearly_staged = all(_nearly_staged(run, facts, each) for each in keys)
    if missing:
        found: list[Action] = [
            Submit(jobs.keeper_job(run, run_dir, round_, node, name))
            for name, keeper in zip(node.names, keepers, strict=True)
            if keeper in missing
        ]
        if nearly_staged:
            found.append(Submit(jobs.trials_job(run, run_dir, round_, node), beside=missing[-1]))
        return found
    if any(facts.submitted[keeper].refusal for keeper in keepers):
        # No job without GPUs is taken there: the keeper goes into the job of the trials.
        return [Submit(jobs.node_job(run, run_dir, round_, node))]
    ended = [key for key, keeper in zip(keys, keepers, strict=True) if facts.ended(keeper)]
    if ended:
        stages = [facts.stages.get(each) for each in ended]
        if any(stage is None or stage.state not in ("copying", "ready") for stage in stages):
            return _release(facts, key)
        # The keeper was killed. Trials finish its copy themselves, and remove it at the end.
        return [Submit(jobs.trials_job(run, run_dir, round_, node))]
    if nearly_staged:
        return [Submit(jobs.trials_job(run, run_dir, round_, node))]
    return [action for keeper in keepers for action in cancel_late(run, facts, keeper)]


def has_weights(run: Run, facts: Facts, round_: Round, node: RoundNode) -> bool:
    """Return whether the node goes on without the checkpoint: it has a copy, or an engine runs."""
    stages = [facts.stages.get((round_.number, name)) for name in node.names]
    if all(stage is not None and stage.state == "ready" for stage in stages):
        return True
    names = [jobs.trial_id(node.name, index, round_.number) for index in range(node.trials)]
    trials = [facts.trials[name] for name in names if name in facts.trials]
    return any(each.staged is not None and not facts.says_it_ended(each.trial) for each in trials)


def without_weights(run: Run, facts: Facts, round_: Round, node: RoundNode) -> list[Action]:
    """Free a node to which the weights will never come: its jobs that wait, and its keeper."""
    names = [jobs.keeper_name(run, round_.number, name) for name in node.names]
    names.append(jobs.trials_name(run, round_.number, node.name))
    waiting = [t for name in names for t in facts.alive(name) if t.state is State.PENDING]
    found = cancel(run, facts, waiting, "the checkpoint was deleted")
    return [*found, *_release(facts, (round_.number, node.name))]


def why_deleted(run: Run) -> str:
    """Return why a run ends whose checkpoint was deleted, in words for a person."""
    return (
        f"checkpoint {run.checkpoint.path} was deleted before its weights were on every node that "
        "needs them. Evaluate a later one, or have training keep its checkpoints longer"
    )


def is_over(run: Run, facts: Facts, round_: Round, node: RoundNode) -> bool:
    """Return whether a node has done its part in this round."""
    trials = jobs.trials_name(run, round_.number, node.name)
    if trials in facts.submitted:
        return facts.ended(trials)
    return (round_.number, node.name) in facts.released or not facts.unpublished


def _late_keeper(run: Run, facts: Facts, keeper: str, trials: str) -> list[Action]:
    """Cancel a keeper that does not start in time, or whose trials have ended before it began."""
    if keeper not in facts.submitted:  # it is in the job of its trials
        return []
    pending = [t for t in facts.alive(keeper) if t.state is State.PENDING]
    if facts.ended(trials):
        return cancel(run, facts, pending, "its trials have ended")
    return cancel_late(run, facts, keeper)


def _trials(run: Run, facts: Facts, key: NodeKey, trials: str) -> list[Action]:
    if facts.ended(trials):
        return _release(facts, key)
    if not facts.unpublished:
        pending = [t for t in facts.alive(trials) if t.state is State.PENDING]
        return cancel(run, facts, pending, "no shard is left")
    # No other node is free sooner than this machine.
    here = facts.cores is not None
    return cancel_late(run, facts, trials, patient=here or key[1] == ANY_NODE)


def _nearly_staged(run: Run, facts: Facts, key: NodeKey) -> bool:
    """Return whether the rest of the copy takes no longer than an engine's start.

    Where nothing is copied yet, this is as predicted: trials wait in the queue with the keeper. In
    containers, they wait for the keeper's first sign, so that an image that does not start there
    takes no GPU.
    """
    stage = facts.stages.get(key)
    if stage is None and run.settings.container.image_of("trial") is not None:
        return False
    if stage is not None and stage.state != "copying":
        return stage.state == "ready"
    left = run.copy_seconds
    if stage is not None and stage.done_bytes > 0 and stage.updated > stage.started:
        seconds_per_byte = (stage.updated - stage.started) / stage.done_bytes
        left = (stage.total_bytes - stage.done_bytes) * seconds_per_byte
    return left is not None and left <= run.engine_start_seconds


def _waits_in_vain(run: Run, facts: Facts, key: NodeKey) -> bool:
    """Return whether a keeper has held the weights for `patience_seconds` without any trials.

    That is where the scheduler takes none now. Others may need the memory.
    """
    stage = facts.stages.get(key)
    if stage is None or stage.state != "ready" or stage.ready is None:
        return False
    return facts.now - stage.ready > run.settings.supervisor.patience_seconds


def _release(facts: Facts, key: NodeKey) -> list[Action]:
    return [] if key in facts.released else [Release(*key)]


MAX_IDLE_ROUNDS = 3
"""Rounds in a row without any response after which the run is given up."""

ROUND_PAUSE_SECONDS = 10.0
"""Wait between rounds without any response, times their number: the cause may pass."""


LONGEST_PAUSE_SECONDS = 1800.0
"""From one round to the next, at most, while nothing of ours is at fault: the pause doubles."""


def before_plan(run: Run, facts: Facts) -> list[Action]:
    """Wait until all requests are built, then plan, or name the datasets that cannot be built.

    A run that is not strict is planned without such datasets, if others are there.
    """
    if facts.deleted:
        return [Finish(why_deleted(run))]
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
        pause = max(pause, growing(ROUND_PAUSE_SECONDS, facts.waits, LONGEST_PAUSE_SECONDS))
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
    """Return why another round would fail like the last one; None if it may succeed.

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
    tried = {name for trial in trials for name in (trial.node, *trial.others)}
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
