"""Nodes on which jobs of a run failed while others succeeded elsewhere."""

from typing import NamedTuple

from coordinate_eval import _files
from coordinate_eval.cluster import End
from coordinate_eval.coordinator.run.jobs import trials_of
from coordinate_eval.coordinator.run.paths import RunDir
from coordinate_eval.coordinator.run.records import StageProgress, TrialProgress
from coordinate_eval.coordinator.run.rounds import read_rounds
from coordinate_eval.coordinator.run.troubles.causes import JobCause, keeper_id, read_causes
from coordinate_eval.coordinator.run.troubles.trouble import read_troubles

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


def broken_nodes(run_dir: RunDir) -> list[Broken]:
    """Return the nodes on which jobs failed since the run was last resumed, by their own fault.

    Other nodes must have answered: what fails everywhere is no node's fault. A node that answers
    is not broken, unless it went down, or it is the only one on which a trial hung. The only one
    whose hardware failed, as a log says, is broken in any case.
    """
    since = _files.modified(run_dir.resumed)
    causes = read_causes(run_dir)
    down: dict[str, tuple[str, str]] = {}
    hung: dict[str, tuple[str, str]] = {}
    hardware: dict[str, tuple[str, str]] = {}
    failed: dict[str, tuple[str, str]] = {}
    answered: set[str] = set()
    for trouble in read_troubles(run_dir):
        if trouble.how == "hung":
            hung[trouble.node] = "a trial hung", trouble.trial
        elif trouble.how is End.NODE_FAILED:
            down[trouble.node] = "the node went down", trouble.trial
        elif trouble.how is End.OUT_OF_MEMORY:
            failed[trouble.node] = _NODES_FAULT["out of memory"], trouble.trial
    for round_ in read_rounds(run_dir):
        for node in round_.nodes:
            path = run_dir.stage(round_.number, node.name)
            stage = _files.read_record_if_there(path, StageProgress)
            if stage is not None and stage.state == "failed" and _files.modified(path) >= since:
                keeper = keeper_id(round_.number, node.name)
                said = _words(causes.get(keeper)) or "the weights could not be copied"
                failed[node.name] = said, keeper
        for trial, _ in trials_of(round_):
            path = run_dir.trial(trial)
            progress = _files.read_record_if_there(path, TrialProgress)
            if progress is None or _files.modified(path) < since:
                continue
            if progress.responses:
                answered.add(progress.node)
            cause = causes.get(trial)
            if cause is not None and cause.of_hardware:
                hardware[progress.node] = _words(cause), trial
            elif said := _words(cause) or _NODES_FAULT.get(progress.cause or "", ""):
                failed[progress.node] = said, trial
    # What is seen on several nodes may be an item, which went from one to the next.
    for seen in (hung, hardware):
        if len(seen) > 1:
            failed |= seen
        else:
            down = seen | down
    broken = {node: said for node, said in failed.items() if node not in answered} | down
    return [
        Broken(node, *said)
        for node, said in sorted(broken.items())
        if answered - {node} or (node in hardware and node in down)
    ]


def _words(cause: JobCause | None) -> str:
    """Return what a cause says of a node on which others do not go on; empty if nothing.

    What every job would meet, and only those on this node meet, lies in the node too.
    """
    blamed = cause is not None and (cause.of_node or cause.ends_all)
    return f"a job died of {cause.reason}" if blamed and cause is not None else ""
