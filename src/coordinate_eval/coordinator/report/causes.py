"""Diagnose the failed jobs of a run by their messages, their logs and how they ended."""

from collections.abc import Iterator
from typing import NamedTuple

from coordinate_eval import _files
from coordinate_eval.coordinator.report.failures import (
    Failure,
    cause_of,
    done_about,
    read_failures,
)
from coordinate_eval.coordinator.report.state import read_trials
from coordinate_eval.coordinator.run.paths import RunDir
from coordinate_eval.coordinator.run.troubles.causes import read_causes
from coordinate_eval.diagnosis.cause import Cause
from coordinate_eval.diagnosis.rules import Rules


class FailedJob(NamedTuple):
    """A job that failed, why, and what was done about it."""

    failure: Failure
    cause: Cause
    done: str = ""


def diagnose_run(run_dir: RunDir, rules: Rules) -> list[FailedJob]:
    """Return each failed job of a run with its cause: those that said so, and those killed."""
    found, seen = [], set()
    known = read_causes(run_dir)
    for failure in (*read_failures(run_dir), *_silent(run_dir)):
        if failure.log in seen:
            continue
        cause = cause_of(failure, rules)
        by_itself = cause is not None and failure.kind == "job" and cause.reason == "Cancelled"
        if by_itself and not failure.message and run_dir.results.exists():
            continue  # a run ends such jobs at its end
        if cause is not None:
            found.append(FailedJob(failure, cause, done_about(run_dir, known.get(failure.job))))
        if failure.log:
            seen.add(failure.log)
    return found


def _silent(run_dir: RunDir) -> Iterator[Failure]:
    """Yield the logs of jobs that left no error: they may have been killed."""
    trials = {trial.log: trial for trial in read_trials(run_dir).values()}
    since = _files.modified(run_dir.resumed)
    for name in sorted(_files.names(run_dir.logs)):
        path = run_dir.logs / name
        trial = trials.get(str(path))
        if name.startswith(".") or (trial is not None and trial.state in ("ended", "failed")):
            continue
        if path.is_file() and not path.is_symlink() and _files.modified(path) >= since:
            kind, who = ("trial", trial.trial) if trial else ("job", name.removesuffix(".log"))
            yield Failure(kind, who, trial.node if trial else "", "", str(path))
