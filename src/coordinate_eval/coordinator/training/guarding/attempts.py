"""The folder of a guard: its training, its attempts, and what became of each.

`attempts/N.json` is a decision, and comes before its job. `attempts/N.job.json` has the job's id.
Both appear once and never change, so that two guards cannot disagree: only the job in that file is
ever released. `attempts/N.end.json` comes when that job is gone, and the next attempt after it.
"""

import math
import re
from enum import StrEnum
from pathlib import Path
from typing import ClassVar, TypeVar

from pydantic import Field

from coordinate_eval import _files
from coordinate_eval.coordinator.inputs.settings import Settings
from coordinate_eval.coordinator.run.own import place
from coordinate_eval.coordinator.run.paths import RunDir
from coordinate_eval.coordinator.training.guarding.policy import Policy
from coordinate_eval.diagnosis.cause import Cause
from coordinate_eval.records import Record

Steps = tuple[int, int]
"""The first and the last of some steps."""


class Guarded(Record):
    """`guard.json`: a training, and how it is guarded."""

    name: str
    nonce: str = Field(description="distinguishes its jobs from those of a guard before it")
    created: float
    script: str
    folder: str = Field(description="from which the script is submitted")
    checkpoints: str = Field(description="the folder that the training fills")
    policy: Policy
    policy_file: str = Field(default="", description="from which the policy was read")
    first: int = Field(default=1, description="attempt with which it was begun last")
    rollback: bool = Field(default=False, description="go back where that is advised")
    settings: Settings
    python: str

    @property
    def mark(self) -> str:
        """Return what the comments of all jobs of this training begin with."""
        return f"coordinate-eval:{self.name}.{self.nonce}:"


class What(StrEnum):
    """The outcome of an attempt, in the words that users read."""

    FINISHED = "finished"
    ENDED_EARLY = "ended before its last step"
    FAILED = "failed"
    NODE_FAILED = "lost a node"
    OUT_OF_MEMORY = "ran out of memory"
    PREEMPTED = "preempted"
    TIME_LIMIT = "time limit"
    CANCELLED = "cancelled by somebody"
    LOST = "is gone, and nobody says why"
    HUNG = "hung"
    NOT_FINITE = "loss not finite"
    SLOW = "slow"
    ROLLED_BACK = "rolled back"
    NEVER_STARTED = "did not start in time"
    REFUSED = "refused by the scheduler"
    STOPPED = "stopped by the user"


class OfAttempt(Record):
    """A record of an attempt: `attempts/N.<FILE>.json`."""

    FILE: ClassVar[str]


OfAttemptT = TypeVar("OfAttemptT", bound=OfAttempt)


class Attempt(OfAttempt):
    """`attempts/N.json`: a start of the training that was decided."""

    FILE: ClassVar[str] = ""

    number: int
    decided: float = Field(description="seconds since the epoch")
    after: float = Field(default=0.0, description="time before which it is not submitted")
    checkpoint: str = Field(default="", description="to begin from; empty for none")
    step: int = Field(default=0, description="of the checkpoint")
    skip: tuple[Steps, ...] = Field(default=(), description="steps whose data is not read again")
    nodes: int | None = Field(default=None, description="as the policy says; None: as the script")
    why: str = Field(default="", description="in words for a person")
    token: str = Field(default="", description="of the process that decided it")

    @property
    def skipped(self) -> str:
        """Return `skip` as the training gets it."""
        return ",".join(f"{first}-{last}" for first, last in self.skip)


class JobOf(OfAttempt):
    """`attempts/N.job.json`: the job of an attempt, the only one that may run."""

    FILE: ClassVar[str] = "job"

    job_id: str
    time: float
    exclude: tuple[str, ...] = ()
    token: str = ""


class Cancelled(OfAttempt):
    """`attempts/N.cancel.json`: the guard ends an attempt."""

    FILE: ClassVar[str] = "cancel"

    what: What
    time: float
    why: str
    cause: Cause | None = None
    onset: int | None = Field(default=None, description="step from which on saves do not count")
    skip: tuple[Steps, ...] = Field(default=(), description="steps that are skipped from now on")
    advice: str = Field(default="", description="the cause for which it goes back")


class Logs(OfAttempt):
    """`attempts/N.logs.json`: where the job writes, noted before it starts."""

    FILE: ClassVar[str] = "logs"

    own: tuple[str, ...] = Field(default=(), description="its output")
    sizes: dict[str, int] = Field(default={}, description="of logs that were there before")


class Begun(OfAttempt):
    """`attempts/N.begun.json`: the job runs."""

    FILE: ClassVar[str] = "begun"

    time: float
    nodes: str = Field(description="as Slurm lists them: node[1-4]")
    partition: str = ""


