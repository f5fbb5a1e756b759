"""The state of a run, from its directory and one answer of the scheduler.

Everything is read, nothing is written: whoever looks at a run does not change it.
"""

import os
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Any

from pydantic import Field

from coordinate_eval import _files
from coordinate_eval._format import plural
from coordinate_eval.clusters.protocol import State, TaskStatus
from coordinate_eval.coordinator.incidents.shown import refused_now
from coordinate_eval.coordinator.report.results import is_done as results_done
from coordinate_eval.coordinator.report.results import read_results
from coordinate_eval.coordinator.report.time_left import seconds_left
from coordinate_eval.coordinator.run import jobs, supervision
from coordinate_eval.coordinator.run.claiming.claims import Ledger
from coordinate_eval.coordinator.run.claiming.decided import cut_short, requests_share, stopped
from coordinate_eval.coordinator.run.claiming.work import (
    all_spans,
    portions_with_questions,
    request_indexes,
    unbuildable,
)
from coordinate_eval.coordinator.run.paths import RunDir
from coordinate_eval.coordinator.run.records import (
    HandedOver,
    Round,
    Run,
    StageProgress,
    TrialProgress,
    Waiting,
)
from coordinate_eval.coordinator.run.rounds import read_rounds
from coordinate_eval.coordinator.run.starting.create import NEEDS_WATCH, works_on_login
from coordinate_eval.coordinator.run.supervision import Epoch, latest_epoch
from coordinate_eval.records import Record, Span


class Phase(StrEnum):
    """The phases of a run, in order, and the ways in which it ends."""

    QUEUED = "waiting for its supervisor"
    BUILDING = "building"
    WAITING = "waiting for GPUs"
    STAGING = "copying weights"
    STARTING = "starting engines"
    RUNNING = "running"
    SCORING = "scoring"
    UNKNOWN = "unknown"
    UNSUPERVISED = "no supervisor"
    CANCELLED = "cancelled"
    INCOMPLETE = "incomplete"
    DECIDED = "decided"
    COMPLETE = "complete"

    @property
    def ended(self) -> bool:
        """Return whether nothing more happens unless someone acts."""
        return self in (
            Phase.UNSUPERVISED,
            Phase.CANCELLED,
            Phase.INCOMPLETE,
            Phase.DECIDED,
            Phase.COMPLETE,
        )

    @property
    def done(self) -> bool:
        """Return whether a run in this phase has what it was asked for."""
        return self in (Phase.DECIDED, Phase.COMPLETE)


class Progress(Record):
    """The progress of a run."""

    phase: Phase
    detail: str = Field(default="", description="what the phase waits for")
    responses: int
    requests: int
    portions_done: int = Field(description="portions of metric questions that are answered")
    portions: int
    nodes: int = Field(
        description="of the rounds that go on, else of the last one, as far as they are known"
    )
    trials: dict[str, int] = Field(
        description='of these rounds, by state; "waiting" ones have not begun; none is lost'
    )
    elapsed_seconds: float = Field(
        description="since the run was created or last resumed, until now or its results"
    )
    left_seconds: float | None = Field(description="estimate; None while it is unknown")


def is_complete(run_dir: RunDir) -> bool:
    """Return whether all results of a run are there."""
    results = read_results(run_dir)
    return results is not None and bool(results["complete"]) and not _is_wanted(run_dir, results)


def is_done(run_dir: RunDir) -> bool:
    """Return whether a run is complete, or ended early because its comparison is decided."""
    results = read_results(run_dir)
    return results is not None and results_done(results) and not _is_wanted(run_dir, results)


def _is_wanted(run_dir: RunDir, results: Mapping[str, Any]) -> bool:
    """Return whether items that these results are without are wanted after all."""
    return run_dir.full.exists() and bool(results.get("stopped"))


