"""Nodes on which jobs of a run failed: while others answered elsewhere, or before any did."""

from collections import Counter
from collections.abc import Mapping
from typing import NamedTuple

from coordinate_eval import _files
from coordinate_eval.clusters.protocol import End
from coordinate_eval.coordinator.incidents.avoided import LONGEST_SECONDS, Avoided
from coordinate_eval.coordinator.incidents.incident import Incident, of_engines, read_incidents
from coordinate_eval.coordinator.run.paths import RunDir
from coordinate_eval.coordinator.run.records import Run, TrialProgress
from coordinate_eval.diagnosis.cause import Remedy


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
    whose hardware failed, as a log says, is broken also where no other has answered. But where none
    has at all, a log may have the words of a checkpoint that no engine loads, and not the node's.
    """
    faults, answered = _faults(run_dir), _answered(run_dir)
    return [
        Broken(node, fault.blames_node, fault.job)
        for node, fault in sorted(faults.items())
        if ((sure := _is_sure(fault, faults)) or node not in answered)
        and (answered - {node} or (answered and sure and fault.of_hardware))
    ]


def suspected_nodes(run_dir: RunDir, run: Run, now: float) -> dict[str, Avoided]:
    """Return the nodes that this run alone avoids now, by name: they may be broken.

    Jobs failed there, and none of the run has answered, so that nobody knows whether another node
    does better. It is tried: for `[trial] avoid_minutes` the run looks for others. What is seen on
    several nodes is no node's fault, and some causes would be met on any.
    """
    if _answered(run_dir):
        return {}
    faults = _faults(run_dir)
    seconds = min(LONGEST_SECONDS, run.settings.trial.avoid_minutes * 60)
    often = Counter(fault.blames_node for fault in faults.values())
    return {
        node: Avoided(node=node, until=until, why=f"{fault.blames_node} ({fault.job} of this run)")
        for node, fault in sorted(faults.items())
        if often[fault.blames_node] == 1
        and not _is_met_anywhere(fault)
        and (until := fault.time + seconds) > now
    }


def _faults(run_dir: RunDir) -> dict[str, Incident]:
    """Return the incident that says most against each node, and of equal ones the last."""
    found: dict[str, Incident] = {}
    for incident in of_engines(read_incidents(run_dir)):
        if incident.node and incident.blames_node:
            before = found.get(incident.node)
            if before is None or _kind(incident) or not _kind(before):
                found[incident.node] = incident
    return found


def _answered(run_dir: RunDir) -> set[str]:
    """Return the nodes of trials that answered since the run was last resumed."""
    since = _files.modified(run_dir.resumed)
    return {
        trial.node
        for path in _files.records_in(run_dir.trials_folder)
        if (trial := _files.read_record_if_there(path, TrialProgress)) is not None
        and trial.responses
        and _files.modified(path) >= since
    }


def _kind(fault: Incident) -> str:
    """Return what no work of a job brings about, unless several nodes show it; else nothing."""
    if fault.how in ("hung", End.NODE_FAILED):
        return fault.how
    return "hardware" if fault.of_hardware else ""


def _is_sure(fault: Incident, faults: Mapping[str, Incident]) -> bool:
    """Return whether the node is at fault though it answers.

    What is seen on several nodes may be an item, which went from one to the next.
    """
    alike = [each for each in faults.values() if _kind(each) == _kind(fault)]
    return fault.how is End.NODE_FAILED or (bool(_kind(fault)) and len(alike) == 1)


def _is_met_anywhere(fault: Incident) -> bool:
    """Return whether another node would do no better, by the cause."""
    passes = fault.remedy in (Remedy.WAIT, Remedy.LESS_LOAD)
    return passes or fault.of_memory or fault.of_input
