"""Errors of keepers and trials, and refused jobs. Equal ones are reported once; some end a run."""

import contextlib
import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, NamedTuple

from coordinate_eval import _files, _owner
from coordinate_eval._format import duration, plural
from coordinate_eval.cluster import End
from coordinate_eval.coordinator.run.jobs import read_submitted, trials_of
from coordinate_eval.coordinator.run.paths import RunDir
from coordinate_eval.coordinator.run.records import (
    Refusals,
    Round,
    StageProgress,
    TrialProgress,
)
from coordinate_eval.coordinator.run.rounds import read_rounds
from coordinate_eval.coordinator.run.troubles.trouble import read_troubles
from coordinate_eval.diagnosis.cause import UNKNOWN, Cause, Ending, Log, find_cause, read_log
from coordinate_eval.diagnosis.compress import compress_text
from coordinate_eval.diagnosis.rules import Rules, shipped
from coordinate_eval.errors import ForeignError

LAST_LOG_LINES = 15
"""Lines of a failed job's log that a report quotes."""


MOST_LOG_BYTES = 1 << 20
"""From the end of a log, within which a report looks for the cause of a failure."""


class Failure(NamedTuple):
    """The error of one keeper or trial, or the scheduler's refusal of a job."""

    kind: str
    name: str
    node: str
    message: str
    log: str
    how: str = ""
    """How it ended, as the scheduler says, if that is known."""

    @property
    def error(self) -> str:
        """The message without the node's name, so that equal errors of several nodes are equal."""
        return self.message.replace(self.node, "NODE") if self.node else self.message


def report_failures(run_dir: RunDir) -> list[str]:
    """Return a line for each error since the run was last resumed: who met it, and a log."""
    alike: dict[tuple[str, str], list[Failure]] = {}
    for failure in read_failures(run_dir):
        alike.setdefault((failure.kind, failure.error), []).append(failure)
    lines = []
    for (kind, _), group in alike.items():
        last = group[-1]
        who = f"{kind} {last.name}" if len(group) == 1 else f"{len(group)} {kind}s"
        line = f"{who}: {last.message}" + (f"; log: {last.log}" if last.log else "")
        # A refusal has Slurm's own words for it.
        cause = cause_of(last, shipped(), MOST_LOG_BYTES) if kind != "job" else None
        if cause is not None and cause.reason != UNKNOWN:
            line += f"; cause: {cause.reason} ({cause.category}): {cause.cure}"
        lines.append(line)
    return lines


def cause_of(failure: Failure, rules: Rules, most_bytes: int | None = None) -> Cause | None:
    """Return why a job failed, by its log, or the last bytes of it, and its message.

    None if neither has an error.
    """
    logs = []
    if failure.log:
        # Who wrote the record may have named anything. Without a log, the message tells.
        with (
            contextlib.suppress(OSError, ValueError, ForeignError),
            _open_log(failure.log) as file,
        ):
            logs.append(read_log(file, failure.log, rules, most_bytes))
    if failure.message:
        logs.append(Log(failure.log, compress_text(failure.message, rules)))
    end = "refused" if failure.kind == "job" else failure.how or "failed"
    state = end.upper().replace(" ", "_") if failure.message else ""
    return find_cause(logs, rules, Ending(state))


def _open_log(name: str) -> BinaryIO:
    """Open a regular file; a pipe would block, and a device may have no end."""
    path = Path(os.path.realpath(name))
    return os.fdopen(_owner.open_file(path, anybodys=True), "rb")


def recurring_failure(run_dir: RunDir, rounds: Sequence[Round]) -> bool:
    """Return whether all trials of the last round failed, and another round would fail too.

    They must have failed with the same error. Bad input fails again for certain. Engines that do
    not start on one node may be that node's fault; if none starts on several nodes, another round
    is no help. A trial that has ever answered proves the input to be right.
    """
    if not rounds:
        return False
    if _files.modified(run_dir.round(rounds[-1].number)) < _files.modified(run_dir.resumed):
        return False
    trials = []
    for trial in read_trials_of(run_dir, rounds[-1]):
        if trial.cause not in ("input", "engine start"):
            return False
        trials.append(trial)
    errors = {trial.message.replace(trial.node, "NODE") for trial in trials}
    causes = {trial.cause for trial in trials}
    if len(errors) != 1 or not (
        causes == {"input"}
        or (causes == {"engine start"} and len({trial.node for trial in trials}) > 1)
    ):
        return False
    earlier = (trial for round_ in rounds for trial in read_trials_of(run_dir, round_))
    return not any(trial.responses for trial in earlier)


def read_trials_of(run_dir: RunDir, round_: Round) -> Iterator[TrialProgress]:
    """Yield the progress of each trial of a round that has begun."""
    for trial, _ in trials_of(round_):
        found = _files.read_record_if_there(run_dir.trial(trial), TrialProgress)
        if found is not None:
            yield found


def refused_now(run_dir: RunDir) -> list[str]:
    """Return what the scheduler says of jobs that it refuses now, and when they are tried again."""
    found = _files.read_record_if_there(run_dir.refused, Refusals)
    said = []
    for refusal in found.jobs if found is not None else []:
        after = "no such job is tried again"
        if refusal.again is not None:
            after = f"tried again in {duration(max(0.0, refusal.again - time.time()))}"
        said.append(f"{refusal.words} ({plural(refusal.tries, 'time')} in a row; {after})")
    return said


def own_log() -> str:
    """Return the path of the file that this process's errors go to; empty where it is no file."""
    try:
        path = Path("/proc/self/fd/2").readlink()
    except OSError:
        return ""
    return str(path) if path.is_file() else ""


def tail(log: str) -> list[str]:
    """Return the last lines of a log; none if it has no path."""
    lines = _files.read(Path(log)).decode(errors="replace").splitlines() if log else []
    return lines[-LAST_LOG_LINES:]


def read_failures(run_dir: RunDir) -> Iterator[Failure]:
    """Yield each error since the run was last resumed."""
    since = _files.modified(run_dir.resumed)
    for round_ in read_rounds(run_dir):
        for node in round_.nodes:
            path = run_dir.stage(round_.number, node.name)
            stage = _files.read_record_if_there(path, StageProgress)
            if stage is None or stage.state != "failed":
                continue
            if _files.modified(path) >= since:
                yield Failure("keeper", node.name, node.name, stage.message, stage.log)
        for trial in read_trials_of(run_dir, round_):
            if trial.state == "failed" and _files.modified(run_dir.trial(trial.trial)) >= since:
                yield Failure("trial", trial.trial, trial.node, trial.message, trial.log)
    for trouble in read_troubles(run_dir):
        how = "" if trouble.how in (End.UNKNOWN, "hung") else trouble.how
        yield Failure("trial", trouble.trial, trouble.node, trouble.message, trouble.log, how)
    for submitted in read_submitted(run_dir):
        if submitted.refusal and _files.modified(run_dir.job(submitted.job.name)) >= since:
            # The lines that follow are the command, which differs from job to job.
            words = submitted.refusal.splitlines()[0]
            yield Failure("job", submitted.job.name, submitted.job.node or "", words, "")
    refusals = _files.read_record_if_there(run_dir.refused, Refusals)
    if refusals is not None and _files.modified(run_dir.refused) >= since:
        for refusal in refusals.jobs:
            yield Failure("job", refusal.job, "", refusal.words, "")
