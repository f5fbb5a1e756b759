"""The folder of a guard: its training, its attempts, and what became of each.

`attempts/N.json` is a decision, and comes before its job. `attempts/N.job.json` has the job's id.
Both appear once and never change, so that two guards cannot disagree: only the job in that file is
ever released. `attempts/N.end.json` comes when that job is gone, and the next attempt after it.
"""

import math
import re
from enum import StrEnum
from pathlib import Path

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


class Attempt(Record):
    """`attempts/N.json`: a start of the training that was decided."""

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


class JobOf(Record):
    """`attempts/N.job.json`: the job of an attempt, the only one that may run."""

    job_id: str
    time: float
    exclude: tuple[str, ...] = ()
    token: str = ""


class Cancelled(Record):
    """`attempts/N.cancel.json`: the guard ends an attempt."""

    what: What
    time: float
    why: str
    cause: Cause | None = None
    onset: int | None = Field(default=None, description="step from which on saves do not count")
    skip: tuple[Steps, ...] = Field(default=(), description="steps that are skipped from now on")
    advice: str = Field(default="", description="the cause for which it goes back")


class Logs(Record):
    """`attempts/N.logs.json`: where the job writes, noted before it starts."""

    own: tuple[str, ...] = Field(default=(), description="its output")
    sizes: dict[str, int] = Field(default={}, description="of logs that were there before")


class Begun(Record):
    """`attempts/N.begun.json`: the job runs."""

    time: float
    nodes: str = Field(description="as Slurm lists them: node[1-4]")
    partition: str = ""


class Ended(Record):
    """`attempts/N.end.json`: the job of an attempt is gone."""

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


class NodesTested(Record):
    """`attempts/N.nodes.json`: what a test of the nodes said."""

    bad: tuple[str, ...] = ()
    words: str
    drain: str = ""


class Evaluated(Record):
    """`attempts/N.evaluated.json`: what the first signals of checkpoints said of a way back."""

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

    @property
    def run_dir(self) -> RunDir:
        """Return the folder as one that has supervisors."""
        return RunDir(self.root)

    @property
    def logs(self) -> Path:
        """Return the folder of the guard's own logs."""
        return self.root / "logs"

    @property
    def guarded(self) -> Path:
        """Return the path of `Guarded`."""
        return self.root / "guard.json"

    @property
    def environment(self) -> Path:
        """Return the path of the environment that the script is submitted with."""
        return self.root / "environment.json"

    @property
    def stop(self) -> Path:
        """Return the path of the user's wish to stop."""
        return self.root / "stop"

    @property
    def alive(self) -> Path:
        """Return the path of a file that a guard touches at each look."""
        return self.root / "alive"

    @property
    def over(self) -> Path:
        """Return the path of `Over`."""
        return self.root / "over.json"

    @property
    def points(self) -> Path:
        """Return the path of all that the training has reported, a line for each step."""
        return self.root / "points.jsonl"

    @property
    def spikes(self) -> Path:
        """Return the path of what is known of the losses."""
        return self.root / "spikes.json"

    @property
    def told(self) -> Path:
        """Return the folder of messages for people."""
        return self.root / "told"

    @property
    def checks(self) -> Path:
        """Return the folder of what looks at checkpoints have found."""
        return self.root / "checkpoints"

    @property
    def attempts(self) -> Path:
        """Return the folder of attempts."""
        return self.root / "attempts"

    def of_attempt(self, number: int, what: str = "") -> Path:
        """Return the path of a record of an attempt."""
        return self.attempts / (f"{number}.{what}.json" if what else f"{number}.json")

    def latest(self) -> int:
        """Return the number of the latest attempt; 0 before the first one."""
        found = (re.fullmatch(r"(\d+)\.json", name) for name in _files.names(self.attempts))
        return max((int(each[1]) for each in found if each), default=0)

    def attempt(self, number: int) -> Attempt | None:
        """Return an attempt."""
        return _files.read_record_if_there(self.of_attempt(number), Attempt)

    def job_of(self, number: int) -> JobOf | None:
        """Return the job of an attempt."""
        return _files.read_record_if_there(self.of_attempt(number, "job"), JobOf)

    def cancelled(self, number: int) -> Cancelled | None:
        """Return how the guard ends an attempt."""
        return _files.read_record_if_there(self.of_attempt(number, "cancel"), Cancelled)

    def logs_of(self, number: int) -> Logs:
        """Return where the job of an attempt writes."""
        found = _files.read_record_if_there(self.of_attempt(number, "logs"), Logs)
        return found or Logs()

    def begun(self, number: int) -> Begun | None:
        """Return how an attempt began to run."""
        return _files.read_record_if_there(self.of_attempt(number, "begun"), Begun)

    def ended(self, number: int) -> Ended | None:
        """Return what became of an attempt."""
        return _files.read_record_if_there(self.of_attempt(number, "end"), Ended)

    def tested(self, number: int) -> NodesTested | None:
        """Return what a test of the nodes of an attempt said."""
        return _files.read_record_if_there(self.of_attempt(number, "nodes"), NodesTested)

    def evaluated(self, number: int) -> Evaluated | None:
        """Return what first signals said of the way back from an attempt."""
        return _files.read_record_if_there(self.of_attempt(number, "evaluated"), Evaluated)

    def spoiled(self) -> list[tuple[int, float]]:
        """Return the steps from which on saves do not count, each with the time until which.

        The losses were not finite, or the training went back behind them, perhaps further than
        was advised at first, because the scores had fallen before. A training that is ended
        may save once more: what it saves until its job is gone does not count either.
        """
        found = []
        for number in range(1, self.latest() + 1):
            end, cancelled = self.of_attempt(number, "end"), self.cancelled(number)
            if cancelled is not None and cancelled.onset is not None:
                evaluated = self.evaluated(number) or Evaluated()
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
        found = (self.ended(number) for number in range(first, self.latest() + 1))
        return [each for each in found if each is not None]


def guards_folder(settings: Settings) -> Path:
    """Return the folder of this user's guards."""
    return place(Path(settings.runs_dir).expanduser(), "guards")
