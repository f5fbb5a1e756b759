"""The pace of a run's engines: the GPU seconds that a predicted second takes them."""

from collections.abc import Iterable

from coordinate_eval.coordinator.run.records import TrialProgress

LEAST_SHARE = 0.03
"""Share of the work that must be done before its pace tells more than the prediction."""

FASTEST = 0.1
"""Least pace: what is in work blurs it."""


def measured_pace(trials: Iterable[TrialProgress], done: float, whole: float) -> float:
    """Return the GPU seconds that a predicted second took; 1 while little is done.

    Args:
        trials: those that have begun, of all rounds.
        done: predicted GPU seconds of the work that is done.
        whole: those of all work.
    """
    if done <= LEAST_SHARE * whole:
        return 1.0
    spent = sum(max(0.0, t.updated - t.ready) for t in trials if t.ready is not None)
    return max(FASTEST, spent / done) if spent else 1.0
