"""Nodes on which jobs of a run failed: while others answered elsewhere, or before any did."""

from collections import Counter
from typing import NamedTuple

from coordinate_eval import _files
from coordinate_eval.clusters.protocol import End
from coordinate_eval.coordinator.run.jobs import trials_of
from coordinate_eval.coordinator.run.paths import RunDir
from coordinate_eval.coordinator.run.records import Run, StageProgress, TrialProgress
from coordinate_eval.coordinator.run.rounds import read_rounds
from coordinate_eval.coordinator.run.troubles.avoided import LONGEST_SECONDS, Avoided
from coordinate_eval.coordinator.run.troubles.causes import JobCause, keeper_id, read_causes
from coordinate_eval.coordinator.run.troubles.trouble import read_troubles
from coordinate_eval.diagnosis.reaction import Action

_NODES_FAULT = {
    "engine start": "an engine did not start",
    "out of memory": "an engine ran out of memory",
    "node": "a trial failed",
}
"""Causes of failed trials that lie in the node, if trials elsewhere do not fail so."""


class Broken(NamedTuple):
    """A node to be avoided."""

    node: str
    why: str
    evidence: str
    """The last job of this run that failed there."""


class _Fault(NamedTuple):
    """The last fault seen on a node."""

    why: str
    job: str
    time: float
    anywhere: bool = False
    """Another node would do no better: the input is at fault, or the trouble passes, by itself or
    with less load."""


class _Faults(NamedTuple):
    """Faults and answers seen since the run was last resumed, by node."""

    down: dict[str, _Fault]
    hung: dict[str, _Fault]
    hardware: dict[str, _Fault]
    failed: dict[str, _Fault]
    answered: set[str]


def broken_nodes(run_dir: RunDir) -> list[Broken]:
    """Return the nodes on which jobs failed since the run was last resumed, by their own fault.

    Other nodes must have answered: what fails everywhere is no node's fault. A node that answers
    is not broken, unless it went down, or it is the only one on which a trial hung. The only one
    whose hardware failed, as a log says, is broken also where no other has answered. But where none
    has at all, a log may have the words of a checkpoint that no engine loads, and not the node's.
    """
    down, hung, hardware, failed, answered = _read(run_dir)
    # What is seen on several nodes may be an item, which went from one to the next.
    for seen in (hung, hardware):
        if len(seen) > 1:
            failed |= seen
        else:
            down = seen | down
    broken = {node: fault for node, fault in failed.items() if node not in answered} | down
    return [
        Broken(node, fault.why, fault.job)
        for node, fault in sorted(broken.items())
        if answered - {node} or (answered and node in hardware and node in down)
    ]


def suspected_nodes(run_dir: RunDir, run: Run, now: float) -> dict[str, Avoided]:
    """Return the nodes that this run alone avoids now, by name: they may be broken.

    Jobs failed there, and none of the run has answered, so that nobody knows whether another node
    does better. It is tried: for `[trial] avoid_minutes` the run looks for others. What is seen on
    several nodes is no node's fault, and some causes would be met on any.
    """
    seconds = min(LONGEST_SECONDS, run.settings.trial.avoid_minutes * 60)
    down, hung, hardware, failed, answered = _read(run_dir)
    if answered:
        return {}
    seen = failed | hung | down | hardware
    often = Counter(fault.why for fault in seen.values())
    return {
        node: Avoided(node=node, until=until, why=f"{fault.why} ({fault.job} of this run)")
        for node, fault in sorted(seen.items())
        if often[fault.why] == 1 and not fault.anywhere and (until := fault.time + seconds) > now
    }


def _read(run_dir: RunDir) -> _Faults:
    since = _files.modified(run_dir.resumed)
    causes = read_causes(run_dir)
    down: dict[str, _Fault] = {}
    hung: dict[str, _Fault] = {}
    hardware: dict[str, _Fault] = {}
    failed: dict[str, _Fault] = {}
    answered: set[str] = set()
    for trouble in read_troubles(run_dir):
        trial, when = trouble.trial, _files.modified(run_dir.trouble(trouble.trial))
        if trouble.how == "hung":
            hung[trouble.node] = _Fault("a trial hung", trial, when)
        elif trouble.how is End.NODE_FAILED:
            down[trouble.node] = _Fault("the node went down", trial, when)
        elif trouble.how is End.OUT_OF_MEMORY:
            said = _NODES_FAULT["out of memory"]
            failed[trouble.node] = _Fault(said, trial, when, anywhere=True)
    for round_ in read_rounds(run_dir):
        for node in round_.nodes:
            path = run_dir.stage(round_.number, node.name)
            stage = _files.read_record_if_there(path, StageProgress)
            when = _files.modified(path)
            if stage is not None and stage.state == "failed" and when >= since:
                keeper = keeper_id(round_.number, node.name)
                said = _words(causes.get(keeper)) or "the weights could not be copied"
                failed[node.name] = _Fault(said, keeper, when, _anywhere(causes.get(keeper)))
        for trial, _ in trials_of(round_):
            path = run_dir.trial(trial)
            progress = _files.read_record_if_there(path, TrialProgress)
            when = _files.modified(path)
            if progress is None or when < since:
                continue
            if progress.responses:
                answered.add(progress.node)
            cause = causes.get(trial)
            if cause is not None and cause.of_hardware:
                hardware[progress.node] = _Fault(_words(cause), trial, when)
            elif said := _words(cause) or _NODES_FAULT.get(progress.cause or "", ""):
                anywhere = _anywhere(cause) or progress.cause == "out of memory"
                failed[progress.node] = _Fault(said, trial, when, anywhere)
    return _Faults(down, hung, hardware, failed, answered)


def _words(cause: JobCause | None) -> str:
    """Return what a cause says of a node on which others do not go on; empty if nothing.

    What every job would meet, and only those on this node meet, lies in the node too.
    """
    blamed = cause is not None and (cause.of_node or cause.ends_all)
    return f"a job died of {cause.reason}" if blamed and cause is not None else ""


def _anywhere(cause: JobCause | None) -> bool:
    if cause is None:
        return False
    return cause.action in (Action.WAIT, Action.LESS_LOAD) or not cause.may_be_of_node
