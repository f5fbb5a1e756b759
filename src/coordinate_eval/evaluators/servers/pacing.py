"""Limits on the questions to a server: at once, and in a minute."""

import asyncio
import time


class Gate:
    """Lets a number of questions in at the same time: fewer while the server says that it is busy.

    The number is halved for each wave of such answers, and grows by one for each wave of others
    (D.-M. Chiu and R. Jain, "Analysis of the Increase and Decrease Algorithms for Congestion
    Avoidance in Computer Networks", 1989).
    """

    def __init__(self, most: int) -> None:
        self._most, self._now, self._inside = most, float(most), 0
        self._slowed = 0.0
        self._left = asyncio.Condition()

    async def __aenter__(self) -> None:
        async with self._left:
            await self._left.wait_for(lambda: self._inside < int(self._now))
            self._inside += 1

    async def __aexit__(self, *_: object) -> None:
        async with self._left:
            self._inside -= 1
            self._left.notify(2)  # it may have become wider by one

    def slow_down(self, began: float) -> None:
        """Halve the number, unless that was done after this question began."""
        if began > self._slowed:
            self._slowed = time.monotonic()
            self._now = max(1.0, self._now / 2)

    def speed_up(self) -> None:
        """Count an answer."""
        self._now = min(float(self._most), self._now + 1 / self._now)


class Pace:
    """Limits the questions that begin in a minute: a bucket that fills steadily, to one token."""

    def __init__(self, per_minute: float | None) -> None:
        self._seconds = 60 / per_minute if per_minute else 0.0
        self._next = 0.0

    async def wait(self) -> None:
        """Wait until a question may begin."""
        now = time.monotonic()
        begin = max(now, self._next)
        if self._seconds:
            self._next = begin + self._seconds
        if begin > now:
            await asyncio.sleep(begin - now)

    def rest(self, seconds: float) -> None:
        """Begin no question for so long."""
        self._next = max(self._next, time.monotonic() + seconds)
