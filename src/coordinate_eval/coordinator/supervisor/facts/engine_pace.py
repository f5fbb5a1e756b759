"""Time that engines of this run took to start, and to answer what was predicted."""

from collections.abc import Mapping, Sequence
from statistics import median

from coordinate_eval.coordinator.run.measured_pace import measured_pace
from coordinate_eval.coordinator.run.records import Run, StageProgress, TrialProgress
from coordinate_eval.coordinator.supervisor.decisions.values import NodeKey
from coordinate_eval.records import Span

SLOWEST = 10.0
"""Highest pace: what is in work blurs it."""


def ready_seconds(
    run: Run,
    trials: Mapping[int, Sequence[TrialProgress]],
    stages: Mapping[NodeKey, StageProgress],
) -> float:
    """Return the seconds from the copy of the weights until an engine has started.

    It is the median of those that have started, else the prediction.

    Args:
        run: the run's record.
        trials: those that have begun, by round.
        stages: progress of keepers, by round and node.
    """
    seen = []
    for number, group in trials.items():
        for trial in group:
            if trial.running is not None:
                stage = stages.get((number, trial.node))
                # Weights that were there long before are not waited for.
                begun = min(trial.started, stage.started) if stage else trial.started
                seen.append(trial.running - begun)
    predicted = (run.copy_seconds or 0.0) + run.engine_start_seconds
    return max(0.0, median(seen)) if seen else predicted


def pace(
    run: Run,
    trials: Mapping[int, Sequence[TrialProgress]],
    unpublished: Sequence[Span],
    in_work: Sequence[Span],
) -> float | None:
    """Return the GPU seconds that a predicted second took; None before the first response.

    Shards in work count as half done. It is 1 while little is done.
    """
    answered = [t for group in trials.values() for t in group if t.ready is not None]
    if not answered:
        return None
    undone, half_done = set(unpublished), set(in_work)
    whole = sum(shard.gpu_seconds for shard in run.shards)
    done = sum(
        shard.gpu_seconds * (0.5 if shard.span in half_done else 1.0)
        for shard in run.shards
        if shard.span not in undone or shard.span in half_done
    )
    return min(SLOWEST, measured_pace(answered, done, whole))
