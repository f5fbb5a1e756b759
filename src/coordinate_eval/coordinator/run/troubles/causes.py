"""`causes/<job>.json`: why a job of a run died, and what follows from that."""

import contextlib

from pydantic import Field

from coordinate_eval import _files
from coordinate_eval.coordinator.run.claiming.pullers import Pullers
from coordinate_eval.coordinator.run.paths import RunDir
from coordinate_eval.diagnosis.cause import UNKNOWN
from coordinate_eval.diagnosis.reaction import Action
from coordinate_eval.diagnosis.rules import Category
from coordinate_eval.errors import RecordError
from coordinate_eval.records import Record

_HARDWARE = frozenset({"ECC Error", "NVLink Error", "Node Failure"})
"""Reasons that no program and no item brings about."""

_INPUT = frozenset(
    {"Argument Error", "Model Loading Error", "Name Error", "Syntax Error", "Value Error"}
)
"""Reasons that no node brings about, if every job would meet them."""


class JobCause(Record):
    """Why a job died, by the rules of the supervisor that read its log, once."""

    job: str = Field(
        description="a trial, a keeper as `keeper_id` names it, or an array's name and index"
    )
    pullers: Pullers | None = Field(
        default=None, description="what it was a job of; null for a trial or a keeper"
    )
    node: str
    reason: str
    category: Category
    action: Action = Field(description="what follows, as the rules say")
    cure: str = Field(description="what a person can do")
    root: str = Field(description="the root line of the log, or the scheduler's words")
    log: str = Field(default="", description="absolute path of the job's log, if it has one")
    before_work: bool = Field(
        description="it failed before it had work: its log says nothing of items or answers"
    )

    @property
    def known(self) -> bool:
        """Return whether a rule knows the cause."""
        return self.reason != UNKNOWN

    @property
    def words(self) -> str:
        """Return the reason and what to do, for a person."""
        return f"{self.reason} ({self.category}): {self.cure}"

    @property
    def ends_all(self) -> bool:
        """Return whether every other job would die of it too.

        What the scheduler did, and what came of work, others need not meet.
        """
        return self.action is Action.STOP and self.category != "slurm" and self.before_work

    @property
    def may_be_of_node(self) -> bool:
        """Return whether it may lie in the node: in its files, its GPUs or its driver."""
        return self.reason not in _INPUT or self.action is not Action.STOP

    @property
    def of_node(self) -> bool:
        """Return whether it lies in the node, or in what the node is connected to."""
        return self.action is Action.ANOTHER_NODE and self.category == "infrastructure"

    @property
    def of_hardware(self) -> bool:
        """Return whether it lies in the node for certain, also where other jobs on it go on."""
        return self.of_node and self.reason in _HARDWARE

    @property
    def of_gpu_memory(self) -> bool:
        """Return whether an engine that runs fewer sequences at once may survive it."""
        return self.action is Action.LESS_LOAD and self.reason == "Out of Memory Error"


def keeper_id(round_number: int, node: str) -> str:
    """Return the name of a keeper among the jobs that have a cause."""
    return f"keeper-{round_number}-{node}"


def write_cause(run_dir: RunDir, cause: JobCause) -> None:
    """Write why a job died. The first cause of a job stays."""
    _files.create(run_dir.cause(cause.job), cause.model_dump_json(indent=1))


def read_causes(run_dir: RunDir) -> dict[str, JobCause]:
    """Return why trials and keepers died since the run was last resumed, by job."""
    return {job: cause for job, cause in _read(run_dir).items() if cause.pullers is None}


def read_dead_pullers(run_dir: RunDir) -> dict[Pullers, list[JobCause]]:
    """Return why all other jobs died since the run was last resumed, the last ones last."""
    found: dict[Pullers, list[JobCause]] = {}
    for cause in _read(run_dir).values():
        if cause.pullers is not None:
            found.setdefault(cause.pullers, []).append(cause)
    return found


def _read(run_dir: RunDir) -> dict[str, JobCause]:
    """Return all causes since the run was last resumed, by job, the last ones last."""
    since = _files.modified(run_dir.resumed)
    found = {}
    for when, path in sorted(
        (_files.modified(p), p) for p in _files.records_in(run_dir.causes_folder)
    ):
        with contextlib.suppress(RecordError):
            if when >= since:
                found[path.stem] = _files.read_record(path, JobCause)
    return found