def has_ended_incomplete(run_dir: RunDir) -> bool:
    """Return whether a run's last supervision ended without what it was asked for."""
    return supervision.has_ended(run_dir) and not is_done(run_dir)


def is_supervised(run_dir: RunDir, run: Run, tasks: list[TaskStatus]) -> bool | None:
    """Return whether a supervisor runs or waits in the queue.

    One that is held because its launch failed does not count. None where it cannot be known: it
    was started in a terminal of another machine.
    """
    if supervision.supervisors(jobs.prefix(run), tasks):
        return True
    epoch = _latest(run_dir)
    if epoch is None or epoch.task:
        return False
    if epoch.host != os.uname().nodename:
        return None
    return _is_ours(epoch.pid)


def unknown_host(run_dir: RunDir, run: Run, tasks: list[TaskStatus]) -> str:
    """Return the machine on which a supervisor was started whose end cannot be seen from here.

    Empty if it is known whether the run is supervised.
    """
    epoch = _latest(run_dir)
    unknown = epoch is not None and is_supervised(run_dir, run, tasks) is None
    return epoch.host if epoch is not None and unknown else ""


def count_requests(run_dir: RunDir, run: Run) -> int:
    """Return the number of requests that a planned run has from its beginning; else 0."""
    if not run.planned:
        return 0
    built = request_indexes(run_dir, run)
    items = {} if run_dir.full.exists() else run.sampled
    return round(requests_share(built, items) * sum(index.requests for index in built.values()))


def phase_of(run_dir: RunDir, run: Run, tasks: list[TaskStatus] | None, *, silent: bool) -> Phase:
    """Return the phase of a run; the arguments are those of `progress`."""
    current = _current(run_dir)
    undone = Ledger(run_dir, "outputs").unpublished(shard.span for shard in run.shards)
    now = _trials_of(run, current, read_trials(run_dir), tasks)
    return _phase(run_dir, run, tasks or [], current, now, undone, silent=silent)[0]


def progress(
    run_dir: RunDir,
    run: Run,
    tasks: list[TaskStatus] | None,
    *,
    silent: bool,
    requests: int,
    supervised: bool = False,
) -> Progress:
    """Return how far a run is.

    Args:
        tasks: the run's jobs as the scheduler knows them; None if it knows or says nothing.
        silent: the scheduler did not answer.
        requests: number of requests of the run, see `count_requests`.
        supervised: the caller supervises the run.
    """
    current = _current(run_dir)
    trials = read_trials(run_dir)
    now = _trials_of(run, current, trials, tasks)
    undone = Ledger(run_dir, "outputs").unpublished(shard.span for shard in run.shards)
    questions = portions_with_questions(run_dir, run)
    unanswered = Ledger(run_dir, "answers").unpublished(questions)
    phase, detail = _phase(
        run_dir, run, tasks or [], current, now, undone, silent=silent, supervised=supervised
    )
    if not (phase.ended or supervised):  # a supervisor has told what is refused
        detail = "; ".join(filter(None, (detail, *refused_now(run_dir, time.time()))))
    responses = sum(trial.responses for trial in trials.values())
    whole = run.planned and not undone and not cut_short(run, stopped(run_dir))
    responses = requests if whole else min(responses, requests)
    counts = dict(Counter[str](trial.state for trial in now.values()))
    planned = {trial for round_ in current for trial, _ in jobs.trials_of(round_)}
    if not phase.ended and planned - set(trials):
        counts["waiting"] = len(planned - set(trials))
    left = None
    if phase in (Phase.STAGING, Phase.STARTING, Phase.RUNNING, Phase.SCORING):
        left = seconds_left(
            run_dir,
            run,
            now.values(),
            trials.values(),
            undone,
            unanswered,
            responses / max(1, requests),
            len(planned),
        )
    return Progress(
        phase=phase,
        detail=detail,
        responses=responses,
        requests=requests,
        portions_done=len(questions) - len(unanswered),
        portions=len(questions),
        nodes=len(
            {
                name
                for round_ in current
                for node in round_.nodes
                if not node.anywhere
                for name in node.names
            }
            | {trial.node for trial in now.values()}
        ),
        trials=counts,
        elapsed_seconds=_elapsed(run_dir, run, phase),
        left_seconds=left,
    )


