"""The meaning of a job's end for the work that it had claimed."""

from coordinate_eval.clusters.protocol import End
from coordinate_eval.coordinator.run.claiming.claims import Cause

NOT_BY_ITSELF = frozenset({End.NODE_FAILED, End.PREEMPTED, End.TIME_LIMIT, End.CANCELLED})
"""Ends that no work of the job brings about."""


def cause_of(end: End) -> Cause:
    """Return why the claims of a job are over that ended in this way without giving them back.

    An end that the scheduler does not explain counts as the work's fault, so that no work that ends
    its jobs is tried for ever.
    """
    return "lost" if end in NOT_BY_ITSELF else "died"
