"""Who spent an engine's time, when it works on many requests at once.

An engine answers the requests of several shards in one batch, so the wall time between a shard's
first response and its last is not what the shard cost. The rule here: the time between two
answers is split evenly among the requests in flight, pulled and not yet answered. Engines pull
further ahead than they compute, to sort or to have the next one ready; what waits costs nothing.
So of more than `at_once` in flight only those share that are answered next: they were the ones
being computed. What all requests get adds up to the time in which any was in flight.
"""

import time
from collections.abc import Callable, Hashable


class _Ahead:
    """Time for which it is not yet known who was computed: those answered next."""

    __slots__ = ("left", "number", "share")

    def __init__(self, number: int, share: float, left: int) -> None:
        self.number, self.share, self.left = number, share, left


class Shares:
    """Splits the time of one engine among its requests, as they are pulled and answered.

    Args:
        at_once: requests that the engine computes at once, at most.
        clock: seconds, never going back.

    A response costs a constant time while no more than `at_once` are in flight, and time
    proportional to `at_once` otherwise.
    """

    def __init__(self, at_once: int, clock: Callable[[], float] = time.perf_counter) -> None:
        self._at_once, self._clock = at_once, clock
        self._flight: dict[Hashable, tuple[float, int]] = {}
        self._even = 0.0  # seconds that a request in flight from the beginning would have by now
        self._ahead: list[_Ahead] = []
        self._opened = 0
        self._last = 0.0

    def pulled(self, key: Hashable) -> None:
        """The engine has taken this request."""
        if not self._flight:
            self._last = self._clock()
        self._flight[key] = (self._even, self._opened)

    def answered(self, key: Hashable) -> float:
        """The engine has answered this request: its seconds; 0 for one that was not pulled."""
        if key not in self._flight:
            return 0.0
        now = self._clock()
        passed, self._last = now - self._last, now
        flight = len(self._flight)
        if flight <= self._at_once:
            self._even += passed / flight
        else:
            self._ahead.append(_Ahead(self._opened, passed / self._at_once, self._at_once))
            self._opened += 1
        even, opened = self._flight.pop(key)
        seconds = self._even - even
        for interval in self._ahead:
            if interval.number >= opened:
                seconds += interval.share
                interval.left -= 1
        self._ahead = [interval for interval in self._ahead if interval.left]
        return seconds
