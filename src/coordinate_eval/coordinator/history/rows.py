"""Rows of a series: which scores of a checkpoint's runs count."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from coordinate_eval.coordinator.history.columns import (
    Columns,
    Plain,
    Score,
    Scores,
    in_columns,
    picker,
)
from coordinate_eval.coordinator.history.measured import Measured


class Row(NamedTuple):
    """A checkpoint, and the newest score of each dataset that runs have measured of it."""

    training: str
    """The folder that it fills. Averages of its checkpoints are a training of their own."""
    step: int | None
    checkpoint: str
    runs: Sequence[str]
    """Ids, the newest first."""
    created: float
    scores: Mapping[str, Plain]
    """The score of each dataset, as `Score` has it."""
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
    """The reason for which the run of some of its scores stopped before all items were asked."""

    @property
    def name(self) -> str:
        """Return the step, or the name of the checkpoint's folder where no step is known."""
        return f"step {self.step:,}" if self.step is not None else Path(self.checkpoint).name

    def score(self, dataset: str) -> Score:
        """Return the score of a dataset that has one."""
        return Score(*self.scores[dataset])


def by_columns(rows: Sequence[Row]) -> list[tuple[Columns, list[tuple[int, int]]]]:
    """Return rows with the same columns together: the places of the rows, and their lines."""
    found: dict[int, tuple[Columns, list[tuple[int, int]]]] = {}
    for place, row in enumerate(rows):
        its = in_columns(row.scores)
        found.setdefault(id(its.columns), (its.columns, []))[1].append((place, its.line))
    return list(found.values())


class _Runs(NamedTuple):
    """The runs of a checkpoint."""

    newest_first: Sequence[Measured]
    ranked: Sequence[Measured]
    """Those whose scores count only without others come first."""
    scores: Sequence[Scores]
    """Those of the ranked."""


def rows_of(measured: Sequence[Measured]) -> tuple[list[Row], Counter[str]]:
    """Return a row for each checkpoint, and how many scores of datasets were asked otherwise.

    Of each dataset the newest run decides which scores can be compared. Of a checkpoint the newest
    score counts, and those of runs that stopped early only without others.

    Args:
        measured: runs, the newest last.
    """
    by_checkpoint: dict[str, list[tuple[Measured, Scores]]] = {}
    seen: dict[int, Columns] = {}
    asked: dict[str, str] = {}
    for run in reversed(measured):
        its = in_columns(run.scores)
        by_checkpoint.setdefault(run.checkpoint, []).append((run, its))
        if id(its.columns) not in seen:
            seen[id(its.columns)] = its.columns
            asked = {name: each.asked for name, each in its.columns.items()} | asked
    alike: dict[tuple[int, ...], list[_Runs]] = {}
    for runs in by_checkpoint.values():
        ranked = [*runs[::-1]]
        ranked.sort(key=lambda each: not each[0].decided)
        scores = [its for _, its in ranked]
        alike.setdefault(tuple(id(its.columns) for its in scores), []).append(
            _Runs([run for run, _ in runs], [run for run, _ in ranked], scores)
        )
    rows: list[Row] = []
    unlike: Counter[str] = Counter()
    for together in alike.values():
        every = [its.columns for its in together[0].scores]
        for columns in every:
            others = [name for name, each in columns.items() if each.asked != asked[name]]
            unlike.update(dict.fromkeys(others, len(together)))
        of = _sources(every, asked)
        merged = _merged(together, every, of)
        rows += [_row(runs, its, of) for runs, its in zip(together, merged, strict=True)]
    return rows, unlike


def _sources(every: Sequence[Columns], asked: Mapping[str, str]) -> dict[str, int]:
    """Return the place of the columns that have the score which counts, by dataset."""
    return {
        name: place
        for place, columns in enumerate(every)
        for name, each in columns.items()
        if each.asked == asked[name]
    }


def _merged(
    together: Sequence[_Runs], every: Sequence[Columns], of: Mapping[str, int]
) -> Iterable[Scores]:
    """Return the scores that count of checkpoints whose runs have the same columns."""
    if len(every) == 1 and of.keys() == every[0].keys():
        return [each.scores[0] for each in together]
    picks = [
        picker(columns, [each.scores[place].line for each in together])
        for place, columns in enumerate(every)
    ]
    merged = {name: every[place][name].of(picks[place]) for name, place in of.items()}
    return [Scores(merged, line) for line in range(len(together))]


def _row(runs: _Runs, scores: Scores, of: Mapping[str, int]) -> Row:
    """Return the row of a checkpoint from the scores that count: dataset → place of its run."""
    newest = runs.newest_first[0]
    counted = [runs.ranked[place] for place in sorted(set(of.values()), reverse=True)]
    known = [run.gpu_seconds for run in runs.newest_first if run.gpu_seconds is not None]
    told = {n: words for run in runs.newest_first[::-1] for n, words in run.warnings.items()}
    return Row(
        training=f"{newest.training} (averages)" if newest.average else newest.training,
        step=newest.step,
        checkpoint=newest.checkpoint,
        runs=[run.run for run in runs.newest_first],
        created=newest.created,
        scores=scores,
        missing=[name for name in newest.missing if name not in scores.columns],
        gpu_seconds=sum(known) if known else None,
        seconds=newest.seconds,
        planned_seconds=newest.planned_seconds,
        ended=all(run.ended for run in runs.newest_first),
        warnings=told,
        decided=next((run.decided for run in counted if run.decided), ""),
    )
