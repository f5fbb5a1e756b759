"""The tools of every part of a guard: the training's files, the scheduler, and the time."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from coordinate_eval import _files
from coordinate_eval._clock import Clock
from coordinate_eval.coordinator.run.supervision import latest_epoch, take_over
from coordinate_eval.coordinator.training.guarding.attempts import (
    GuardDir,
    Guarded,
    OfAttempt,
    Over,
)
from coordinate_eval.coordinator.training.guarding.first_signals import FirstSignals
from coordinate_eval.coordinator.training.guarding.healthy import Candidates
from coordinate_eval.coordinator.training.guarding.policy import Policy
from coordinate_eval.coordinator.training.guarding.testing_nodes import NodeTest
from coordinate_eval.coordinator.training.guarding.watching import Watching
from coordinate_eval.slurm.batch import BatchScripts


class Superseded(Exception):
    """A later guard has taken over."""


@dataclass
class Hands:
    """The tools of every part of a guard, and what this process remembers.

    Args:
        dir: the guard's folder.
        guarded: the training.
        scripts: the scheduler.
        checkpoints: those of the training.
        watch: the training's progress.
        tests: of nodes.
        evaluations: of checkpoints, before it goes back.
        environment: with which the script is submitted.
        send: called with a key, and a message for people that is sent once.
        tell: called with what happens, in words for the log.
        clock: the time.
    """

    dir: GuardDir
    guarded: Guarded
    scripts: BatchScripts
    checkpoints: Candidates
    watch: Watching
    tests: NodeTest
    evaluations: FirstSignals
    environment: Mapping[str, str]
    send: Callable[[str, Mapping[str, object]], None]
    tell: Callable[[str], None]
    clock: Clock
    epoch: int = field(init=False)
    refusals: int = field(init=False, default=0)
    """Of the scheduler, in a row, to take the job of an attempt."""
    submits_at: float = field(init=False, default=0.0)
    """Time before which it is not asked again."""
    cancelled_at: dict[str, float] = field(init=False, default_factory=dict)
    """Job → seconds at which it was cancelled last."""
    unknown_since: dict[str, float] = field(init=False, default_factory=dict)
    """Job → seconds since which the controller does not know it."""
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
        self.notify("over", words, complete=complete)
        return False

    def notify(self, key: str, words: str, **more: object) -> None:
        """Send a message to people, unless there is one of this key."""
        of = {"guard": self.guarded.name, "script": self.guarded.script}
        self.send(key, {**of, "words": words, **more})

    def over(self) -> Over | None:
        """Return how the guard is over, if it is."""
        return _files.read_record_if_there(self.dir.over, Over)

    def mark(self, number: int) -> str:
        """Return what the comment of an attempt's jobs ends with."""
        return f"{self.guarded.mark}{number}"

    def create(self, number: int, record: OfAttempt) -> bool:
        """Write a record of an attempt, unless there is one. Return whether it was written."""
        path = self.dir.of_attempt(number, record.FILE)
        return _files.create(path, record.model_dump_json() + "\n")

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
