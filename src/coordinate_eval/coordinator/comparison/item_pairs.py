"""The items of a dataset that two runs have scores of, if both were asked in the same way."""

import filecmp
import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from coordinate_eval import _files
from coordinate_eval._format import plural
from coordinate_eval.coordinator.comparison.paired import Stratum
from coordinate_eval.coordinator.history.measured import asked
from coordinate_eval.coordinator.report.main_metric import Score
from coordinate_eval.coordinator.report.results import (
    judged,
    judged_differently,
    read_dataset,
    read_items,
)
from coordinate_eval.coordinator.run.claiming.decided import PartScores, look_span, read_part
from coordinate_eval.coordinator.run.paths import RunDir
from coordinate_eval.coordinator.run.records import Run
from coordinate_eval.errors import RecordError
from coordinate_eval.records import (
    Dataset,
    DatasetItems,
    DatasetRequests,
    DatasetResults,
    ItemScores,
)

CLOSE = 1e-6
"""Part of a score by which the mean over its items may differ from it."""


class Scored(NamedTuple):
    """A dataset of one run."""

    run_dir: RunDir
    run: Run
    dataset: Dataset
    results: DatasetResults
    part: PartScores | None = None
    """The scores at a look, in place of those of the run."""

    def items(self) -> DatasetItems | None:
        """Return the scores of the items."""
        if self.part is not None:
            return self.part.items
        return read_items(self.run_dir, self.dataset.name)


Both = tuple[Scored, Scored]


def scored_at(run_dir: RunDir, run: Run, dataset: Dataset, look: int) -> Scored | None:
    """Return the scores of a dataset, None where there are none."""
    span = look_span(run, dataset.name, look) if look else None
    part = read_part(run_dir, span) if span is not None else None
    results = part.results if part is not None else None
    if span is None:
        results = read_dataset(run_dir, dataset.name)
    return None if results is None else Scored(run_dir, run, dataset, results, part)


def unlike(first: Scored, second: Scored) -> Iterator[str]:
    """Yield how two runs differ in what they asked about a dataset, or in how they scored it.

    The prompts of runs with one tokenizer are compared by what they were made from.
    """
    runs = f"{first.run.id} and {second.run.id}"
    ours, theirs = (asked(scored.run, scored.dataset, scored.results) for scored in (first, second))
    del ours["judge"], theirs["judge"]  # compared below, with the prompts
    named = [(name, ours.get(name), theirs.get(name)) for name in dict.fromkeys([*ours, *theirs])]
    told = [f"{name} {a!r} and {b!r}" for name, a, b in named if a != b]
    yield from (f"{each} in {runs}" for each in told)
    judges = [(scored.run.id, judged(scored.results)) for scored in (first, second)]
    if why := judged_differently((run, judge) for run, judge in judges if judge):
        yield why
    if not told and other_prompts(first.run_dir, second.run_dir, first.dataset.name):
        yield f"the files or data that prompts are made from differ in {runs}"


def other_prompts(first: RunDir, second: RunDir, dataset: str) -> bool:
    """Return whether the prompts of a dataset are made from other files or data in two runs.

    Prompts of different tokenizers are not compared.
    """
    made = [_made_from(run_dir, dataset) for run_dir in (first, second)]
    return all(made) and made[0] != made[1] and _same_tokenizer(first, second)


def _made_from(run_dir: RunDir, dataset: str) -> str:
    try:
        index = _files.read_record_if_there(run_dir.requests_index(dataset), DatasetRequests)
    except RecordError:
        return ""
    return index.made_from if index is not None else ""


def _same_tokenizer(first: RunDir, second: RunDir) -> bool:
    folders = first.model, second.model
    try:
        names = [
            {path.name for path in folder.iterdir()} - {"config.json", "own_code.json"}
            for folder in folders
        ]
        if names[0] != names[1]:
            return False
        return not any(filecmp.cmpfiles(*folders, names[0], shallow=False)[1:])
    except OSError:
        return False


class Paired(NamedTuple):
    """The items that both runs have scores of."""

    strata: list[Stratum]
    of_items: int
    """Items of the first run."""
    some: bool
    """True if a run has items that the other one lacks."""

    @property
    def items(self) -> int:
        """Return how many they are."""
        return sum(len(stratum.first) for stratum in self.strata)


def paired_items(pair: Both, scores: tuple[Score, Score]) -> tuple[Paired | None, str]:
    """Return the paired items of each task of a dataset, or why there are none."""
    found = []
    for scored in pair:
        try:
            items = scored.items()
        except RecordError as error:
            return None, str(error)
        if items is None:
            return None, (
                f"run {scored.run.id} has no scores of its items. If an earlier version scored it, "
                f"`coordinate-eval rescore {scored.run.id}` makes a run that has them"
            )
        found.append(items)
    metric = scores[0].metric
    wanted = metric if "," in metric else f"{metric},none"
    tables = []
    for task in pair[0].results.results:
        ours, theirs = (items.of(task, wanted) for items in found)
        if ours is None and theirs is None:
            continue
        if ours is None or (theirs is None and pair[1].part is None):
            return None, f"task {task} has no scores of items in both runs"
        if theirs is None:
            continue  # a look may have too few items of a small task
        if ours.documents != theirs.documents:
            return None, f"the items of task {task} are not the same in both runs"
        tables.append((ours, theirs))
    return _weighted(tables, wanted.partition(",")[0], scores)


def _weighted(
    tables: Sequence[tuple[ItemScores, ItemScores]], metric: str, scores: tuple[Score, Score]
) -> tuple[Paired | None, str]:
    """Return the paired items with the weights of their tasks, or why there are none.

    The weight of a task in the dataset's score is not written anywhere. The harness weights by
    items or not at all, so the weights are those whose mean is the score in both runs.
    """
    parts, means, sizes, some = [], [], [], False
    for both in tables:
        values = [np.array(table.metrics[metric], dtype=float) for table in both]
        items = [np.array(table.items) for table in both]
        _, *places = np.intersect1d(items[0], items[1], assume_unique=True, return_indices=True)
        some = some or any(len(place) < len(of) for place, of in zip(places, items, strict=True))
        paired = [value[place] for value, place in zip(values, places, strict=True)]
        there = ~np.isnan(paired[0])
        if alone := int((there != ~np.isnan(paired[1])).sum()):
            return None, f"{plural(alone, 'item')} with a value in one run only"
        if not there.any():
            continue
        clusters = np.array(both[0].clusters, dtype=int)
        kept = clusters[places[0]][there].tolist() if len(clusters) else []
        parts.append((paired[0][there], paired[1][there], kept))
        means.append([float(np.nanmean(value)) for value in values])
        sizes.append([len(of) for of in items])
    if not sizes:
        return None, "its metric has no value of single items"
    counts = [sum(of_run) for of_run in zip(*sizes, strict=True)]
    common = sum(len(first) for first, *_ in parts)
    for by_items in (True, False):
        if all(
            math.isclose(
                sum(
                    (size[n] / counts[n] if by_items else 1 / len(sizes)) * mean[n]
                    for size, mean in zip(sizes, means, strict=True)
                ),
                score.value,
                rel_tol=CLOSE,
                abs_tol=CLOSE,
            )
            for n, score in enumerate(scores)
        ):
            strata = [
                Stratum(*part, len(part[0]) / common if by_items else 1 / len(parts))
                for part in parts
            ]
            return Paired(strata, counts[0], some), ""
    return None, "its score is not the mean over its items"