class Ended(OfAttempt):
    """`attempts/N.end.json`: the job of an attempt is gone."""

    FILE: ClassVar[str] = "end"

    number: int
    what: What
    time: float
    why: str = Field(default="", description="in words for a person")
    cause: Cause | None = None
    checkpoint: str = Field(default="", description="that it began from")
    gained: bool = Field(default=False, description="it came further than all attempts before")
    first_step: int | None = None
    last_step: int | None = None
    began: float | None = Field(default=None, description="when its job began to run")
    stepped: float | None = Field(default=None, description="when its first step was seen")
    step_seconds: float = Field(default=0.0, description="of a step, usually")
    nodes: str = ""
    state: str = Field(default="", description="in Slurm's words")


class NodesTested(OfAttempt):
    """`attempts/N.nodes.json`: what a test of the nodes said."""

    FILE: ClassVar[str] = "nodes"

    bad: tuple[str, ...] = ()
    words: str
    drain: str = ""


class Evaluated(OfAttempt):
    """`attempts/N.evaluated.json`: what the first signals of checkpoints said of a way back."""

    FILE: ClassVar[str] = "evaluated"

    onset: int | None = Field(default=None, description="step from which on scores have fallen")
    words: str = Field(default="", description="for a person; empty if none was asked for")


class Over(Record):
    """`over.json`: the guard does nothing more."""

    complete: bool
    why: str
    time: float
    token: str = ""


class Notice(Record):
    """`told/KEY.json`: a message, and where it has not arrived yet."""

    words: str
    text: str = Field(description="the message as it is sent")
    left: dict[str, str] = Field(
        description="`command` and `webhook` that have not got it, each with what failed last"
    )
    tries: int = 0
    token: str = Field(default="", description="of the process that made it")


class GuardDir:
    """The paths of a guard's folder, and its records."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.run_dir = RunDir(root)
        """The folder as one that has supervisors."""
        self.logs = root / "logs"
        """The guard's own."""
        self.guarded = root / "guard.json"
        self.over = root / "over.json"
        self.environment = root / "environment.json"
        """With which the script is submitted."""
        self.stop = root / "stop"
        """There if the user wishes to stop."""
        self.alive = root / "alive"
        """A guard touches it at each look."""
        self.points = root / "points.jsonl"
        """All that the training has reported, a line for each step."""
        self.spikes = root / "spikes.json"
        """The losses so far, as the detector of spikes knows them."""
        self.told = root / "told"
        """Messages for people."""
        self.checks = root / "checkpoints"
        """The findings of looks at checkpoints."""
        self.attempts = root / "attempts"

    def of_attempt(self, number: int, what: str = "") -> Path:
        """Return the path of something of an attempt."""
        return self.attempts / (f"{number}.{what}.json" if what else f"{number}.json")

    def latest(self) -> int:
        """Return the number of the latest attempt; 0 before the first one."""
        found = (re.fullmatch(r"(\d+)\.json", name) for name in _files.names(self.attempts))
        return max((int(each[1]) for each in found if each), default=0)

    def read(self, number: int, kind: type[OfAttemptT]) -> OfAttemptT | None:
        """Return a record of an attempt, if it is there."""
        return _files.read_record_if_there(self.of_attempt(number, kind.FILE), kind)

    def logs_of(self, number: int) -> Logs:
        """Return where the job of an attempt writes."""
        return self.read(number, Logs) or Logs()

    def spoiled(self) -> list[tuple[int, float]]:
        """Return the steps from which on saves do not count, each with the time until which.

        The losses were not finite, or the training went back behind them, perhaps further than
        was advised at first, because the scores had fallen before. A training that is ended
        may save once more: what it saves until its job is gone does not count either.
        """
        found = []
        for number in range(1, self.latest() + 1):
            end, cancelled = self.of_attempt(number, "end"), self.read(number, Cancelled)
            if cancelled is not None and cancelled.onset is not None:
                evaluated = self.read(number, Evaluated) or Evaluated()
                onset = min(cancelled.onset, evaluated.onset or cancelled.onset)
                found.append((onset, _files.modified(end) or math.inf))
        return found

    def notices(self) -> dict[Path, Notice]:
        """Return the messages for people, by their paths."""
        read = _files.read_record_if_there
        found = {path: read(path, Notice) for path in _files.records_in(self.told)}
        return {path: each for path, each in found.items() if each is not None}

    def history(self, first: int = 1) -> list[Ended]:
        """Return what became of the attempts that have ended, in their order, from one on."""
        found = (self.read(number, Ended) for number in range(first, self.latest() + 1))
        return [each for each in found if each is not None]


def guards_folder(settings: Settings) -> Path:
    """Return the folder of this user's guards."""
    return place(Path(settings.runs_dir).expanduser(), "guards")
