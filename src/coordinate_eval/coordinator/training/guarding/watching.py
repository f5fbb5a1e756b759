"""Read what a training says of itself, attempt by attempt, and remember it."""

import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path

from coordinate_eval import _files
from coordinate_eval.coordinator.history import measured
from coordinate_eval.coordinator.training import progress
from coordinate_eval.coordinator.training.advice import Scores, scores_of
from coordinate_eval.coordinator.training.guarding.attempts import GuardDir, Guarded, Logs
from coordinate_eval.coordinator.training.guarding.vitals import (
    Vitals,
    files_of,
    look,
    saved_at,
    size_of,
)
from coordinate_eval.coordinator.training.patterns import read_patterns
from coordinate_eval.coordinator.training.points import Point
from coordinate_eval.coordinator.training.progress import FilePosition, Position
from coordinate_eval.coordinator.training.spikes import Detector, Spike

MOST_BYTES = 16 << 20
"""Read of one log at a look. A log that grows faster is read at its end."""

MOST_KEPT_BYTES = 16 << 20
"""Size of `points.jsonl` from which on it is thinned out: some 100,000 steps."""

SCORES_SECONDS = 300.0
"""Time between two looks at the scores of checkpoints."""


class Watching:
    """The progress of the attempts of one training.

    Args:
        guard_dir: where it is kept.
        guarded: the training.
        tell: called with what a person should know about the logs.
    """

    def __init__(self, guard_dir: GuardDir, guarded: Guarded, tell: Callable[[str], None]) -> None:
        self._dir, self._guarded, self._tell = guard_dir, guarded, tell
        own = guarded.policy.patterns
        self._patterns = read_patterns(Path(guarded.folder, own) if own else None)
        self._noted: set[str] = set()
        self._scores, self._scored = Scores(), float("-inf")

    def files(self, logs: Logs) -> list[Path]:
        """Return the logs of an attempt."""
        return files_of(self._guarded.policy.logs, self._guarded.folder, logs.own)

    def vitals(self, number: int) -> Vitals:
        """Return what is known of an attempt."""
        found = self._dir.read(number, Vitals)
        if found is None and number > 1:
            # The pace of a step is that of the attempt before, until it is known.
            return Vitals(usual=self.vitals(number - 1).step_seconds)
        return found or Vitals()

    def look(self, number: int, now: float) -> Vitals:
        """Read what an attempt has written since the look before; return what is known of it."""
        logs, before = self._dir.logs_of(number), self.vitals(number)
        files = self.files(logs)
        path = self._dir.of_attempt(number, "position")
        position = _files.read_record_if_there(path, Position) or _beginning(logs)
        found = progress.look(files, position, self._patterns, most_bytes=MOST_BYTES)
        for note in found.notes:
            kind = re.sub(r"[\d.,]+ MB", "", note)  # how much it is changes with each look
            if kind not in self._noted:
                self._noted.add(kind)
                self._tell(note)
        signs = size_of(files) + saved_at(Path(self._guarded.checkpoints))
        vitals = look(before, found.points, signs, now, found.total)
        self._keep(number, found.points)
        if found.points:
            detector = self._detector()
            detector.take(found.points)
            _files.write_record(self._dir.spikes, detector)
        _files.write_record(self._dir.of_attempt(number, vitals.FILE), vitals)
        if found.position != position:
            _files.write_record(path, found.position)
        return vitals

    def spike(self) -> Spike | None:
        """Return how the loss is going wrong, if it is."""
        return self._detector().open

    def scores(self, now: float) -> Scores:
        """Return what the scores of checkpoints say, as they were a few minutes ago at most."""
        if now - self._scored >= SCORES_SECONDS:
            known, _ = measured.read(self._guarded.settings.runs_dir)
            self._scores = scores_of(known, Path(self._guarded.checkpoints))
            self._scored = now
        return self._scores

    def _detector(self) -> Detector:
        return _files.read_record_if_there(self._dir.spikes, Detector) or Detector()

    def _keep(self, number: int, points: Sequence[Point]) -> None:
        """Append points to `points.jsonl`. A guard that is killed may append some twice.

        Of a file that has become too large, every other line is dropped.
        """
        if not points:
            return
        if _files.size(self._dir.points) > MOST_KEPT_BYTES:
            end = _files.read_end(self._dir.points, MOST_KEPT_BYTES)
            lines = end.splitlines(keepends=True)
            _files.write(self._dir.points, b"".join(lines[1::2]).decode(errors="replace"))
        with _files.open_to_write(self._dir.points, append=True) as file:
            for point in points:
                values = {
                    "attempt": number,
                    "step": point.step,
                    "loss": point.loss,
                    "gradient_norm": point.gradient_norm,
                    "tokens_per_second": point.tokens_per_second,
                    "written": point.written,
                }
                file.write(f"{json.dumps(values)}\n".encode())


def _beginning(logs: Logs) -> Position:
    """Return the position from which an attempt's logs are its own."""
    files = {}
    for name, size in logs.sizes.items():
        if size > 0 and _files.size(Path(name)) >= size:
            files[name] = FilePosition(offset=size)
    return Position(files=files)
