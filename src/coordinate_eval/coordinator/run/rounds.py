"""Rounds: the nodes that a run asks for together, and the time limit of the jobs on them."""

from collections.abc import Iterator, Mapping, Sequence

from coordinate_eval import _files
from coordinate_eval.coordinator.run.jobs import (
    most_minutes,
    time_limit_minutes,
    trial_id,
    trials_of,
)
from coordinate_eval.coordinator.run.paths import RunDir
from coordinate_eval.coordinator.run.records import Round, RoundNode, Run, TrialProgress
from coordinate_eval.errors import RecordError
from coordinate_eval.records import Shard

UNAVAILABLE_SECONDS = 60.0
"""Longest time for which tasks wait for a node that takes no jobs now, where others may.

A daemon that is restarted is away for seconds.
"""


def make_round(
    run: Run,
    number: int,
    created: float,
    nodes: Sequence[RoundNode],
    shards: Sequence[Shard],
    *,
    ready_seconds: float,
    floor_seconds: Mapping[str, float],
    planned_seconds: float = 0.0,
    short_rounds: int = 0,
    beside: int = 0,
) -> Round:
    """Return a round that runs `shards` on `nodes`.

    Its time limit is the least time in which the trials can complete the shards, as predicted,
    times `TIME_LIMIT_FACTOR`, and at least `LEAST_MINUTES`. It is never more than `max_minutes`,
    than the scheduler allows, or than ends before a window: later rounds do what does not fit into
    it. The least time is the shards' seconds divided by the trials, or the longest shard. Trials
    that each take the next free shard need less than twice as long (R. L. Graham, "Bounds for
    Certain Multiprocessing Anomalies", 1966). For each of the last rounds that was too short for a
    response the limit is doubled, up to `max_minutes`.

    Args:
        ready_seconds: from the submission until an engine answers: the copy of the weights and
            the engine's start.
        floor_seconds: of each dataset, the latency of its longest item; 0 where it is not given.
        planned_seconds: the makespan, where a plan gives these nodes their shards.
        short_rounds: last rounds in a row that perhaps were too short for a response.
        beside: trials of other rounds that work on these shards, too.
    """
    trials = sum(node.trials for node in nodes) + beside
    longest = max(
        (max(s.gpu_seconds, floor_seconds.get(s.dataset, 0.0)) for s in shards), default=0.0
    )
    work = sum(s.gpu_seconds for s in shards)
    seconds = ready_seconds + max(work / max(1, trials), longest)
    most = most_minutes(run, created)
    minutes = time_limit_minutes(max(seconds, planned_seconds), most)
    minutes = max(minutes, min(most, minutes << short_rounds))
    return Round(
        number=number, created=created, nodes=list(nodes), minutes=minutes, most_minutes=most
    )


def nodes_in_vain(run_dir: RunDir, since: float) -> frozenset[str]:
    """Return the nodes on which the scheduler started no trial of the last round that had them.

    Only rounds count that were created after `since`, in seconds since the epoch. Such a node may
    look free and yet be kept for a reservation, or for one user at a time.
    """
    found: dict[str, bool] = {}
    for round_ in read_rounds(run_dir):
        for node in round_.nodes if round_.created > since else ():
            trials = [trial_id(node.name, index, round_.number) for index in range(node.trials)]
            vain = not any(run_dir.trial(trial).exists() for trial in trials)
            found |= dict.fromkeys(node.names, vain)
    return frozenset(name for name, vain in found.items() if vain)


def read_rounds(run_dir: RunDir) -> Iterator[Round]:
    """Yield all rounds so far, in order."""
    number = 0
    while (found := _files.read_record_if_there(run_dir.round(number), Round)) is not None:
        yield found
        number += 1


def nodes_of(run_dir: RunDir, number: int, name: str) -> RoundNode:
    """Return the node of a round, or the nodes that share a trial, to which a node belongs.

    Raises:
        RecordError: The round has no such node.
    """
    path = run_dir.round(number)
    for node in _files.read_record(path, Round).nodes:
        if name in node.names:
            return node
    raise RecordError(f"{path} has no node {name}")


def read_trials_of(run_dir: RunDir, round_: Round) -> Iterator[TrialProgress]:
    """Yield the progress of each trial of a round that has begun."""
    for trial, _ in trials_of(round_):
        found = _files.read_record_if_there(run_dir.trial(trial), TrialProgress)
        if found is not None:
            yield found
