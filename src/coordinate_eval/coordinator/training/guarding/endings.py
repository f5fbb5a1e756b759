"""A job that is gone: what became of it, why, who is to blame, and what follows."""

from dataclasses import replace
from pathlib import Path

from coordinate_eval import _files
from coordinate_eval._format import brief
from coordinate_eval.clusters.protocol import End, TaskStatus
from coordinate_eval.coordinator.doctor.nodes import DRAIN_REASON, drain_command
from coordinate_eval.coordinator.incidents.bad_nodes import avoid
from coordinate_eval.coordinator.planning.places.asked_nodes import expand
from coordinate_eval.coordinator.training.guarding import beginnings, living, why
from coordinate_eval.coordinator.training.guarding.attempts import (
    Attempt,
    Begun,
    Cancelled,
    Ended,
    Evaluated,
    JobOf,
    NodesTested,
    What,
)
from coordinate_eval.coordinator.training.guarding.decide import (
    Follows,
    decide,
    is_of_checkpoint,
)
from coordinate_eval.coordinator.training.guarding.hands import Hands
from coordinate_eval.coordinator.training.guarding.vitals import Vitals, wrong
from coordinate_eval.errors import ClusterError, CoordinateError
from coordinate_eval.slurm.batch import Described

FORGOTTEN_SECONDS = 300.0
"""Time for which the controller does not know a job before the job counts as gone. After so long
without an answer, Slurm gives up a node and what runs there, and accounting has caught up."""


def end(hands: Hands, attempt: Attempt, job: JobOf, shown: TaskStatus | None) -> bool:
    """Note what became of the job of an attempt. Return whether more is due at once."""
    number = attempt.number
    described = hands.scripts.describe(job.job_id)
    if shown is None and _may_run(hands, job.job_id, described):
        return False
    end = described.end if described is not None else End.UNKNOWN
    end = shown.end if shown is not None and end is End.UNKNOWN else end
    begun, cancelled = hands.dir.read(number, Begun), hands.dir.read(number, Cancelled)
    if begun is None and described is not None and described.nodes:  # it ended between looks
        now = hands.clock.now()
        begun = Begun(time=now, nodes=described.nodes, partition=described.partition)
        hands.create(number, begun)
    vitals = hands.watch.look(number, hands.clock.now())
    unseen = cancelled is None and end is End.COMPLETED and vitals.last_step is not None
    if unseen and living.goes_back(hands, number, vitals.last_step or 0):
        cancelled = hands.dir.read(number, Cancelled)  # it went wrong since the last look
    problem = wrong(vitals, hands.policy)
    if cancelled is None and problem is not None and problem.what is What.NOT_FINITE:
        # It ended by itself, perhaps at its last step, and what it saved is of no use.
        now = hands.clock.now()
        cancelled = Cancelled(what=problem.what, time=now, why=problem.why, onset=vitals.onset)
        hands.create(number, cancelled)
    # The file server's clock tells what was saved since, whatever other clocks say.
    saved = hands.checkpoints.newest_step(_files.modified(hands.dir.of_attempt(number, "job")))
    reached = max((s for s in (vitals.last_step, saved) if s is not None), default=None)
    before = _furthest(hands)
    told = described.told if described is not None else None
    lacks = _lacks(hands, attempt, vitals, reached, told)
    what = why.what_of(end, cancelled, finished=not lacks, told=told)
    if what in (What.HUNG, What.LOST) and _is_saved(hands, saved):
        what = What.FINISHED  # all is saved: its processes did not end, or nobody saw how
    cause = cancelled.cause if cancelled is not None else None
    if what in (What.FAILED, What.OUT_OF_MEMORY, What.NODE_FAILED, What.LOST):
        cause = why.cause_of_attempt(hands, number, described)
    if what is What.FAILED and (slurms := why.at_slurms_word(cause, told)) is not None:
        what = slurms
    words = cancelled.why if cancelled is not None and what is cancelled.what else ""
    if what is What.ENDED_EARLY:
        words = lacks
    at_once = what is What.FAILED and reached is None
    if at_once and attempt.checkpoint and not Path(attempt.checkpoint).exists():
        # What its log says of a missing file is no error of the script.
        cause, words = None, f"{attempt.checkpoint} was deleted before the training had read it"
    ended = Ended(
        number=number,
        what=what,
        time=hands.clock.now(),
        why=words,
        cause=cause,
        checkpoint=attempt.checkpoint,
        gained=saved is not None and reached is not None and reached > before,
        first_step=vitals.first_step,
        last_step=reached,
        began=begun.time if begun is not None else None,
        stepped=vitals.stepped,
        step_seconds=vitals.step_seconds,
        nodes=begun.nodes if begun is not None else "",
        state=f"{described.state} {described.exit_code}".strip() if described else "",
    )
    return hands.create(number, ended)


