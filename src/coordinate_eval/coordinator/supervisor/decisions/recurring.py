"""Failures of the last round that every other trial would meet too.

The words of a job's log count only if it failed before it had work: until then nothing is in it but
what this program, the libraries and the checkpoint say.
"""

from collections.abc import Sequence
from typing import NamedTuple

from coordinate_eval.clusters.protocol import State
from coordinate_eval.coordinator.run import jobs
from coordinate_eval.coordinator.run.records import Round, Run, TrialProgress
from coordinate_eval.coordinator.run.troubles.causes import JobCause, keeper_id
from coordinate_eval.coordinator.supervisor.decisions.values import Facts

OPINIONS = 2
"""Jobs, on as many nodes, that must have died of one cause, where the last round asked for more."""


class Recurring(NamedTuple):
    """Why another round would fail like the last one."""

    why: str
    elsewhere: bool = False
    """Only one node has shown it, and it may be that node's fault: another one may do better."""


def recurring(facts: Facts) -> Recurring | None:
    """Return why another round would fail like the last one; None if it may not.

    All trials of the last round failed, and with one error. Bad input fails again for certain, and
    so does what the rules say that every job would meet, if it was met on two nodes since the run
    began, or on one of them again, after others were looked for. Where one node was asked for, it
    is one node's word. Engines that do not start on one node may be that node's fault; if none
    starts on several nodes, another round is no help. A trial that has ever answered proves all of
    it to be right.
    """
    if facts.answered or facts.last is None:
        return None
    round_, trials = facts.last
    if any(trial.state != "failed" for trial in trials):
        return None
    causes = _causes(facts, round_, trials)
    who = "trial" if trials else "keeper"
    errors = {trial.message.replace(trial.node, "NODE") for trial in trials}
    kinds = {trial.cause for trial in trials}
    bad_input = len(errors) == 1 and kinds == {"input"}
    said = f"every {who} of a round failed with the same error; another round would fail too"
    if causes and all(cause is not None and cause.ends_all for cause in causes):
        known = [cause for cause in causes if cause is not None]
        if len({cause.reason for cause in known}) == 1 and _enough(round_, known, bool(trials)):
            last = known[-1]
            elsewhere = (
                not bad_input and last.may_be_of_node and not _met_again(facts, round_, known)
            )
            return Recurring(f"{said}: {last.words}", elsewhere)
    nodes = {trial.node for trial in trials}
    if bad_input or (len(errors) == 1 and kinds == {"engine start"} and len(nodes) > 1):
        return Recurring(said)
    return None


def ends_early(run: Run, facts: Facts) -> bool:
    """Return whether nothing has to be waited for, though jobs are left of the last round.

    Two nodes have shown what would happen, and no job runs that could show something else.
    """
    if not recurring(facts) or facts.last is None:
        return False
    round_, trials = facts.last
    causes = _causes(facts, round_, trials)
    nodes = {trial.node for trial in trials} | {cause.node for cause in causes if cause}
    copying = any(
        jobs.is_keeper(run, task.name) and task.state is State.RUNNING and task.node not in nodes
        for task in facts.tasks
    )
    return len(nodes) >= OPINIONS and not copying and not facts.running_trials(run)


def last_known(facts: Facts) -> str:
    """Return of what a trial or keeper died, to be added to a sentence; empty if nobody knows.

    Those of the last round come first.
    """
    last = _causes(facts, *facts.last) if facts.last else []
    known = [c for c in (*facts.causes.values(), *last) if c is not None and c.known]
    return f"; the last job of which the cause is known died of {known[-1].words}" if known else ""


def _causes(facts: Facts, round_: Round, trials: Sequence[TrialProgress]) -> list[JobCause | None]:
    """Return the causes of the trials, and of the keepers that failed where no trial began."""
    tried = {trial.node for trial in trials}
    keepers = [
        cause
        for node in round_.nodes
        if node.name not in tried
        and (cause := facts.causes.get(keeper_id(round_.number, node.name))) is not None
    ]
    return [*(facts.causes.get(trial.trial) for trial in trials), *keepers]


def _met_again(facts: Facts, round_: Round, causes: Sequence[JobCause]) -> bool:
    """Return whether jobs died of a round's cause on two nodes, or on one in an earlier round."""
    reason = causes[-1].reason
    alike = [each for each in facts.causes.values() if each.ends_all and each.reason == reason]
    mine = {each.job for each in causes} | {keeper_id(round_.number, n.name) for n in round_.nodes}
    nodes = {each.node for each in alike}
    return len(nodes) >= OPINIONS or any(each.job not in mine for each in alike)


def _enough(round_: Round, causes: Sequence[JobCause], tried: bool) -> bool:
    """Return whether one odd job, or one broken node, is ruled out as far as the round allows."""
    asked = sum(node.trials for node in round_.nodes) if tried else len(round_.nodes)
    nodes = {cause.node for cause in causes}
    return len(causes) >= min(OPINIONS, asked) and len(nodes) >= min(OPINIONS, len(round_.nodes))