def read_trials(run_dir: RunDir) -> dict[str, TrialProgress]:
    """Return the progress of every trial of all rounds, by name."""
    paths = _files.records_in(run_dir.trials_folder)
    return {path.stem: _files.read_record(path, TrialProgress) for path in paths}


def _current(run_dir: RunDir) -> list[Round]:
    """Return the rounds that have nodes which are not released, else the last one."""
    rounds = list(read_rounds(run_dir))
    going_on = [
        round_
        for round_ in rounds
        if not all(run_dir.released(round_.number, node.name).exists() for node in round_.nodes)
    ]
    return going_on or rounds[-1:]


def _latest(run_dir: RunDir) -> Epoch | None:
    return _files.read_record_if_there(run_dir.supervisor(latest_epoch(run_dir)), Epoch)


def _phase(
    run_dir: RunDir,
    run: Run,
    tasks: list[TaskStatus],
    current: Sequence[Round],
    trials: dict[str, TrialProgress],
    undone: list[Span],
    *,
    silent: bool,
    supervised: bool = False,
) -> tuple[Phase, str]:
    if is_complete(run_dir):
        return Phase.COMPLETE, ""
    if is_done(run_dir):
        return Phase.DECIDED, ""
    if run_dir.cancelled.exists():
        return Phase.CANCELLED, _files.read(run_dir.cancelled).decode(errors="replace")
    if not supervised and has_ended_incomplete(run_dir):
        return Phase.INCOMPLETE, ""
    if not supervised and is_supervised(run_dir, run, tasks) is False:
        if silent:
            return Phase.UNKNOWN, "the scheduler does not answer"
        left = _files.read_record_if_there(run_dir.handed_over, HandedOver)
        needs = NEEDS_WATCH if works_on_login(run_dir, run) else ""
        return Phase.UNSUPERVISED, f"{left.why}: {needs}" if left is not None else needs
    if not supervised and (held := supervision.held_supervisor(jobs.prefix(run), tasks)):
        return Phase.QUEUED, _because(held)
    if not run.planned:
        return _before_plan(run_dir, run, tasks)
    if not undone:
        return Phase.SCORING, _nothing_starts(run, tasks)
    states = {trial.state for trial in trials.values()}
    if "running" in states:
        return Phase.RUNNING, ""
    if "starting" in states:
        return Phase.STARTING, ""
    planned = sum(1 for round_ in current for _ in jobs.trials_of(round_))
    if current and len(trials) == planned and "staging" not in states:
        soon = "all trials have ended and work is left: the next round begins soon"
        return Phase.WAITING, _why_waiting(run_dir) or soon
    return _before_engines(run_dir, run, tasks, current)


def _before_plan(run_dir: RunDir, run: Run, tasks: list[TaskStatus]) -> tuple[Phase, str]:
    """Return the phase of a supervised run that has no plan yet."""
    alive = [t for t in tasks if t.state is not State.ENDED]
    if _is_queued(run, alive):
        return Phase.QUEUED, _because(alive[0])
    spans = all_spans(run, "requests")
    missing = len(Ledger(run_dir, "requests").unpublished(spans))
    lost = len(unbuildable(run_dir))
    if missing or lost:
        built = len(spans) - missing - lost
        words = f"prompts of {built} of {plural(len(spans), 'dataset')} are built"
        words += f"; {lost} cannot be built" if lost else ""
        why = _why_waiting(run_dir) or _nothing_starts(run, tasks)
        return Phase.BUILDING, words + (f"; {why}" if why else "")
    return Phase.WAITING, _why_waiting(run_dir) or "its supervisor looks for free nodes"


