"""Errors of jobs, and refused jobs. Equal ones are reported once."""

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, NamedTuple

from coordinate_eval import _files, _owner
from coordinate_eval._format import duration, plural
from coordinate_eval.clusters.protocol import End
from coordinate_eval.coordinator.run.claiming.pullers import Pullers
from coordinate_eval.coordinator.run.jobs import read_submitted, trials_of
from coordinate_eval.coordinator.run.paths import RunDir
from coordinate_eval.coordinator.run.records import (
    Refusals,
    Round,
    StageProgress,
    TrialProgress,
    read_run_if_there,
)
from coordinate_eval.coordinator.run.rounds import read_rounds
from coordinate_eval.coordinator.run.troubles.avoided import read_avoided
from coordinate_eval.coordinator.run.troubles.broken import suspected_nodes
from coordinate_eval.coordinator.run.troubles.causes import (
    JobCause,
    keeper_id,
    read_causes,
    read_dead_pullers,
)
from coordinate_eval.coordinator.run.troubles.memory import lighter_load
from coordinate_eval.coordinator.run.troubles.trouble import read_troubles
from coordinate_eval.diagnosis.cause import UNKNOWN, Cause, Ending, Log, find_cause, read_log
from coordinate_eval.diagnosis.compress import compress_text
from coordinate_eval.diagnosis.reaction import Action
from coordinate_eval.diagnosis.rules import Rules, shipped
from coordinate_eval.errors import ForeignError, RecordError

MOST_REPORTED_BYTES = 1 << 20
"""From the end of a log, within which a report looks for the cause of a failure."""

MOST_READ_BYTES = 1 << 30
"""From the end of a log of a run, within which anybody looks for a cause. A colleague's run may
name a file of terabytes that takes no space."""


class Failure(NamedTuple):
    """The error of one job, or the scheduler's refusal of it."""

    kind: str
    name: str
    node: str
    message: str
    log: str
    how: str = ""
    """Its end, in the scheduler's words, if that is known."""
    job: str = ""
    """The trial, or the keeper as `keeper_id` names it; empty for a job that was refused."""
    before_work: bool = False
    """It says itself that it failed, and had no work yet: see `JobCause`."""
    pullers: Pullers | None = None
    """The kind of its job, if it was neither a trial nor a keeper."""

    @property
    def error(self) -> str:
        """Return the message without the node's name, so that equal errors of nodes are equal."""
        return self.message.replace(self.node, "NODE") if self.node else self.message


def report_failures(run_dir: RunDir) -> list[str]:
    """Return a line for each error since the run was last resumed: who met it, and a log."""
    known = read_causes(run_dir)
    for dead in read_dead_pullers(run_dir).values():
        known |= {cause.job: cause for cause in dead}
    alike: dict[tuple[str, str], list[Failure]] = {}
    for failure in read_failures(run_dir):
        alike.setdefault((failure.kind, failure.error), []).append(failure)
    lines = []
    for (kind, _), group in alike.items():
        last = group[-1]
        who = f"{kind} {last.name}" if len(group) == 1 else f"{len(group)} {kind}s"
        line = f"{who}: {last.message}" + (f"; log: {last.log}" if last.log else "")
        if kind != "job":  # a refusal has Slurm's own words for it
            line += _why(run_dir, last, known.get(last.job))
        lines.append(line)
    return lines


def _why(run_dir: RunDir, failure: Failure, found: JobCause | None) -> str:
    """Return why a job failed and what was done about it: as its supervisor found, if it has."""
    if found is None:
        cause = cause_of(failure, shipped(), MOST_REPORTED_BYTES)
        if cause is None or cause.reason == UNKNOWN:
            return ""
        return f"; cause: {cause.reason} ({cause.category}): {cause.cure}"
    done = done_about(run_dir, found)
    return (f"; cause: {found.words}" if found.known else "") + (f"; done: {done}" if done else "")


