"""Rounds: nodes that a run asks for together."""

from collections.abc import Iterator

from coordinate_eval import _files
from coordinate_eval.coordinator.run.paths import RunDir
from coordinate_eval.coordinator.run.records import Round


def read_rounds(run_dir: RunDir) -> Iterator[Round]:
    """All rounds so far, in order."""
    number = 0
    while (found := _files.read_record_if_there(run_dir.round(number), Round)) is not None:
        yield found
        number += 1