def _why_waiting(run_dir: RunDir) -> str:
    """Return why a run gets no nodes now; empty if it has not looked in vain."""
    found = _files.read_record_if_there(run_dir.waiting, Waiting)
    return "" if found is None else found.why


def _before_engines(
    run_dir: RunDir, run: Run, tasks: list[TaskStatus], current: Sequence[Round]
) -> tuple[Phase, str]:
    """Return the phase of a supervised run none of whose engines starts."""
    alive = [t for t in tasks if t.state is not State.ENDED]
    waiting = [t for t in alive if t.state is State.PENDING]
    if _is_queued(run, alive):
        return Phase.QUEUED, _because(alive[0])
    if not current:
        return Phase.WAITING, "its supervisor looks for free nodes"
    stages = [
        stage
        for round_ in current
        for node in round_.nodes
        for name in node.names
        if (stage := _files.read_record_if_there(run_dir.stage(round_.number, name), StageProgress))
    ]
    copying = [stage for stage in stages if stage.state == "copying"]
    if copying:
        done = sum(stage.done_bytes for stage in copying)
        total = sum(stage.total_bytes for stage in copying)
        share = done / max(1, total)
        return (
            Phase.STAGING,
            f"{share:.0%} of them are in memory, on {plural(len(copying), 'node')}",
        )
    if waiting:
        return Phase.WAITING, _because(waiting[0])
    if any(stage.state == "ready" for stage in stages):
        return Phase.STARTING, ""
    return Phase.WAITING, ""


def _nothing_starts(run: Run, tasks: list[TaskStatus]) -> str:
    """Return why a job waits, if no job of the run but its supervisor runs; else nothing."""
    alive = [
        task
        for task in tasks
        if task.state is not State.ENDED and not jobs.is_supervisor(run, task.name)
    ]
    waits = alive and all(task.state is State.PENDING for task in alive)
    return _because(alive[0]) if waits else ""


def _is_queued(run: Run, alive: list[TaskStatus]) -> bool:
    """Return whether nothing of a run is alive but a supervisor that waits in the queue."""
    return bool(alive) and all(
        t.state is State.PENDING and jobs.is_supervisor(run, t.name) for t in alive
    )


def _because(task: TaskStatus) -> str:
    why = ", ".join(filter(None, (task.reason, task.means)))
    return f"job {task.job_id} is pending" + (f": {why}" if why else "")


def _trials_of(
    run: Run,
    current: Sequence[Round],
    trials: dict[str, TrialProgress],
    tasks: list[TaskStatus] | None,
) -> dict[str, TrialProgress]:
    """Return the trials of these rounds that have begun and not been lost."""
    running = {(t.name, t.index) for t in tasks or [] if t.state is State.RUNNING}
    found: dict[str, TrialProgress] = {}
    for round_ in current:
        for node in round_.nodes:
            job = jobs.trials_name(run, round_.number, node.name)
            for index in range(node.trials):
                name = jobs.trial_id(node.name, index, round_.number)
                trial = trials.get(name)
                if trial is None:
                    continue
                in_array = "_" in trial.task  # else one task runs all trials of the node
                lost = tasks is not None and (job, index if in_array else 0) not in running
                if trial.state in ("ended", "failed") or not lost:
                    found[name] = trial
    return found


def _elapsed(run_dir: RunDir, run: Run, phase: Phase) -> float:
    began = max(run.created, _files.modified(run_dir.resumed))
    if phase.done or phase is Phase.INCOMPLETE:
        return max(0.0, _files.modified(run_dir.results) - began)
    return max(0.0, time.time() - began)


def _is_ours(pid: int) -> bool:
    """Return whether a process of this machine is one of this program's."""
    try:
        return b"coordinate" in (Path("/proc") / str(pid) / "cmdline").read_bytes()
    except OSError:
        return False
