"""Rows of a series: which scores of a checkpoint's runs count."""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from coordinate_eval.coordinator.history.measured import ASKED, Measured, Score


class Row(NamedTuple):
    """A checkpoint, and the newest score of each dataset that runs have measured of it."""

    training: str
    """The folder that it fills. Averages of its checkpoints are a training of their own."""
    step: int | None
    checkpoint: str
    runs: Sequence[str]
    """Ids, the newest first."""
    created: float
    scores: Mapping[str, Score]
    missing: Sequence[str]
    """Datasets that its runs have, and have not scored."""
    gpu_seconds: float | None
    """GPU seconds of all its runs."""
    seconds: float | None = None
    """Seconds of its newest run, from the plan to the last score, and those that the plan said."""
    planned_seconds: float | None = None
    ended: bool = True
    """None of its runs goes on."""
    warnings: Mapping[str, str] = {}
    """Dataset → what is wrong with its answers."""
    decided: str = ""
    """Why the run of some of its scores stopped before all items were asked."""

    @property
    def name(self) -> str:
        """Return the step, or the name of the checkpoint's folder where no step is known."""
        return f"step {self.step:,}" if self.step is not None else Path(self.checkpoint).name


def rows_of(measured: Sequence[Measured]) -> tuple[list[Row], Counter[str]]:
    """Return a row for each checkpoint, and how many scores of datasets were asked otherwise.

    Of each dataset the newest run decides which scores can be compared. Of a checkpoint the newest
    score counts, and those of runs that stopped early only without others.

    Args:
        measured: runs, the newest last.
    """
    by_checkpoint: dict[str, list[Measured]] = {}
    asked: dict[str, str] = {}
    for run in reversed(measured):
        by_checkpoint.setdefault(run.checkpoint, []).append(run)
        for name, score in run.scores.items():
            asked.setdefault(name, score[ASKED])
    unlike: Counter[str] = Counter()
    rows = []
    for runs in by_checkpoint.values():
        counted: dict[str, Score] = {}
        of: dict[str, str] = {}
        ranked = runs[::-1]
        ranked.sort(key=lambda run: not run.decided)
        for run in ranked:
            for name, score in run.scores.items():
                if score[ASKED] == asked[name]:
                    counted[name], of[name] = Score._make(score), run.decided
                else:
                    unlike[name] += 1
        words = (run.decided for run in runs if run.decided and run.decided in of.values())
        rows.append(_row(runs, counted, next(words, "")))
    return rows, unlike


def _row(runs: Sequence[Measured], scores: Mapping[str, Score], decided: str) -> Row:
    """Return the row of a checkpoint from its runs, the newest first, and the scores that count."""
    newest = runs[0]
    known = [run.gpu_seconds for run in runs if run.gpu_seconds is not None]
    return Row(
        training=f"{newest.training} (averages)" if newest.average else newest.training,
        step=newest.step,
        checkpoint=newest.checkpoint,
        runs=[run.run for run in runs],
        created=newest.created,
        scores=scores,
        missing=[name for name in newest.missing if name not in scores],
        gpu_seconds=sum(known) if known else None,
        seconds=newest.seconds,
        planned_seconds=newest.planned_seconds,
        ended=all(run.ended for run in runs),
        warnings={n: words for run in reversed(runs) for n, words in run.warnings.items()},
        decided=decided,
    )
