"""A clock that a test sets."""

import time


class SetClock:
    """Begins now, or at another time, and stands still until somebody sleeps."""

    def __init__(self, begin: float | None = None) -> None:
        self.seconds = self.begin = time.time() if begin is None else begin

    @property
    def slept(self) -> float:
        return self.seconds - self.begin

    def now(self) -> float:
        return self.seconds

    def passed(self) -> float:
        return self.seconds

    def sleep(self, seconds: float) -> None:
        self.seconds += seconds
