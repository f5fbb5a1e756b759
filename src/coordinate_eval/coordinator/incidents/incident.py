"""`incidents/<job>.json`: what went wrong with one job, and why. Written once, and read by all.

`observe.py` finds incidents, `causes.py` adds the cause, and `remedies.py` says what follows.
"""

import contextlib
from collections.abc import Sequence
from typing import Literal

from pydantic import Field

from coordinate_eval import _files
from coordinate_eval.clusters.protocol import End
from coordinate_eval.coordinator.run.claiming.pullers import Pullers
from coordinate_eval.coordinator.run.paths import RunDir
from coordinate_eval.coordinator.run.records import TrialError
from coordinate_eval.diagnosis.cause import UNKNOWN, Cause, Remedy
from coordinate_eval.errors import RecordError
from coordinate_eval.records import Record, schema

Kind = Literal["trial", "keeper"] | Pullers
How = End | Literal["error", "hung"]

_OF_HARDWARE = frozenset({"ECC Error", "NVLink Error", "Node Failure"})
"""Reasons that no program and no item brings about."""

_OF_INPUT = frozenset(
    {"Argument Error", "Model Loading Error", "Name Error", "Syntax Error", "Value Error"}
)
"""Reasons that no node brings about, if every job would meet them."""

_SAID = {
    "engine start": "an engine did not start",
    "out of memory": "an engine ran out of memory",
    "node": "a trial failed",
}
"""The meaning of a trial's own word for its error, as far as its node is concerned."""


class Incident(Record):
    """One thing that went wrong with a job."""

    schema_: Literal["coordinate-eval/incident@1"] = schema("coordinate-eval/incident@1")

    job: str = Field(
        description="a trial, a keeper as `keeper_id` names it, or an array's name and index"
    )
    kind: Kind
    batch: str = Field(description="the round or the array that the job belonged to")
    node: str
    how: How = Field(
        description="how it ended: by its own error, ended by the supervisor because it hung, or "
        "as the scheduler says"
    )
    time: float
    message: str = Field(description="the error, or what was seen, in words for a person")
    log: str = Field(default="", description="absolute path of the job's log, if it has one")
    before_work: bool = Field(
        default=False, description="its log says nothing of items or answers: it had no work yet"
    )
    said: TrialError | None = Field(default=None, description="a trial's own word for its error")
    sequences: int = Field(default=0, description="that its engine ran at once")
    cause: Cause | None = Field(default=None, description="by the rules; null until it is judged")

    @property
    def who(self) -> str:
        """Return the job for a person."""
        if self.kind == "keeper":
            return f"keeper {self.node}"
        return f"trial {self.job}" if self.kind == "trial" else f"{self.kind} job {self.job}"

    @property
    def reason(self) -> str:
        """Return the reason; `UNKNOWN` if no rule knows it."""
        return self.cause.reason if self.cause is not None else UNKNOWN

    @property
    def known(self) -> bool:
        """Return whether a rule knows the cause."""
        return self.reason != UNKNOWN

    @property
    def words(self) -> str:
        """Return the reason and what to do, for a person; empty if the cause is not known."""
        return self.cause.words if self.cause is not None and self.known else ""

    @property
    def remedy(self) -> Remedy:
        """Return what follows from the cause."""
        return self.cause.remedy if self.cause is not None else Remedy.ANOTHER_NODE

    @property
    def stops(self) -> bool:
        """Return whether every other job would die of this cause too.

        What the scheduler did, and what came of work, others need not meet.
        """
        of_slurm = self.cause is not None and self.cause.category == "slurm"
        return self.remedy is Remedy.STOP and self.before_work and not of_slurm

    @property
    def of_input(self) -> bool:
        """Return whether it cannot lie in the node: in its files, its GPUs or its driver."""
        return self.said == "input" or (self.reason in _OF_INPUT and self.remedy is Remedy.STOP)

    @property
    def of_node(self) -> bool:
        """Return whether the rules lay it to the node, or to what the node is connected to."""
        infrastructure = self.cause is not None and self.cause.category == "infrastructure"
        return self.remedy is Remedy.ANOTHER_NODE and infrastructure

    @property
    def of_memory(self) -> bool:
        """Return whether an engine that runs fewer sequences at once may survive it."""
        if self.kind != "trial":
            return False
        by_rules = self.reason == "Out of Memory Error" and self.remedy is Remedy.LESS_LOAD
        return by_rules or "out of memory" in (self.said, self.how)

    @property
    def blames_node(self) -> str:
        """Return what it says against its node, if others do not meet it; empty if nothing.

        What every job would meet, and only those on this node meet, lies in the node too.
        """
        if self.how == "hung":
            return "a trial hung" if self.kind == "trial" else ""
        if self.how is End.NODE_FAILED:
            return "the node went down"
        if self.of_node or self.stops:
            return f"a job died of {self.reason}"
        if self.how is End.OUT_OF_MEMORY and self.kind == "trial":
            return _SAID["out of memory"]
        if self.kind == "keeper":
            return "the weights could not be copied"
        return _SAID.get(self.said or "", "")

    @property
    def of_hardware(self) -> bool:
        """Return whether only a faulty node can have brought it about."""
        return self.of_node and self.reason in _OF_HARDWARE


def without_node(message: str, node: str) -> str:
    """Return a message without a node's name, so that equal errors of nodes are equal."""
    return message.replace(node, "NODE") if node else message


def keeper_id(round_number: int, node: str) -> str:
    """Return the name of a keeper among the jobs that have incidents."""
    return f"keeper-{round_number}-{node}"


def batch_of_round(round_number: int) -> str:
    """Return the name of the batch of a round's jobs."""
    return f"round {round_number}"


def write_incident(run_dir: RunDir, incident: Incident) -> None:
    """Write an incident. The first one of a job stays."""
    _files.create_record(run_dir.incident(incident.job), incident)


def read_incidents(run_dir: RunDir) -> list[Incident]:
    """Return all incidents since the run was last resumed, the last ones last."""
    since = _files.modified(run_dir.resumed)
    paths = _files.records_in(run_dir.incidents_folder)
    found = []
    for when, path in sorted((_files.modified(path), path) for path in paths):
        with contextlib.suppress(RecordError):
            if when >= since:
                found.append(_files.read_record(path, Incident))
    return found


def of_engines(incidents: Sequence[Incident]) -> list[Incident]:
    """Return the incidents of trials and keepers."""
    return [each for each in incidents if not isinstance(each.kind, Pullers)]


def last_known(incidents: Sequence[Incident]) -> str:
    """Return the reason of the last incident of which it is known, and what to do; else empty."""
    return next((each.words for each in reversed(incidents) if each.known), "")
