"""Read from a run directory when each phase of the run ended."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

from coordinate_eval import _files
from coordinate_eval.coordinator.run.records import TrialProgress


class Phases(NamedTuple):
    """Seconds from the call of the command."""

    call_returned: float
    built: float
    planned: float
    first_trial: float
    """The first GPU job runs."""
    first_response: float
    last_response: float
    last_score: float

    def times(self, factor: float) -> "Phases":
        """Return the same on another clock."""
        return Phases(*(factor * each for each in self))


def phases(run: Path, began: float, returned: float) -> Phases:
    """Return the phases of a run that has ended; `began` and `returned` are those of the call."""
    trials = [_files.read_record(path, TrialProgress) for path in _files.records_in(run / "trials")]
    seconds = (
        returned,
        _of_files(run.glob("requests/*.json"), max),
        _of_files([run / "plan.json"], max),
        min(trial.started for trial in trials),
        min(trial.ready for trial in trials if trial.ready is not None),
        _of_files(run.glob("outputs/*/*.jsonl"), max),
        _of_files(run.glob("results/*.json"), max),
    )
    return Phases(*(when - began for when in seconds))


def _of_files(files: Iterable[Path], which: Callable[[Iterable[float]], float]) -> float:
    return which(path.stat().st_mtime for path in files)
