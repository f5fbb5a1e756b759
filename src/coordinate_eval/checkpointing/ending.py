"""The end of a training: a signal, or the time limit of its job."""

from __future__ import annotations

import os
import signal
import threading
import time
from typing import Any, Final

_SIGNALS: Final = (signal.SIGTERM, signal.SIGUSR1)
"""What Slurm sends before a preemption or, with `--signal`, a time limit."""

_ONE_WORD_SECONDS: Final = 10.0
"""Time in which signals are one word: at a time limit, Slurm's daemon and srun send one each."""

_LEAST_SECONDS: Final = 60.0
"""Time that is left at least for the last save, and the end of the program."""


class Ending:
    """The signals and the time limit that end this process."""

    def __init__(self) -> None:
        """Catch the signals, if this is the main thread: no other one can."""
        self._told = False
        self._told_at = 0.0
        self._process = os.getpid()
        self._before: dict[int, Any] = {}
        self._longest_step, self._last_look = 0.0, 0.0
        limit = os.environ.get("SLURM_JOB_END_TIME", "")
        self._limit = float(limit) if limit.isdecimal() else None
        if threading.current_thread() is threading.main_thread():
            self._before = {s: signal.signal(s, self._note) for s in _SIGNALS}

    def is_near(self, save_seconds: float) -> bool:
        """Return whether training has to end. Call it once a step.

        Args:
            save_seconds: the time that a save takes.
        """
        now = time.monotonic()
        if self._last_look:
            self._longest_step = max(self._longest_step, now - self._last_look)
        self._last_look = now
        needed = _LEAST_SECONDS + 2 * (save_seconds + self._longest_step)
        return self._told or (self._limit is not None and time.time() > self._limit - needed)

    def close(self) -> None:
        """Give the signals back."""
        while self._before:
            number, before = self._before.popitem()
            # Who has taken it over since has to give it back.
            if signal.getsignal(number) == self._note:
                signal.signal(number, before if before is not None else signal.SIG_DFL)

    def _note(self, number: int, frame: object) -> None:
        before = self._before.get(number)
        again = self._told and time.monotonic() - self._told_at > _ONE_WORD_SECONDS
        if os.getpid() != self._process or (again and number == signal.SIGTERM):
            # A forked child is not the training, and who asks again does not want to wait.
            signal.signal(number, before if before is not None else signal.SIG_DFL)
            os.kill(os.getpid(), number)
            return
        if not self._told:
            self._told, self._told_at = True, time.monotonic()
        if callable(before):
            before(number, frame)
