"""The supervisor's hold on its scorer: a child that may crash or hang without harm to the run."""

import contextlib
import os
import subprocess
import time
from collections import Counter
from collections.abc import Collection

from coordinate_eval import _files
from coordinate_eval.coordinator.cluster import ENDS_WITH_PARENT
from coordinate_eval.coordinator.run.failures import log_tail
from coordinate_eval.coordinator.run.paths import RunDir
from coordinate_eval.coordinator.run.records import Run
from coordinate_eval.coordinator.run.results import unscored_datasets

MAX_ENDS = 3
"""Times that a dataset may end the scorer before it is given up."""


class Scorer:
    """Has a scorer run while anything is unscored; see `score` for what that does."""

    def __init__(self, run_dir: RunDir, run: Run) -> None:
        self._dir = run_dir
        self._run = run
        self._child: subprocess.Popen[bytes] | None = None
        self._ends: Counter[str] = Counter()
        self._seen: tuple[str, int] | None = None
        self._since = 0.0

    @property
    def ended(self) -> bool:
        """Whether one was started that is not there any more."""
        return self._child is not None and self._child.poll() is not None

    def tend(self, waiting: Collection[str]) -> str:
        """Start it, end it where it hangs, and give up what has ended it too often.

        `waiting` are the datasets with responses or answers still to come. What comes back is
        what the user may want to know; mostly nothing.
        """
        event = ""
        if self._child is not None and self._overdue():
            minutes = self._run.settings.metrics.scoring_minutes
            event = self._give_up(f"scoring did not end within {minutes:g} minutes", waiting)
        elif self._child is not None and self._child.poll():
            event = self._give_up("the scorer crashed", waiting)
        if event or self.ended:
            self.end()
        if self._child is None and unscored_datasets(self._dir, self._run):
            self._start()
        return event

    def end(self) -> None:
        """Have none. Files appear whole or not at all, so it can go at any moment."""
        if self._child is not None:
            self._child.kill()
            self._child.wait()
            self._child = None

    def _start(self) -> None:
        """It loads the harness while engines start."""
        self._dir.logs.mkdir(exist_ok=True)
        self._dir.scoring.unlink(missing_ok=True)
        self._seen, self._since = None, time.monotonic()
        argv = [self._run.python, "-m", "coordinate_eval", "_score", str(self._dir.root)]
        with (self._dir.logs / "score.log").open("ab") as log:
            self._child = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=os.environ | ENDS_WITH_PARENT,
            )

    def _overdue(self) -> bool:
        """Whether it has been at one dataset, or at its own start, for too long."""
        found = self._scoring()
        if found != self._seen:
            self._seen, self._since = found, time.monotonic()
        idle = found is not None and not found[0]
        limit = 60 * self._run.settings.metrics.scoring_minutes
        return not idle and time.monotonic() - self._since > limit

    def _scoring(self) -> tuple[str, int] | None:
        """The dataset in hand, empty for none, and since when; None before the first one."""
        with contextlib.suppress(FileNotFoundError):
            return self._dir.scoring.read_text(), self._dir.scoring.stat().st_mtime_ns
        return None

    def _give_up(self, why: str, waiting: Collection[str]) -> str:
        """Give up the dataset that ends it too often; where it never got to one, all that wait for
        nothing else.
        """
        name = (self._scoring() or ("", 0))[0]
        self._ends[name] += 1
        what = f"{why}, at {name}" if name else why
        if self._ends[name] < MAX_ENDS:
            return f"{what}; trying again"
        lost = (
            {name}
            if name
            else {d.name for d in unscored_datasets(self._dir, self._run)} - set(waiting)
        )
        tail = log_tail(self._dir, "score")
        for dataset in sorted(lost):
            _files.write(self._dir.dataset_error(dataset), f"{why}:\n{tail}\n")
        return what
