"""Pullers: jobs on one core each that claim their work until none is left, submitted in arrays."""

import math
from collections.abc import Mapping
from enum import StrEnum

from coordinate_eval.clusters.protocol import Job
from coordinate_eval.coordinator.run.claiming.claims import LedgerName
from coordinate_eval.coordinator.run.containers import container_of
from coordinate_eval.coordinator.run.jobs import (
    WAITING_MINUTES,
    allowed_minutes,
    most_minutes,
    prefix,
    program,
    secrets,
    time_limit_minutes,
)
from coordinate_eval.coordinator.run.paths import RunDir
from coordinate_eval.coordinator.run.records import Run


class Pullers(StrEnum):
    """The kinds of pullers. The value is in the names of their jobs and of their command."""

    BUILD = "build"
    METRIC = "metric"
    JUDGE = "judge"
    SCORE = "score"


LEDGERS_OF: Mapping[Pullers, tuple[LedgerName, ...]] = {
    Pullers.BUILD: ("requests",),
    Pullers.METRIC: ("answers",),
    Pullers.JUDGE: ("answers",),
    Pullers.SCORE: ("questions", "looks", "comparisons", "estimates", "results"),
}
"""The ledgers with the work of each kind: what others wait for comes first."""

METRIC_MEMORY_GIB = 4.0
"""Memory of a metric job: of one program, which gets most of it, and its processes together."""

JUDGE_MEMORY_GIB = 2.0
"""Memory of the job that asks a judge: a thousand long answers at the same time fit."""

SCORING_SECONDS_PER_JOB = 5.0
"""A further scoring job pays when it scores for longer than the harness takes to start."""


def works_on(run: Run, kind: Pullers, ledger: LedgerName, dataset: str) -> bool:
    """Return whether such pullers do this work: a judge's answers are not for metric jobs."""
    if ledger not in LEDGERS_OF[kind]:
        return False
    return ledger != "answers" or (kind is Pullers.JUDGE) == (dataset in run.judged)


def pullers_name(run: Run, kind: Pullers, number: int) -> str:
    """Return the name of an array of pullers, numbered from 0 within its kind."""
    return f"{prefix(run)}{kind}{number}"


def is_pullers(run: Run, name: str, kind: Pullers) -> bool:
    """Return whether a job is an array of such pullers of this run."""
    return name.startswith(f"{prefix(run)}{kind}")


def kind_of(run: Run, name: str) -> Pullers | None:
    """Return which pullers a job is an array of; None for another job."""
    return next((kind for kind in Pullers if is_pullers(run, name, kind)), None)


def most_pullers(run: Run, kind: Pullers, cores: int | None = None) -> int:
    """Return how many pullers may be there at the same time."""
    match kind:
        case Pullers.BUILD:
            most = run.settings.harness.jobs
            return most if cores is None else max(1, min(most, cores))
        case Pullers.METRIC:
            return run.settings.metrics.cpus
        case Pullers.JUDGE:
            return 1  # it has many questions in flight
        case Pullers.SCORE:
            most = run.settings.harness.jobs
            return most if cores is None else max(1, min(most, cores // 2))


def useful_pullers(run: Run, kind: Pullers, cores: int | None = None) -> int:
    """Return how many pullers the whole work of a run can occupy at the same time."""
    match kind:
        case Pullers.BUILD:
            # Loading the harness takes as long as building something small.
            useful = math.ceil(len(run.suite.datasets) / 2)
        case Pullers.METRIC:
            useful = sum(run.portion_count(s) for s in run.shards_with_questions(judged=False))
        case Pullers.JUDGE:
            useful = 1
        case Pullers.SCORE:
            seconds = sum(run.score_seconds.values())
            useful = min(len(run.suite.datasets), math.ceil(seconds / SCORING_SECONDS_PER_JOB))
    return max(1, min(most_pullers(run, kind, cores), useful))


def pullers_job(
    run: Run, run_dir: RunDir, kind: Pullers, number: int, count: int, now: float
) -> Job:
    """Return an array of pullers, as it may be from `now` on."""
    name = pullers_name(run, kind, number)
    if kind is Pullers.JUDGE and run.settings.judge.checkpoint:
        return _serving_judge(run, run_dir, name, now)
    match kind:
        case Pullers.BUILD:
            memory_gib, minutes = run.settings.harness.memory_gib, WAITING_MINUTES
        case Pullers.METRIC:
            memory_gib, minutes = METRIC_MEMORY_GIB, _metric_minutes(run, count)
        case Pullers.JUDGE:
            memory_gib, minutes = JUDGE_MEMORY_GIB, WAITING_MINUTES
        case Pullers.SCORE:
            # They wait for responses, as long as there is a supervisor.
            memory_gib, minutes = run.settings.harness.memory_gib, WAITING_MINUTES
    named = kind in run.settings.container.images  # it has no engine, for which `image` is
    container = container_of(run, run_dir, kind.value) if named else None
    return Job(
        name=name,
        argv=(*program(run.python), f"_{kind}", str(run_dir.root)),
        count=count,
        cpus=1,
        memory_mib=math.ceil(memory_gib * 1024),
        minutes=allowed_minutes(run, minutes, now),
        container=container,
        **secrets(run, judge=kind is Pullers.JUDGE),
        folder=str(run_dir.work),
        log=str(run_dir.logs / name),
    )


def _serving_judge(run: Run, run_dir: RunDir, name: str, now: float) -> Job:
    """Return the job that asks a judge which is a checkpoint, and has its server on GPUs."""
    place, trial = run.judge_place, run.settings.trial
    gib = JUDGE_MEMORY_GIB + trial.memory_gib * place.gpus + place.weights_gib
    return Job(
        name=name,
        argv=(*program(run.python), f"_{Pullers.JUDGE}", str(run_dir.root)),
        gpus=place.gpus,
        gpu_type=place.gpu_type,
        cpus=1 + trial.cpus * place.gpus,
        memory_mib=math.ceil(gib * 1024),
        minutes=most_minutes(run, now),
        gpu_work=True,
        container=container_of(run, run_dir, Pullers.JUDGE.value),
        **secrets(run),
        folder=str(run_dir.work),
        log=str(run_dir.logs / name),
    )


def _metric_minutes(run: Run, count: int) -> int:
    """Return the time limit of an array of metric jobs."""
    asking = run.shards_with_questions(judged=False)
    seconds = sum(s.metric_cpu_seconds for s in asking) / count
    return time_limit_minutes(seconds, run.settings.trial.max_minutes)
