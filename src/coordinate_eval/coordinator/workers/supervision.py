"""Notice, in a job, that nobody supervises its run any more.

A supervisor may be lost for good: cancelled by an administrator, or out of memory. Jobs that wait
for others would then hold memory until their time limits.
"""

import time

from coordinate_eval import _files
from coordinate_eval.coordinator.run.paths import RunDir


class Supervision:
    """Tells how long no supervisor has looked at its run.

    Each of them changes its folder at every poll (`run/epochs.py`). Only changes count, and this
    process's own clock, because those of nodes and storage differ.
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
