"""The tools of every part of a guard: the training's files, the scheduler, and the time."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from coordinate_eval import _files
from coordinate_eval._clock import Clock
from coordinate_eval.coordinator.run.supervision import latest_epoch, take_over
from coordinate_eval.coordinator.training.advice import Save
from coordinate_eval.coordinator.training.guarding.attempts import (
    Evaluated,
    GuardDir,
    Guarded,
    Logs,
    NodesTested,
    Over,
)
from coordinate_eval.coordinator.training.guarding.healthy import Choice
from coordinate_eval.coordinator.training.guarding.policy import Policy
from coordinate_eval.coordinator.training.guarding.vitals import Vitals
from coordinate_eval.coordinator.training.scores import Scores
from coordinate_eval.coordinator.training.spikes import Spike
from coordinate_eval.records import Record
from coordinate_eval.slurm.batch import BatchJob, Described


class Superseded(Exception):
    """A later guard has taken over."""


class Scripts(Protocol):
    """The scheduler, as a guard asks it: see `slurm/batch.py`."""

    def submit(
        self,
        script: Path,
        *,
        mark: str,
        folder: str,
        environment: Mapping[str, str],
        variables: Mapping[str, str],
        arguments: Sequence[str] = (),
        exclude: Collection[str] = (),
        nodes: int | None = None,
    ) -> str:
        """Submit a script as a held job, and return the id of the job."""
        ...

    def jobs(self, mark: str) -> list[BatchJob]:
        """Return the jobs with a mark."""
        ...

    def release(self, job_id: str) -> None:
        """Let a held job start."""
        ...

    def cancel(self, job_id: str) -> None:
        """End a job."""
        ...

    def describe(self, job_id: str) -> Described | None:
        """Return what the scheduler knows of a job."""
        ...

    def node_names(self) -> set[str]:
        """Return the names of all nodes."""
        ...

    def drain(self, nodes: Sequence[str], reason: str) -> None:
        """Have nothing more start on nodes."""
        ...


class Checkpoints(Protocol):
    """The checkpoints, as a guard asks about them: see `healthy.py`."""

    def newest_step(self, since: float = 0.0) -> int | None:
        """Return the step of the newest one that was written since."""
        ...

    def go_on(self, spoiled: Sequence[tuple[int, float]] = ()) -> None:
        """Look at the newest one. Have it kept if it is healthy."""
        ...

    def saves(self, spoiled: Sequence[tuple[int, float]] = ()) -> list[Save]:
        """Return those to which a training may go back."""
        ...

    def why_unfit(self, path: Path) -> str:
        """Return why one is not begun from, as far as it is known."""
        ...

    def refuse(self, path: Path, why: str) -> None:
        """Begin no more from one that a training could not load."""
        ...

    def choose(self, spoiled: Sequence[tuple[int, float]] = ()) -> Choice | None:
        """Return the newest healthy one; None while a look goes on."""
        ...


class Watch(Protocol):
    """The progress, as a guard asks about it: see `watching.py`."""

    def files(self, logs: Logs) -> list[Path]:
        """Return the logs of an attempt."""
        ...

    def vitals(self, number: int) -> Vitals:
        """Return what is known of an attempt."""
        ...

    def look(self, number: int, now: float) -> Vitals:
        """Read what an attempt has written since."""
        ...

    def spike(self) -> Spike | None:
        """Return how the loss is going wrong, if it is."""
        ...

    def scores(self, now: float) -> Scores:
        """Return what the scores of checkpoints say."""
        ...


class NodeTests(Protocol):
    """The nodes, as a guard asks about them: see `testing_nodes.py`."""

    def result(self, nodes: Sequence[str], partition: str) -> NodesTested | None:
        """Return what a test of nodes says; None while it goes on."""
        ...


class Evaluations(Protocol):
    """What a guard asks about scores before it goes back: see `first_signals.py`."""

    def compare(self, number: int, saves: Sequence[Save], now: float) -> Evaluated | None:
        """Return from which checkpoint on scores have fallen; None while runs go on."""
        ...


@dataclass
class Hands:
    """The tools of every part of a guard.

    Args:
        dir: the guard's folder.
        guarded: the training.
        scripts: the scheduler.
        checkpoints: those of the training.
        watch: the training's progress.
        tests: of nodes.
        evaluations: of checkpoints, before it goes back.
        environment: with which the script is submitted.
        notify: called with a key, and a message for people that is sent once.
        tell: called with what happens, in words for the log.
        clock: the time.
    """

    dir: GuardDir
    guarded: Guarded
    scripts: Scripts
    checkpoints: Checkpoints
    watch: Watch
    tests: NodeTests
    evaluations: Evaluations
    environment: Mapping[str, str]
    notify: Callable[[str, Mapping[str, object]], None]
    tell: Callable[[str], None]
    clock: Clock
    epoch: int = field(init=False)
    _said: str = field(init=False, default="")

    def __post_init__(self) -> None:
        self.epoch = take_over(self.dir.run_dir)

    @property
    def policy(self) -> Policy:
        """Return the policy of the guard."""
        return self.guarded.policy

    def finish(self, *, complete: bool, words: str) -> bool:
        """Note that the guard is over. Nothing more is due then."""
        over = Over(complete=complete, why=words, time=self.clock.now(), token=_files.token())
        self.check_epoch()
        _files.create(self.dir.over, over.model_dump_json() + "\n")
        self.say(f"{'complete' if complete else 'the guard stops'}: {words}")
        self.notify("over", self.message({"words": words, "complete": complete}))
        return False

    def message(self, said: Mapping[str, object]) -> dict[str, object]:
        """Return a message for people."""
        return {"guard": self.guarded.name, "script": self.guarded.script, **said}

    def over(self) -> Over | None:
        """Return how the guard is over, if it is."""
        return _files.read_record_if_there(self.dir.over, Over)

    def mark(self, number: int) -> str:
        """Return what the comment of an attempt's jobs ends with."""
        return f"{self.guarded.mark}{number}"

    def create(self, number: int, what: str, record: Record) -> bool:
        """Write a record of an attempt, unless there is one. Return whether it was written."""
        return _files.create(self.dir.of_attempt(number, what), record.model_dump_json() + "\n")

    def check_epoch(self) -> None:
        """Check that no later guard has taken over.

        Raises:
            Superseded: one has.
        """
        if latest_epoch(self.dir.run_dir) > self.epoch:
            raise Superseded

    def say(self, words: str) -> None:
        """Tell what happens, the same words in a row only once."""
        if words != self._said:
            self._said = words
            self.tell(words)
