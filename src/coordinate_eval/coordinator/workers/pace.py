"""The pace of a trial: whether it can still finish another shard before its time limit."""

import time
from collections.abc import Callable


class Pace:
    """Compares the predicted seconds of a trial's shards with the seconds that its engine took.

    Shards overlap in an engine, so the time from a shard's begin to its end says little. What
    counts is the shard's share of the engine's time; see `priors.time_shares`.

    Args:
        deadline: seconds of `clock` at which the trial must have given back its shards.
        clock: seconds since the epoch.
    """

    def __init__(self, deadline: float, clock: Callable[[], float] = time.time) -> None:
        self._deadline = deadline
        self._clock = clock
        self._begun = self._done = self._took = 0.0

    @property
    def begun(self) -> bool:
        """Return whether the engine was given any shard."""
        return self._begun > 0

    def begin(self, predicted: float) -> None:
        """Count a shard, or the rest of one, of `predicted` seconds as given to the engine."""
        self._begun += predicted

    def end(self, predicted: float, took: float) -> None:
        """Count `predicted` seconds that were begun as done. The engine needed `took` seconds."""
        self._done += predicted
        self._took += took

    def drop(self, predicted: float) -> None:
        """Count `predicted` seconds that were begun as given back. They say nothing of the pace."""
        self._begun -= predicted

    def in_time(self, predicted: float) -> bool:
        """Return whether a shard of `predicted` seconds, begun now, ends before the deadline.

        An engine that was slower than predicted so far is expected to stay as slow. One that was
        faster is not expected to stay so.
        """
        slowdown = max(1.0, self._took / self._done) if self._done else 1.0
        waiting = max(0.0, self._begun - self._done)
        return self._clock() + (waiting + predicted) * slowdown < self._deadline
