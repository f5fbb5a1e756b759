"""Time that passes as soon as nobody computes: an hour of many supervisors takes minutes.

`VirtualTime.run` carries out events in order. A process is a thread that runs while all others
wait, from one sleep to the next. While the context is entered, `time.time`, `time.monotonic` and
`time.sleep` of every thread are those of this time.
"""

import heapq
import itertools
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Self
from unittest.mock import patch


class Ended(BaseException):
    """Raised in processes that sleep when the time ends."""


class VirtualTime:
    """A clock with the events that are to come. It begins now."""

    def __init__(self) -> None:
        self.now = time.time()
        self._numbers = itertools.count()
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._processes: dict[threading.Thread, _Baton] = {}
        self._error: BaseException | None = None
        self._over = False
        self._patched = ExitStack()

    def __enter__(self) -> Self:
        for name, stand_in in (("time", self._read), ("monotonic", self._read)):
            self._patched.enter_context(patch.object(time, name, stand_in))
        self._patched.enter_context(patch.object(time, "sleep", self.sleep))
        return self

    def __exit__(self, *exc_info: object) -> None:
        """End the processes that are left."""
        self._over = True
        for thread, baton in list(self._processes.items()):
            baton.give()
            thread.join()
        self._patched.close()

    def after(self, seconds: float, call: Callable[[], None]) -> None:
        """Call something in so many seconds. Calls of one moment keep their order."""
        heapq.heappush(self._events, (self.now + max(0.0, seconds), next(self._numbers), call))

    def process(self, call: Callable[[], None]) -> None:
        """Begin a process now, which may sleep."""
        baton = _Baton()

        def run() -> None:
            baton.wait()
            try:
                if not self._over:
                    call()
            except Ended:
                pass
            except BaseException as error:
                self._error = error
            finally:
                del self._processes[thread]
                baton.give_back()

        thread = threading.Thread(target=run, daemon=True)
        self._processes[thread] = baton
        thread.start()
        self.after(0.0, baton.pass_on)

    def sleep(self, seconds: float, alarm: "Alarm | None" = None) -> None:
        """Let time pass for the process that calls, until the alarm rings if there is one."""
        baton = self._processes[threading.current_thread()]
        asleep = True

        def wake() -> None:
            nonlocal asleep
            if asleep:
                asleep = False
                baton.pass_on()

        if alarm is not None:
            alarm.ring = lambda: self.after(0.0, wake)  # type: ignore[method-assign]  # its only state
        self.after(seconds, wake)
        baton.give_back()
        baton.wait()
        if self._over:
            raise Ended

    def run(self, until: Callable[[], bool]) -> None:
        """Let time pass until something is true, or nothing is to come.

        Raises:
            BaseException: the one that ended a process.
        """
        while self._events and not until():
            self.now, _, call = heapq.heappop(self._events)
            call()
            if self._error is not None:
                raise self._error

    def _read(self) -> float:
        return self.now


class Alarm:
    """Wakes the process that sleeps with it."""

    def ring(self) -> None:
        """Let that process go on; do nothing if there is none."""


class _Baton:
    """Whoever has it runs: the process that it belongs to, or the events."""

    def __init__(self) -> None:
        self._go, self._done = threading.Semaphore(0), threading.Semaphore(0)

    def pass_on(self) -> None:
        """Let the process run, and wait until it sleeps or ends."""
        self._go.release()
        self._done.acquire()

    def give(self) -> None:
        """Let the process run."""
        self._go.release()

    def wait(self) -> None:
        """Wait until the process may run."""
        self._go.acquire()

    def give_back(self) -> None:
        """Let the events go on."""
        self._done.release()
