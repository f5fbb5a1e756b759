"""Show people incidents and refused jobs. Equal errors are reported once."""

import contextlib
from collections.abc import Iterator
from typing import NamedTuple

from coordinate_eval import _files
from coordinate_eval._format import duration, plural
from coordinate_eval.coordinator.incidents.bad_nodes import read_avoided, suspected_nodes
from coordinate_eval.coordinator.incidents.causes import cause_of, find
from coordinate_eval.coordinator.incidents.incident import Incident, read_incidents, without_node
from coordinate_eval.coordinator.incidents.observe import failed_jobs, recorded
from coordinate_eval.coordinator.incidents.remedies import lighter_load
from coordinate_eval.coordinator.run.claiming.pullers import Pullers
from coordinate_eval.coordinator.run.jobs import read_submitted
from coordinate_eval.coordinator.run.logs import MOST_LOG_BYTES
from coordinate_eval.coordinator.run.paths import RunDir
from coordinate_eval.coordinator.run.records import Refusals, TrialProgress, read_run_if_there
from coordinate_eval.diagnosis.cause import UNKNOWN, Cause, Remedy, unknown
from coordinate_eval.diagnosis.rules import Rules, shipped
from coordinate_eval.errors import RecordError

MOST_READ_BYTES = 1 << 30
"""From the end of a log of a run, within which anybody looks for a cause. A colleague's run may
name a file of terabytes that takes no space."""


class FailedJob(NamedTuple):
    """A job that failed or was refused, why, and what was done about it."""

    kind: str
    name: str
    node: str
    message: str
    log: str
    cause: Cause
    done: str = ""


def report_failures(run_dir: RunDir) -> list[str]:
    """Return a line for each error since the run was last resumed: who met it, and a log."""
    alike: dict[tuple[str, str], list[FailedJob]] = {}
    rules = shipped()
    for job in [*_failed(run_dir, rules, MOST_LOG_BYTES), *_refused(run_dir, rules)]:
        alike.setdefault((job.kind, without_node(job.message, job.node)), []).append(job)
    lines = []
    for (kind, _), group in alike.items():
        last = group[-1]
        who = f"{kind} {last.name}" if len(group) == 1 else f"{len(group)} {kind}s"
        line = f"{who}: {last.message}" + (f"; log: {last.log}" if last.log else "")
        if kind != "job":  # a refusal has Slurm's own words for it
            line += f"; cause: {last.cause.words}" if last.cause.reason != UNKNOWN else ""
            line += f"; done: {last.done}" if last.done else ""
        lines.append(line)
    return lines


def diagnose_run(run_dir: RunDir, rules: Rules) -> list[FailedJob]:
    """Return each failed job of a run with its cause: jobs that said so, and jobs that were killed.

    A cause that no rule knew when the job died is looked for again by `rules`.
    """
    found, seen = [], set()
    jobs = [*_failed(run_dir, rules, MOST_READ_BYTES), *_refused(run_dir, rules)]
    for job in (*jobs, *_silent(run_dir, rules)):
        if job.log not in seen:
            found.append(job)
        if job.log:
            seen.add(job.log)
    return found


def _failed(run_dir: RunDir, rules: Rules, most_bytes: int) -> Iterator[FailedJob]:
    """Yield the incidents of a run, also those that nobody has judged yet."""
    for incident in (*read_incidents(run_dir), *failed_jobs(run_dir, 0.0, recorded(run_dir))):
        cause = incident.cause
        if cause is None or not incident.known:
            cause = cause_of(incident, rules, most_bytes) or unknown()
        of_puller = isinstance(incident.kind, Pullers)
        yield FailedJob(
            f"{incident.kind} job" if of_puller else incident.kind,
            incident.node if incident.kind == "keeper" else incident.job,
            incident.node,
            # Only the log of such a job has its own words.
            (cause.line if of_puller else "") or incident.message,
            incident.log,
            cause,
            done_about(run_dir, incident),
        )


def _refused(run_dir: RunDir, rules: Rules) -> Iterator[FailedJob]:
    """Yield the jobs that the scheduler refused since the run was last resumed."""
    since = _files.modified(run_dir.resumed)
    refused = [
        # The lines that follow are the command, which differs from job to job.
        (each.job.name, each.job.node or "", each.refusal.splitlines()[0])
        for each in read_submitted(run_dir)
        if each.refusal and _files.modified(run_dir.job(each.job.name)) >= since
    ]
    now = _files.read_record_if_there(run_dir.refused, Refusals)
    if now is not None and _files.modified(run_dir.refused) >= since:
        refused += [(each.job, "", each.words) for each in now.jobs]
    for name, node, words in refused:
        yield FailedJob(
            "job", name, node, words, "", find("", words, "refused", rules, 0) or unknown()
        )


def _silent(run_dir: RunDir, rules: Rules) -> Iterator[FailedJob]:
    """Yield the logs of jobs that left no error: they may have been killed."""
    trials = {
        trial.log: trial
        for path in _files.records_in(run_dir.trials_folder)
        if (trial := _files.read_record_if_there(path, TrialProgress)) is not None
    }
    since, over = _files.modified(run_dir.resumed), run_dir.results.exists()
    for name in sorted(_files.names(run_dir.logs)):
        path = run_dir.logs / name
        trial = trials.get(str(path))
        if name.startswith(".") or (trial is not None and trial.state in ("ended", "failed")):
            continue
        if not path.is_file() or path.is_symlink() or _files.modified(path) < since:
            continue
        cause = find(str(path), "", "", rules, MOST_READ_BYTES)
        if cause is None:
            continue
        if trial is not None:
            yield FailedJob("trial", trial.trial, trial.node, "", str(path), cause)
        elif not (over and cause.reason == "Cancelled"):
            # A run cancels its other jobs at its end.
            yield FailedJob("job", name.removesuffix(".log"), "", "", str(path), cause)


def done_about(run_dir: RunDir, incident: Incident) -> str:
    """Return what the run did because of an incident; empty if it only tried again."""
    run = read_run_if_there(run_dir)
    if run is None or incident.cause is None:
        return ""
    if incident.remedy is Remedy.LESS_LOAD and incident.of_memory:
        load = lighter_load(run, read_incidents(run_dir))
        return f"later engines run {load.sequences} sequences at once, not {load.full}"
    if incident.remedy is Remedy.WAIT:
        return "tried again, ever less often"
    avoided = read_avoided(run.settings, 0.0).get(incident.node)
    prefix = f"{run.id}.{run.nonce}:"
    if avoided is not None and any(each.startswith(prefix) for each in avoided.evidence):
        return f"{incident.node} was avoided"
    if incident.stops:
        with contextlib.suppress(RecordError):
            ended = _files.read_json(run_dir.results)
            if isinstance(ended, dict) and incident.words in str(ended.get("reason")):
                return "the run was ended"
    if incident.node in suspected_nodes(run_dir, 0.0):
        return f"{incident.node} is avoided by this run until another node has shown more"
    return ""


def refused_now(run_dir: RunDir, now: float) -> list[str]:
    """Return what the scheduler says of jobs that it refuses `now`, and when it is asked again."""
    found = _files.read_record_if_there(run_dir.refused, Refusals)
    said = []
    for refusal in found.jobs if found is not None else []:
        after = "no such job is tried again"
        if refusal.again is not None:
            after = f"tried again in {duration(max(0.0, refusal.again - now))}"
        said.append(f"{refusal.words} ({plural(refusal.tries, 'time')} in a row; {after})")
    return said
