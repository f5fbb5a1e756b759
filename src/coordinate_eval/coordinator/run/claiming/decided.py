"""Runs that ask a part of their items first, and what tells them that it is enough.

Datasets are asked in stages, which are ranges of one random order. A look is the scores of a
dataset at the end of one of its stages. With `--until-decided` there are several, and a comparison
takes the looks of all datasets; the first one that decides is `decided.json`. A sample ends with a
stage, too: `sample.json` says so from the plan on, and counts until there is a `decided.json`. The
file that counts withdraws all later stages: nobody claims their shards any more, and their
datasets are done with the scores of a look. The file `full` takes that back for good. Each file is
written once and nothing is removed, so whoever dies in between does no harm.
"""

import math
from collections.abc import Iterable, Mapping
from typing import Literal

from pydantic import Field

from coordinate_eval import _files
from coordinate_eval._format import plural
from coordinate_eval.coordinator.run.paths import RunDir
from coordinate_eval.coordinator.run.records import Run
from coordinate_eval.records import (
    DatasetItems,
    DatasetRequests,
    DatasetResults,
    Record,
    Span,
    schema,
)

Verdict = Literal["better", "worse", "no difference", ""]

_SAMPLE = "a sample of "
_SHOWN = 3


class PartScores(Record):
    """`looks/<dataset>/0-<items>.jsonl`: the scores of a dataset's items up to a stage's end."""

    results: DatasetResults | None = None
    items: DatasetItems | None = None
    why_not: str = Field(default="", description="the error, if there are no results")


class Compared(Record):
    """`comparisons/<number>.json`, and `decided.json`: a comparison of all datasets at a look.

    As `sample.json`, where nothing is compared, it only says which items are used.
    """

    schema_: Literal["coordinate-eval/compared@1"] = schema("coordinate-eval/compared@1")

    number: int = Field(description="of the look, from 1")
    previous: str = Field(
        default="", description="id of the run that is compared with; empty: a sample"
    )
    verdict: Verdict = Field(default="", description="on this run's mean; empty: not decided yet")
    datasets: int = Field(default=0, description="in the mean")
    first: float | None = Field(default=None, description="mean of the other run")
    second: float | None = Field(default=None, description="mean of this one, of the same items")
    difference: float | None = None
    stderr: float | None = None
    information: float = Field(
        default=0.0, description="variance that is expected at the last look, over that of now"
    )
    bound: float | None = Field(default=None, description="of the difference, in standard errors")
    likely: float | None = Field(
        default=None, description="probability that the last look would show a difference"
    )
    items: dict[str, int] = Field(
        default={}, description="datasets of which not all items are used, and how many are"
    )
    of_items: dict[str, int] = Field(default={}, description="how many items these have")
    requests_share: float = Field(default=1.0, description="part of the requests that are used")
    left_out: dict[str, str] = Field(default={}, description="datasets not in the mean, and why")
    why_not: str = Field(default="", description="the error, where nothing could be compared")

    @property
    def words(self) -> str:
        """Return what was found, for people."""
        if not self.previous:
            return f"{_SAMPLE}{self.requests_share:.0%} of the requests"
        if self.difference is None or self.stderr is None:
            return f"cannot be compared with {self.previous}: {self.why_not}"
        said = {"better": "better than", "worse": "worse than"}.get(self.verdict, "")
        said = said or ("no difference from" if self.verdict else "not decided against")
        return (
            f"{said} {self.previous}: mean of {plural(self.datasets, 'dataset')} "
            f"{self.difference:+.4f} ±{self.stderr:.4f}, after {self.requests_share:.0%} of the "
            "requests"
        )


def sample(run: Run, built: Mapping[str, DatasetRequests]) -> Compared | None:
    """Return the `sample.json` of a planned run that samples some of its datasets, else None."""
    if not run.sampled:
        return None
    return Compared(
        number=count_looks(run),
        items=run.sampled,
        of_items={name: run.stages[name][-1] for name in run.sampled},
        requests_share=requests_share(built, run.sampled),
    )


