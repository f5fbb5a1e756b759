"""Decisions for one node of a round: its keeper, then its trials, then its release."""

from coordinate_eval.clusters.protocol import State
from coordinate_eval.coordinator.run import jobs
from coordinate_eval.coordinator.run.paths import RunDir
from coordinate_eval.coordinator.run.records import ANY_NODE, Round, RoundNode, Run
from coordinate_eval.coordinator.supervisor.decisions.pending import cancel, cancel_late
from coordinate_eval.coordinator.supervisor.decisions.replacements import pays_no_more
from coordinate_eval.coordinator.supervisor.decisions.values import (
    Action,
    Facts,
    NodeKey,
    Release,
    Submit,
)


def for_node(
    run: Run, run_dir: RunDir, facts: Facts, round_: Round, node: RoundNode
) -> list[Action]:
    """Decide for one node of a round: keeper, then trials, then release."""
    keeper = jobs.keeper_name(run, round_.number, node.name)
    trials = jobs.trials_name(run, round_.number, node.name)
    key = round_.number, node.name
    if trials in facts.submitted:
        return [*_late_keeper(run, facts, keeper, trials), *_trials(run, facts, key, trials)]
    if key in facts.released:
        return []
    if not facts.unpublished or _waits_in_vain(run, facts, key):
        return _release(facts, key)
    if node.anywhere:
        return [Submit(jobs.trials_job(run, run_dir, round_, node))]
    if run.exclusive or (facts.job_limit and keeper not in facts.submitted):
        return [Submit(jobs.node_job(run, run_dir, round_, node))]
    if keeper not in facts.submitted:
        both: list[Action] = [Submit(jobs.keeper_job(run, run_dir, round_, node))]
        if _nearly_staged(run, facts, key):
            both.append(Submit(jobs.trials_job(run, run_dir, round_, node), beside=keeper))
        return both
    if facts.submitted[keeper].refusal:
        # No job without GPUs is taken there: the keeper goes into the job of the trials.
        return [Submit(jobs.node_job(run, run_dir, round_, node))]
    if facts.ended(keeper):
        stage = facts.stages.get(key)
        if stage is None or stage.state not in ("copying", "ready"):
            return _release(facts, key)
        # The keeper was killed. Trials finish its copy themselves, and remove it at the end.
        return [Submit(jobs.trials_job(run, run_dir, round_, node))]
    if _nearly_staged(run, facts, key):
        return [Submit(jobs.trials_job(run, run_dir, round_, node))]
    return cancel_late(run, facts, keeper)


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
    if facts.now - facts.submitted[trials].time > facts.ready_seconds and pays_no_more(run, facts):
        pending = [t for t in facts.alive(trials) if t.state is State.PENDING]
        return cancel(
            run, facts, pending, "those that run will have begun all shards before it starts"
        )
    # No other node is free sooner than this machine.
    here = facts.cores is not None
    return cancel_late(run, facts, trials, patient=here or key[1] == ANY_NODE)


def _nearly_staged(run: Run, facts: Facts, key: NodeKey) -> bool:
    """Return whether the rest of the copy takes no longer than an engine's start.

    Where nothing is copied yet, this is as predicted: trials wait in the queue with the keeper.
    """
    stage = facts.stages.get(key)
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