def done_about(run_dir: RunDir, cause: JobCause | None) -> str:
    """Return what the run did because a job died of this; empty if it only tried again."""
    run = read_run_if_there(run_dir) if cause is not None else None
    if cause is None or run is None:
        return ""
    if cause.of_gpu_memory:
        load = lighter_load(run_dir, run)
        return f"later engines run {load.sequences} sequences at once, not {load.full}"
    if cause.action is Action.WAIT:
        return "tried again, ever less often"
    avoided = read_avoided(run.settings, 0.0).get(cause.node)
    prefix = f"{run.id}.{run.nonce}:"
    if avoided is not None and any(each.startswith(prefix) for each in avoided.evidence):
        return f"{cause.node} was avoided"
    if cause.ends_all:
        with contextlib.suppress(RecordError):
            ended = _files.read_json(run_dir.results)
            if isinstance(ended, dict) and cause.words in str(ended.get("reason")):
                return "the run was ended"
    if cause.node in suspected_nodes(run_dir, run, 0.0):
        return f"{cause.node} is avoided by this run until another node has shown more"
    return ""


def cause_of(failure: Failure, rules: Rules, most_bytes: int = 0) -> Cause | None:
    """Return why a job failed, by its log, or the last bytes of it, and its message.

    Without `most_bytes`, the log is read as far as anybody looks.

    None if neither has an error.
    """
    logs = []
    if failure.log:
        # Who wrote the record may have named anything. Without a log, the message tells.
        with (
            contextlib.suppress(OSError, ValueError, ForeignError),
            open_log(failure.log) as file,
        ):
            logs.append(read_log(file, failure.log, rules, most_bytes or MOST_READ_BYTES))
    said = None
    if failure.message:
        said = Log(failure.log, compress_text(failure.message, rules))
    end = "refused" if failure.kind == "job" else failure.how or "failed"
    state = end.upper().replace(" ", "_") if failure.message else ""
    return find_cause(logs, rules, Ending(state), said)


def open_log(name: str) -> BinaryIO:
    """Open a regular file; a pipe would block, and a device may have no end.

    Raises:
        ForeignError: it is not a regular file.
        OSError: it cannot be read.
    """
    path = Path(os.path.realpath(name))
    return os.fdopen(_owner.open_file(path, anybodys=True), "rb")


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
                yield Failure(
                    "keeper", node.name, node.name, stage.message, stage.log,
                    job=keeper_id(round_.number, node.name), before_work=True,
                )  # fmt: skip
        for trial in read_trials_of(run_dir, round_):
            if trial.state == "failed" and _files.modified(run_dir.trial(trial.trial)) >= since:
                yield Failure(
                    "trial", trial.trial, trial.node, trial.message, trial.log,
                    job=trial.trial, before_work=trial.running is None,
                )  # fmt: skip
    for trouble in read_troubles(run_dir):
        how = "" if trouble.how in (End.UNKNOWN, "hung") else trouble.how
        yield Failure(
            "trial", trouble.trial, trouble.node, trouble.message, trouble.log, how, trouble.trial
        )
    for kind, dead in read_dead_pullers(run_dir).items():
        for cause in dead:
            yield Failure(
                f"{kind} job", cause.job, cause.node, cause.root or "it died", cause.log,
                job=cause.job, before_work=cause.before_work, pullers=kind,
            )  # fmt: skip
    for submitted in read_submitted(run_dir):
        if submitted.refusal and _files.modified(run_dir.job(submitted.job.name)) >= since:
            # The lines that follow are the command, which differs from job to job.
            words = submitted.refusal.splitlines()[0]
            yield Failure("job", submitted.job.name, submitted.job.node or "", words, "")
    refusals = _files.read_record_if_there(run_dir.refused, Refusals)
    if refusals is not None and _files.modified(run_dir.refused) >= since:
        for refusal in refusals.jobs:
            yield Failure("job", refusal.job, "", refusal.words, "")