def _may_run(hands: Hands, job_id: str, described: Described | None) -> bool:
    """Return whether a job that squeue does not list may run all the same.

    The accounting may say for ever that a job runs whose end it has missed. Such a job is gone
    when the controller has not known it for a while.
    """
    if described is not None and described.end is not End.UNKNOWN:
        return False
    if described is not None and not described.forgotten:
        return True  # squeue did not list it, and Slurm has not ended it
    now = hands.clock.passed()
    since = hands.unknown_since.setdefault(job_id, now)
    said = f", and its accounting says {described.state}" if described is not None else ""
    hands.say(f"Slurm does not know job {job_id} any more{said}")
    if now - since < FORGOTTEN_SECONDS:
        return True
    hands.check_epoch()
    hands.scripts.cancel(job_id)
    return False


def _furthest(hands: Hands) -> int:
    """Return the last step that an attempt has reached since the training went back last."""
    furthest = 0
    for each in reversed(hands.dir.history()):
        if each.what is What.ROLLED_BACK:
            break
        furthest = max(furthest, each.last_step or 0)
    return furthest


def _is_saved(hands: Hands, saved: int | None) -> bool:
    """Return whether the last step is saved, for sure."""
    policy = hands.policy
    if policy.done_file and Path(hands.guarded.folder, policy.done_file).exists():
        return True
    return policy.last_step is not None and saved is not None and saved >= policy.last_step


def _lacks(
    hands: Hands, attempt: Attempt, vitals: Vitals, reached: int | None, told: End | None
) -> str:
    """Return what a training that ended with exit 0 has not done; empty if it is complete.

    Where the policy names no end, the total counts to which the training counts itself. It
    need not report its last step, and may count from 0, so an end between two reports is one.
    """
    policy, cancelled = hands.policy, hands.dir.read(attempt.number, Cancelled)
    if cancelled is not None and cancelled.what in (What.NOT_FINITE, What.ROLLED_BACK):
        return cancelled.why
    if _is_saved(hands, None):
        return ""
    if policy.done_file and policy.last_step is None:
        return f"it has not written {policy.done_file} (`done_file`)"
    if reached is None:
        return "it has come to no step"
    if policy.last_step is not None:
        missed = reached < policy.last_step
        return f"step {reached} of {policy.last_step} (`last_step`)" if missed else ""
    if not vitals.total:
        return "Slurm wanted it to end" if told is not None else ""
    apart = vitals.apart or (vitals.first_step or 0) - attempt.step
    early = vitals.total - reached > max(1, apart)
    return f"step {reached} of {vitals.total}, by its log" if early else ""


def follow(hands: Hands, attempt: Attempt, ended: Ended) -> bool:
    """Do what follows an attempt that has ended: test nodes, choose a checkpoint, decide."""
    decision = decide(hands.dir.history(hands.guarded.first), hands.policy)
    if decision.follows is Follows.DONE:
        return hands.finish(complete=True, words=_finished(hands, ended))
    if decision.follows is Follows.STOP or hands.dir.stop.exists():
        unseen = ended.what is What.ENDED_EARLY and ended.last_step is None
        hint = _where_no_step_is(hands, attempt.number) if unseen else ""
        return hands.finish(complete=False, words=decision.why + hint)
    if decision.follows is Follows.OTHER_NODES and not _are_tested(hands, attempt, ended):
        return False
    if ended.what is What.ROLLED_BACK and not _are_evaluated(hands, attempt.number, ended):
        return False
    if attempt.checkpoint and ended.first_step is None and is_of_checkpoint(ended.cause):
        hands.checkpoints.refuse(Path(attempt.checkpoint), "the training could not load it")
    choice = hands.checkpoints.choose(hands.dir.spoiled())
    if choice is None:
        return False
    if not choice.path and (choice.refused or attempt.checkpoint):
        words = choice.refused or "; ".join(choice.passed_over) or "there is none any more"
        return hands.finish(
            complete=False,
            words=f"{decision.why}; no checkpoint to begin from: {words}; correct that, or "
            "name the folder of this training alone with --checkpoints",
        )
    tested = hands.dir.read(attempt.number, NodesTested)
    hands.notify(
        f"{attempt.number}",
        decision.why,
        attempt=attempt.number,
        what=ended.what.value,
        cause=ended.cause.model_dump(mode="json") if ended.cause is not None else None,
        nodes=tested.model_dump(mode="json") if tested is not None else None,
        done=f"it begins again from {choice.path or 'the beginning'}",
    )
    cancelled = hands.dir.read(attempt.number, Cancelled)
    skip = attempt.skip + (cancelled.skip if cancelled is not None else ())
    return beginnings.decide(
        hands,
        attempt.number + 1,
        choice,
        decision.why,
        after=ended.time + decision.pause,
        skip=skip,
        smaller_than=attempt.nodes if ended.what is What.NEVER_STARTED else None,
    )


