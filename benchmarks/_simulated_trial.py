"""A trial of a simulated run: it says how far it is and publishes shards, in virtual time."""

from functools import partial
from typing import Any, Protocol

from benchmarks._controller import Controller, Task
from coordinate_eval import _files
from coordinate_eval.coordinator.run.paths import RunDir
from coordinate_eval.coordinator.run.records import TrialProgress
from coordinate_eval.coordinator.workers.signals import MARGIN_SECONDS
from coordinate_eval.records import Shard, Span

COPY_SECONDS, START_SECONDS, PREPARE_SECONDS = 6.0, 40.0, 5.0
"""Of the weights to a node, of an engine, and of a trial's process until it waits for weights."""

WATCH_SECONDS = 1.0
"""Time between two looks of a keeper at whether its node is released, or of a trial at its keeper.
"""


class Work(Protocol):
    """The run of a trial, as far as the trial needs it."""

    @property
    def dir(self) -> RunDir:
        """Return its directory."""

    @property
    def controller(self) -> Controller:
        """Return the controller of its cluster."""

    def ready_seconds(self, number: int, node: str) -> float:
        """Return the seconds until a round's keeper has the weights on a node."""

    def claim(self, trial: str, task: Task, most: float) -> Shard | None:
        """Claim the next shard of a trial, one of so many predicted seconds at most."""

    def seconds(self, span: Span) -> tuple[float, float]:
        """Return how long an engine works on what is left of a shard, and until it is complete."""

    def publish(self, shard: Shard, trial: str) -> None:
        """Publish the responses of a shard."""

    def lose(self, shard: Shard, share: float) -> None:
        """Note the part of a shard that a lost trial has answered."""


class Trial:
    """A trial that has begun: its process, its engine, and the shards that it answers."""

    def __init__(self, run: Work, task: Task, name: str, number: int) -> None:
        self.task, self.name, self._run, self._number = task, name, run, number
        self._clock = run.controller.time
        self._times: dict[str, float] = {}
        self._started = self._clock.now
        self._published = self._open = 0
        self._dry = False
        self._anywhere = self._copies = not task.wanted
        self._now: tuple[Shard, float, float] | None = None
        self._pending: list[Shard] = []
        self._write("staging")
        self._clock.after(PREPARE_SECONDS, self._prepared)

    def killed(self) -> None:
        """Lose what is in work."""
        if self._now is not None:
            shard, began, seconds = self._now
            self._run.lose(shard, (self._clock.now - began) / max(seconds, 1e-9))
        for shard in self._pending:
            self._run.lose(shard, 0.95)

    def _prepared(self) -> None:
        self._times["prepared"] = self._clock.now
        self._wait()

    def _wait(self) -> None:
        if not self.task.alive:
            return
        # Where no keeper comes, the first trial on a node copies, and others wait for it.
        seconds = COPY_SECONDS if self._copies else 0.0
        if not self._anywhere:
            seconds = self._run.ready_seconds(self._number, self.task.node)
        self._copies = False
        if seconds > 0:
            pause = seconds if self._anywhere else min(seconds, WATCH_SECONDS)
            self._clock.after(pause, self._wait)
            return
        self._times["staged"] = self._clock.now
        self._write("starting")
        self._clock.after(START_SECONDS, self._engine_started)

    def _engine_started(self) -> None:
        if self.task.alive:
            self._times["running"] = self._clock.now
            self._write("running")
            self._next()

    def _next(self) -> None:
        if not self.task.alive:
            return
        self._now = None
        left = self.task.began + self.task.minutes * 60 - MARGIN_SECONDS - self._clock.now
        shard = self._run.claim(self.name, self.task, left)
        if shard is None:
            self._dry = True
            self._end_if_done()
            return
        busy, complete = self._run.seconds(shard.span)
        self._now = shard, self._clock.now, busy
        self._open += 1
        self._clock.after(busy, partial(self._pass_on, shard))
        self._clock.after(complete, partial(self._publish, shard))

    def _pass_on(self, shard: Shard) -> None:
        if self.task.alive:
            self._pending.append(shard)
            self._next()

    def _publish(self, shard: Shard) -> None:
        if not self.task.alive:
            return
        self._run.publish(shard, self.name)
        if shard in self._pending:
            self._pending.remove(shard)
        self._open -= 1
        self._published += 1
        self._times.setdefault("ready", self._clock.now)
        self._times["last"] = self._clock.now
        self._write("running")
        self._end_if_done()

    def _end_if_done(self) -> None:
        if self._dry and not self._open:
            self._write("ended")
            self._run.controller.end(self.task, "COMPLETED")

    def _write(self, state: str) -> None:
        values: dict[str, Any] = {"trial": self.name, "task": f"{self.task.id}.0", "state": state}
        values |= {"node": self.task.node, "started": self._started, "updated": self._clock.now}
        values |= {"shards": self._published, "responses": self._published, **self._times}
        _files.write_record(self._run.dir.trial(self.name), TrialProgress.model_validate(values))