def requests_share(built: Mapping[str, DatasetRequests], items: Mapping[str, int]) -> float:
    """Return the part of all requests that are used, if these are the items that are used of some.

    Args:
        built: the indexes of all datasets.
        items: how many items are used, of datasets of which not all are.
    """
    every = sum(index.requests for index in built.values())
    asked = sum(
        index.requests * items.get(name, index.items) / max(1, index.items)
        for name, index in built.items()
    )
    return asked / max(1, every)


def decided(run_dir: RunDir) -> Compared | None:
    """Return what ends a run early, a comparison or its sample.

    None without either, or if the run goes on in full.
    """
    if run_dir.full.exists():
        return None
    read = _files.read_record_if_there
    return read(run_dir.decided, Compared) or read(run_dir.sample, Compared)


def cut_short(run: Run, used: Mapping[str, int]) -> set[str]:
    """Return the stopped datasets, by the items that they use, which end before their sample."""
    if not run.against:
        return set()
    return {name for name, items in used.items() if items < run.sampled.get(name, math.inf)}


def stopped(run_dir: RunDir) -> Mapping[str, int]:
    """Return the datasets whose later stages are withdrawn, and how many items they use.

    Datasets that had all of their results by then are none of these.
    """
    found = decided(run_dir)
    items = found.items if found is not None else {}
    return {n: used for n, used in items.items() if not run_dir.dataset_results(n).exists()}


def why_stopped(run_dir: RunDir) -> str:
    """Return why a run has not asked all items, and how many it uses, for people.

    It is empty where nothing is withdrawn.
    """
    found, used = decided(run_dir), stopped(run_dir)
    if found is None or not used:
        return ""
    each = [f"{n} {items:,} of {found.of_items.get(n, 0):,}" for n, items in used.items()]
    more = f" and {len(each) - _SHOWN} more" if len(each) > _SHOWN else ""
    return f"{found.words}; items used: {', '.join(each[:_SHOWN])}{more}"


def in_part(why: str) -> str:
    """Return in a sentence what `why_stopped` has told."""
    return why if why.startswith(_SAMPLE) else f"stopped early: {why}"


def part_lines(rows: Iterable[tuple[str, str]]) -> list[str]:
    """Return a line for each reason why scores are of a part of the items, and of whom it is true.

    Args:
        rows: label of a run or checkpoint, and what `why_stopped` has told of it.
    """
    labels: dict[str, list[str]] = {}
    for label, why in rows:
        if why:
            labels.setdefault(why, []).append(label)
    lines = []
    for why, of in labels.items():
        more = f" and {len(of) - _SHOWN} more" if len(of) > _SHOWN else ""
        lines.append(f"{', '.join(of[:_SHOWN])}{more}: {in_part(why)}")
    return lines


def without_withdrawn(run_dir: RunDir, run: Run) -> Run:
    """Return a run without the shards that are withdrawn."""
    used = stopped(run_dir)
    if not used:
        return run
    kept = [shard for shard in run.shards if shard.start < used.get(shard.dataset, math.inf)]
    return run.model_copy(update={"shards": kept})


def look_span(run: Run, dataset: str, number: int) -> Span | None:
    """Return the items of a dataset that a look takes, numbered from 1; None for all."""
    ends = run.stages.get(dataset)
    if not ends:
        return None
    end = min(ends[min(number, len(ends)) - 1], run.sampled.get(dataset, ends[-1]))
    return Span(dataset, 0, end) if end < ends[-1] else None


def count_looks(run: Run) -> int:
    """Return how many looks there are; the last one takes all items, or all of the sample."""
    return max((len(ends) - (name in run.sampled) for name, ends in run.stages.items()), default=0)


def last_compared(run_dir: RunDir, run: Run) -> Compared | None:
    """Return the comparison that ended a run early, or else its last one so far."""
    if not run.against:
        return None
    found = _files.read_record_if_there(run_dir.decided, Compared)
    for number in range(count_looks(run), 0, -1):
        found = found or _files.read_record_if_there(run_dir.comparison(number), Compared)
    return found


def read_part(run_dir: RunDir, span: Span) -> PartScores | None:
    """Return the scores of a look, None while there are none."""
    return _files.read_record_if_there(run_dir.published("looks", span), PartScores)
