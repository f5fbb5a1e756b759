"""Whether a trial can still begin a shard: how its engine does against the plan, and what waits."""

import time
from collections.abc import Callable


class Pace:
    """The time of one trial: predicted seconds of shards against those that the engine took.

    Shards overlap in an engine, so the time between a shard's begin and its end says little; what
    counts is its share of the engine's time (see `priors.attribute`).

    Args:
        deadline: seconds of `clock` at which the trial must have given back what it holds.
    """

    def __init__(self, deadline: float, clock: Callable[[], float] = time.time) -> None:
        self._deadline = deadline
        self._clock = clock
        self._begun = self._done = self._took = 0.0

    def begin(self, predicted: float) -> None:
        """A shard, or what is left of one, is given to the engine: its predicted seconds."""
        self._begun += predicted

    def end(self, predicted: float, took: float) -> None:
        """What was begun with this prediction is answered; the engine spent so much on it."""
        self._done += predicted
        self._took += took

    def in_time(self, predicted: float) -> bool:
        """Whether a shard of so many predicted seconds ends in time, after all that was begun.

        An engine that is faster than predicted is not trusted to stay so.
        """
        slow = max(1.0, self._took / self._done) if self._done else 1.0
        waiting = max(0.0, self._begun - self._done)
        return self._clock() + (waiting + predicted) * slow < self._deadline