def _where_no_step_is(hands: Hands, number: int) -> str:
    """Return where steps were looked for, and what to do if there were some."""
    logs = ", ".join(hands.dir.logs_of(number).own) or "its log"
    return (
        f". No step is in {logs}, and no save in {hands.guarded.checkpoints}: if it "
        "trained, `logs` and `patterns` of the policy say where and how it reports steps"
    )


def _finished(hands: Hands, ended: Ended) -> str:
    """Return how a training is complete, and what says that it is."""
    policy = hands.policy
    by_exit = policy.last_step is None and not policy.done_file
    by_exit = by_exit and not hands.watch.vitals(ended.number).total
    said = ": it ended with exit 0, and neither its log nor the policy names its last step"
    return f"finished at step {ended.last_step}{said * by_exit}"


def _are_tested(hands: Hands, attempt: Attempt, ended: Ended) -> bool:
    """Find the bad nodes among those of an attempt. Return whether that is done."""
    number = attempt.number
    if hands.dir.read(number, NodesTested) is not None:
        return True
    settings, now = hands.guarded.settings, hands.clock.now()
    nodes = expand(ended.nodes) if ended.nodes else []
    named = why.named_nodes(ended.cause, nodes)
    begun = hands.dir.read(number, Begun)
    if not hands.policy.test_nodes or len(nodes) < 2 or begun is None:
        found = NodesTested(words="the nodes were not tested")
    else:
        answer = hands.tests.result(nodes, begun.partition)
        if answer is None:
            return False
        found = answer
    reason = ended.cause.reason if ended.cause is not None else ended.what
    for node in named:
        avoid(settings, node, f"{reason} (a guarded training)", hands.mark(number), now)
    bad = tuple(dict.fromkeys([*found.bad, *named]))
    found = found.model_copy(update={"bad": bad, "drain": drain_command(bad)})
    if hands.policy.drain:
        found = _drained(hands, found)
    hands.create(number, found)
    hands.say(f"{found.words}{f'; to drain: {found.drain}' if found.drain else ''}")
    return True


def _are_evaluated(hands: Hands, number: int, ended: Ended) -> bool:
    """Compare the checkpoints before a training goes back. Return whether that is done."""
    if hands.dir.read(number, Evaluated) is not None:
        return True
    now, checkpoints = hands.clock.now(), hands.checkpoints
    said = hands.watch.scores(now).said
    furthest = (ended.last_step or 0) - hands.policy.most_steps_back
    saves = [
        replace(each, scores=said.get(each.step))
        for each in checkpoints.saves(hands.dir.spoiled())
        if each.step >= furthest and not checkpoints.why_unfit(each.path)
    ]
    try:
        found = hands.evaluations.compare(number, saves, now)
    except (CoordinateError, OSError) as error:  # the training does not depend on it
        found = Evaluated(words=f"first signals: none: {brief(error)}")
    if found is None:
        return False
    hands.create(number, found)
    if found.words:
        hands.say(found.words)
    return True


def _drained(hands: Hands, found: NodesTested) -> NodesTested:
    """Drain the bad nodes, as far as the user may. The training does not depend on it."""
    if not found.bad:
        return found
    try:
        hands.scripts.drain(found.bad, DRAIN_REASON)
    except ClusterError as error:
        said, drain = f"bad nodes could not be drained: {brief(error)}", found.drain
    else:
        said, drain = f"drained: {', '.join(found.bad)}", ""
    return found.model_copy(update={"words": f"{found.words}; {said}", "drain": drain})
