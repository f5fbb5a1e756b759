"""Nodes on which jobs failed: which this run or all of the user's runs avoid, for a while.

A node that failed one run is often the freest one, and would be taken again by the next. So all
runs of a user share a small file for each node to avoid, in the folder of caches. Delete that file
to have the node back at once.
"""

import contextlib
import os
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from pydantic import Field

from coordinate_eval import _files
from coordinate_eval._clock import growing
from coordinate_eval.clusters.protocol import End
from coordinate_eval.coordinator.incidents.incident import Incident, of_engines, read_incidents
from coordinate_eval.coordinator.inputs.settings import Settings
from coordinate_eval.coordinator.run.paths import RunDir
from coordinate_eval.coordinator.run.records import TrialProgress
from coordinate_eval.diagnosis.cause import Remedy
from coordinate_eval.errors import ForeignError, RecordError
from coordinate_eval.records import Record

AVOIDED_SECONDS = 3600.0
"""Time for which a node is avoided at first. It doubles each time within a day."""

LONGEST_SECONDS = 86_400.0
"""Longest time for which a node is avoided. Failures that are as long past no longer count."""

MOST_EVIDENCE = 50
"""Failures on a node that are remembered, so that each counts once."""


class Avoided(Record):
    """A node that is avoided, until when, and why."""

    node: str
    until: float = Field(description="seconds since the epoch")
    why: str = Field(description="in words for a person")
    evidence: list[str] = Field(default=[], description="what was seen last; each counts once")
    times: int = Field(default=1, description="that it was avoided in a row")


def avoided_folder(settings: Settings) -> Path:
    """Return the folder of this user's files."""
    return Path(settings.cache_dir).expanduser() / f"avoided-nodes-{os.geteuid()}"


def read_avoided(settings: Settings, now: float) -> dict[str, Avoided]:
    """Return the nodes to avoid now, by name. Files that cannot be used are passed over."""
    return {name: found for name, found in _known(settings).items() if found.until > now}


def avoid(settings: Settings, node: str, why: str, evidence: str, now: float) -> Avoided | None:
    """Have all of the user's runs avoid a node, unless this evidence of it is known already.

    Return until when and why, or None if nothing has changed.
    """
    known = _known(settings).get(node)
    if known is not None and evidence in known.evidence:
        return None
    times = 1 if known is None or now - known.until > LONGEST_SECONDS else known.times + 1
    until = now + growing(AVOIDED_SECONDS, times - 1, LONGEST_SECONDS)
    seen = [*(known.evidence if known is not None else []), evidence][-MOST_EVIDENCE:]
    new = Avoided(node=node, until=until, why=why, evidence=seen, times=times)
    folder = avoided_folder(settings)
    with contextlib.suppress(OSError, ForeignError):
        _files.write_record(_files.own_folder(folder) / f"{node}.json", new)
    return new


def _known(settings: Settings) -> dict[str, Avoided]:
    found: dict[str, Avoided] = {}
    with contextlib.suppress(OSError):
        for path in _files.records_in(avoided_folder(settings)):
            with contextlib.suppress(RecordError, ForeignError):
                record = _files.read_record_if_there(path, Avoided)
                if record is not None and record.node == path.stem:
                    found[record.node] = record
    return found


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


def suspected_nodes(run_dir: RunDir, now: float) -> dict[str, Avoided]:
    """Return the nodes that this run alone avoids now, by name: they may be broken.

    Jobs failed there, and none of the run has answered, so that nobody knows whether another node
    does better. It is tried: for `AVOIDED_SECONDS` the run looks for others. What is seen on
    several nodes is no node's fault, and some causes would be met on any.
    """
    if _answered(run_dir):
        return {}
    faults = _faults(run_dir)
    often = Counter(fault.blames_node for fault in faults.values())
    return {
        node: Avoided(node=node, until=until, why=f"{fault.blames_node} ({fault.job} of this run)")
        for node, fault in sorted(faults.items())
        if often[fault.blames_node] == 1
        # By other causes another node would do no better.
        and fault.remedy not in (Remedy.WAIT, Remedy.LESS_LOAD)
        and not (fault.of_memory or fault.of_input)
        and (until := fault.time + AVOIDED_SECONDS) > now
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
        name
        for path in _files.records_in(run_dir.trials_folder)
        if (trial := _files.read_record_if_there(path, TrialProgress)) is not None
        and trial.responses
        and _files.modified(path) >= since
        for name in (trial.node, *trial.others)
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
