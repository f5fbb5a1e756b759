"""Time: a clock that is passed in, and a pause that grows from try to try."""

import time
from typing import Protocol


class Clock(Protocol):
    """The time as one process sees it. Tests pass in a clock of their own."""

    def now(self) -> float:
        """Return the seconds since the epoch, as other machines and files have them."""
        ...

    def passed(self) -> float:
        """Return the seconds since some moment, however the machine's time is set meanwhile."""
        ...

    def sleep(self, seconds: float) -> None:
        """Wait for so many seconds."""
        ...


class SystemClock:
    """This machine's clock."""

    def now(self) -> float:
        """Return the seconds since the epoch."""
        return time.time()

    def passed(self) -> float:
        """Return the seconds since some moment."""
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        """Wait for so many seconds."""
        time.sleep(seconds)


def growing(first: float, tries: int, most: float = float("inf")) -> float:
    """Return the pause in seconds after so many further tries: `first`, doubled each, to `most`."""
    return min(most, first * 2.0 ** min(max(0, tries), 64))
