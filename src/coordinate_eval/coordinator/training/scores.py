"""Read a training's scores: its alarms, and which checkpoints have fallen."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

from coordinate_eval.coordinator.history.alarms import Alarm, alarms
from coordinate_eval.coordinator.history.measured import Measured
from coordinate_eval.coordinator.history.series import series
from coordinate_eval.coordinator.training.advice import is_fall
from coordinate_eval.errors import UserError


class Scores(NamedTuple):
    """A training's alarms and fallen checkpoints. Both are empty without scores."""

    alarms: Sequence[Alarm] = ()
    """Those that are true of the newest checkpoint with scores."""
    said: Mapping[int, Literal["healthy", "fallen"]] = {}
    """By step."""


def scores_of(known: Sequence[Measured], experiment: Path) -> Scores:
    """Return what the scores of a training say.

    Args:
        known: what runs have measured.
        experiment: the folder of its checkpoints.
    """
    try:
        found = series(known, [str(experiment)])
    except UserError:
        return Scores()
    raised = alarms(found)
    said: dict[int, Literal["healthy", "fallen"]] = {
        row.step: "healthy" for row in found.rows if row.step is not None
    }
    for each in filter(is_fall, raised):
        first, last = each.row.step or 0, each.last.step or 0
        said |= {step: "fallen" for step in said if first <= step <= last}
    newest = max(said, default=None)
    return Scores([each for each in raised if each.last.step == newest], said)
