"""Causes of death that every other build, metric or scoring job would meet too."""

from coordinate_eval.clusters.protocol import State
from coordinate_eval.coordinator.run.claiming.pullers import Pullers, is_pullers
from coordinate_eval.coordinator.run.records import Run
from coordinate_eval.coordinator.run.troubles.causes import JobCause
from coordinate_eval.coordinator.supervisor.decisions.values import Facts

OPINIONS = 2
"""Nodes on which jobs must have died of one cause, or arrays of which one did."""


def all_die(run: Run, facts: Facts, kind: Pullers) -> str:
    """Return why another array of pullers would die like those before it; empty if it may not.

    None of the kind runs or has ever done anything, and all that died did so of one cause that
    every other would meet, on two nodes or in two arrays.
    """
    dead = facts.dead.get(kind, ())
    alive = any(
        task.state is not State.ENDED and is_pullers(run, task.name, kind) for task in facts.tasks
    )
    if not dead or alive or kind in facts.worked:
        return ""
    nodes = {cause.node for cause in dead}
    arrays = {cause.job.rpartition("_")[0] for cause in dead}
    alike = len({cause.reason for cause in dead}) == 1
    sure = all(cause.ends_all or _starves(cause) for cause in dead)
    if not (alike and sure and max(len(nodes), len(arrays)) >= OPINIONS):
        return ""
    return f"every {kind} job dies of the same cause: {dead[-1].words}"


def last_cause(facts: Facts, kind: Pullers) -> str:
    """Return of what the last of such jobs died, to be added to a sentence; empty if unknown."""
    known = [cause for cause in facts.dead.get(kind, ()) if cause.known]
    return f"; the last one died of {known[-1].words}" if known else ""


def _starves(cause: JobCause) -> bool:
    """Return whether too little memory is given to all of them: none has done anything with it."""
    return cause.before_work and cause.reason == "Out of Memory"
