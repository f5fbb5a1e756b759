"""Pullers: jobs on one core each that claim their work until none is left, submitted in arrays."""

import math
from collections.abc import Mapping
from enum import StrEnum

from coordinate_eval.cluster import Job
from coordinate_eval.coordinator.run.claims import LedgerName
from coordinate_eval.coordinator.run.jobs import prefix, program, time_limit_minutes
from coordinate_eval.coordinator.run.paths import RunDir
from coordinate_eval.coordinator.run.records import Run


class Pullers(StrEnum):
    """The kinds of pullers. The value is in the names of their jobs and of their command."""

    METRIC = "metric"


LEDGERS_OF: Mapping[Pullers, tuple[LedgerName, ...]] = {Pullers.METRIC: ("answers",)}
"""The ledgers with the work of each kind."""


def pullers_name(run: Run, kind: Pullers, number: int) -> str:
    """Return the name of an array of pullers, numbered from 0 within its kind."""
    return f"{prefix(run)}{kind}{number}"


def is_pullers(run: Run, name: str, kind: Pullers) -> bool:
    """Return whether a job is an array of such pullers of this run."""
    return name.startswith(f"{prefix(run)}{kind}")


def kind_of(run: Run, name: str) -> Pullers | None:
    """Return which pullers a job is an array of; None for another job."""
    return next((kind for kind in Pullers if is_pullers(run, name, kind)), None)


def most_pullers(run: Run, kind: Pullers) -> int:
    """Return how many pullers may be there at the same time."""
    return {Pullers.METRIC: run.settings.metrics.cpus}[kind]


def useful_pullers(run: Run, kind: Pullers) -> int:
    """Return how many pullers the whole work of a run can occupy at the same time."""
    useful = {
        Pullers.METRIC: sum(run.portion_count(shard) for shard in run.shards_with_questions())
    }[kind]
    return max(1, min(most_pullers(run, kind), useful))


def pullers_job(run: Run, run_dir: RunDir, kind: Pullers, number: int, count: int) -> Job:
    """Return an array of pullers."""
    name = pullers_name(run, kind, number)
    memory_gib = {Pullers.METRIC: run.settings.metrics.memory_gib}[kind]
    return Job(
        name=name,
        argv=(*program(run.python), f"_{kind}", str(run_dir.root)),
        count=count,
        cpus=1,
        memory_mib=math.ceil(memory_gib * 1024),
        minutes=_minutes(run, kind, count),
        folder=str(run_dir.work),
        log=str(run_dir.logs / name),
    )


def _minutes(run: Run, kind: Pullers, count: int) -> int:
    """Return the time limit of an array."""
    seconds = sum(s.metric_cpu_seconds for s in run.shards_with_questions()) / count
    trial = run.settings.trial
    return time_limit_minutes(
        trial.time_limit_factor, seconds, trial.min_minutes, trial.max_minutes
    )
