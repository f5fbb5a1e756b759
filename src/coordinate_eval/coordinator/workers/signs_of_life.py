"""Signs of life: those of a job for its supervisor, and those of the supervisor for its jobs.

A job that may work long at one thing has a thread that touches a file. A process that is stopped,
and one whose storage does not answer, gives no sign. The scheduler does not know of either.

A supervisor may be lost for good: cancelled by an administrator, or out of memory. Jobs that wait
for others would then hold memory until their time limits.
"""

import contextlib
import threading
import time
from collections.abc import Iterator

from coordinate_eval import _files
from coordinate_eval.coordinator.incidents.hangs import SIGN_SECONDS
from coordinate_eval.coordinator.run.claiming.claims import own_task
from coordinate_eval.coordinator.run.paths import RunDir


@contextlib.contextmanager
def signs_of_life(run_dir: RunDir, seconds: float = SIGN_SECONDS) -> Iterator[None]:
    """Give a sign of life every so many seconds during the block, the first one at once."""
    path = run_dir.alive(own_task().rsplit(".", 1)[0])
    over = threading.Event()

    def give() -> None:
        while not over.is_set():
            with contextlib.suppress(OSError):  # storage fails for a moment, or the run was removed
                _files.make_folder(path.parent)
                path.touch()
            over.wait(seconds)

    # Where storage does not answer, nobody waits for the thread.
    threading.Thread(target=give, name="signs of life", daemon=True).start()
    try:
        yield
    finally:
        over.set()


class Supervision:
    """Tells how long no supervisor has looked at its run.

    A supervisor changes its folder at every poll (`run/epochs.py`). Only changes count, timed by
    this process's own clock, because the clocks of nodes and storage differ.
    """

    def __init__(self, run_dir: RunDir, patience_seconds: float) -> None:
        self._folder = run_dir.supervisors_folder
        self._patience_seconds = patience_seconds
        self._changed = 0.0
        self._seen = time.monotonic()

    def is_lost(self) -> bool:
        """Return whether there was no supervisor for `patience_seconds`. Call this often."""
        changed = _files.modified(self._folder)
        if changed != self._changed:
            self._changed, self._seen = changed, time.monotonic()
        return time.monotonic() - self._seen > self._patience_seconds
