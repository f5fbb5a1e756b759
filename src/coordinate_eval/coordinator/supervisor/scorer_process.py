"""The supervisor's child process that scores. It may crash or hang without harm to the run.

`workers/scorer.py` is what runs in the child.
"""

import contextlib
import os
import subprocess
import time
from collections import Counter
from collections.abc import Collection

from coordinate_eval import _files
from coordinate_eval.cluster import ENDS_WITH_PARENT
from coordinate_eval.coordinator.report.failures import log_tail
from coordinate_eval.coordinator.report.results import unscored_datasets, unscored_indexes
from coordinate_eval.coordinator.run.jobs import program
from coordinate_eval.coordinator.run.own import work_folder
from coordinate_eval.coordinator.run.paths import RunDir
from coordinate_eval.coordinator.run.records import Run
from coordinate_eval.evaluators.confined.evaluator import find_level, refusal

MAX_FAILURES = 3
"""Crashes or time-outs of the scorer at one dataset after which the dataset is given up."""


def refuse_unconfined(run_dir: RunDir, run: Run) -> str:
    """Give up the datasets whose scoring may run what the model wrote, where nothing confines it.

    It is called before the first job is submitted: no GPU works for them.

    Returns:
        An event for the user, mostly empty.
    """
    indexes = unscored_indexes(run_dir, run)
    runs_text = {name: index.runs_text for name, index in indexes.items() if index.runs_text}
    level, why = find_level(run.settings.metrics.allow_unsafe_code) if runs_text else (None, "")
    if not runs_text or level is not None:
        return ""
    for name, what in runs_text.items():
        _files.write(run_dir.dataset_error(name), refusal(name, what, why) + "\n")
    return (
        f"not run: {', '.join(runs_text)}. Their scoring may run what the model wrote, and nothing "
        f"confines it on {os.uname().nodename}; results.json says what to do"
    )


class ScorerProcess:
    """Keeps a scorer running while datasets are unscored."""

    def __init__(self, run_dir: RunDir, run: Run) -> None:
        self._dir = run_dir
        self._run = run
        self._child: subprocess.Popen[bytes] | None = None
        self._failures: Counter[str] = Counter()
        self._seen: tuple[str, int] | None = None
        self._seen_since = 0.0

    @property
    def ended(self) -> bool:
        """Return whether a scorer was started and has ended."""
        return self._child is not None and self._child.poll() is not None

    def check(self, waiting: Collection[str]) -> str:
        """Start the scorer if there is none, and kill it if it hangs.

        A dataset at which it crashed or hung `MAX_FAILURES` times is given up: its error is
        written to the run directory.

        Args:
            waiting: datasets that still miss responses or answers.

        Returns:
            An event for the user, mostly empty.
        """
        event = ""
        if self._child is not None and self._overdue():
            minutes = self._run.settings.metrics.scoring_minutes
            event = self._count_failure(f"scoring did not end within {minutes:g} minutes", waiting)
        elif self._child is not None and self._child.poll():
            event = self._count_failure("the scorer crashed", waiting)
        if event or self.ended:
            self.kill()
        if self._child is None and unscored_datasets(self._dir, self._run):
            self._start()
        return event

    def kill(self) -> None:
        """Kill the scorer if it is running. Its files are whole at any moment."""
        if self._child is not None:
            self._child.kill()
            self._child.wait()
            self._child = None

    def _start(self) -> None:
        """Start a scorer. Its processes load the harness while engines start."""
        self._dir.logs.mkdir(exist_ok=True)
        self._dir.scoring.unlink(missing_ok=True)
        self._seen, self._seen_since = None, time.monotonic()
        argv = [*program(self._run.python), "_score", str(self._dir.root)]
        with _files.open_to_write(self._dir.logs / "score.log", append=True) as log:
            self._child = subprocess.Popen(
                argv,
                cwd=work_folder(self._dir),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=os.environ | ENDS_WITH_PARENT,
            )

    def _overdue(self) -> bool:
        """Return whether the scorer takes too long for one dataset, or for its own start."""
        found = self._scoring()
        if found != self._seen:
            self._seen, self._seen_since = found, time.monotonic()
        idle = found is not None and not found[0]
        limit = 60 * self._run.settings.metrics.scoring_minutes
        return not idle and time.monotonic() - self._seen_since > limit

    def _scoring(self) -> tuple[str, int] | None:
        """Return the dataset that is being scored and since when (mtime in ns).

        The name is empty while the scorer is idle. None means that it has not begun.
        """
        with contextlib.suppress(FileNotFoundError):
            return _files.read(self._dir.scoring).decode(), self._dir.scoring.stat().st_mtime_ns
        return None

    def _count_failure(self, why: str, waiting: Collection[str]) -> str:
        """Count a crash or a time-out, and give up its dataset at the last one.

        Where the scorer failed before it came to a dataset, give up all that wait for it alone.
        """
        name = (self._scoring() or ("", 0))[0]
        self._failures[name] += 1
        event = f"{why}, at {name}" if name else why
        if self._failures[name] < MAX_FAILURES:
            return f"{event}; trying again"
        unscored = {d.name for d in unscored_datasets(self._dir, self._run)}
        lost = {name} if name else unscored - set(waiting)
        tail = log_tail(self._dir, "score")
        for dataset in sorted(lost):
            _files.write(self._dir.dataset_error(dataset), f"{why}:\n{tail}\n")
        return event
