"""`first-signal.json`: rough scores while a run goes on, from a slice of each dataset.

Scoring jobs write an estimate a dataset, and the supervisor puts them together. They have another
shape than results, so that neither people nor programs confuse the two.
"""

from typing import Any, Literal

from pydantic import Field

from coordinate_eval import _files
from coordinate_eval.coordinator.report.main_metric import higher_is_better, main_score, metrics
from coordinate_eval.coordinator.run.paths import RunDir
from coordinate_eval.coordinator.run.records import Run
from coordinate_eval.records import DatasetRequests, DatasetResults, Record, Span, schema

Z_95 = 1.96
"""Standard errors on either side of the mean that hold 95 % of a normal distribution.

E. Miller, "Adding Error Bars to Evals", 2024, arXiv:2411.00640, applies it to scores of language
models.
"""

NO_SLICE = "it has no slice: its items take too long, or it cannot be split"


class Interval(Record):
    """A metric over some of the items, and its 95 % interval if the standard error is known."""

    value: float
    stderr: float | None = None
    low: float | None = Field(default=None, description="value - 1.96 standard errors")
    high: float | None = Field(default=None, description="value + 1.96 standard errors")


class Main(Record):
    """The main metric of a dataset over the items of its slice."""

    metric: str
    value: float
    stderr: float | None
    items: int
    higher_is_better: bool


class Signal(Record):
    """The estimates for one dataset."""

    items: int = Field(description="in the slice, of the tasks below")
    of_items: int
    tasks: int = Field(
        description="leaf tasks with several items in the slice: the others count for nothing"
    )
    of_tasks: int
    estimates: dict[str, dict[str, Interval]] = Field(description="task or group → metric → value")
    main: Main | None = Field(default=None, description="the main metric; null if there is none")


class FirstSignal(Record):
    """The content of `first-signal.json`."""

    schema_: Literal["coordinate-eval/first-signal@1"] = schema("coordinate-eval/first-signal@1")

    complete: Literal[False] = False
    confidence: float = 0.95
    run: str
    seconds: float = Field(description="from the run's creation to this file's last change")
    datasets: dict[str, Signal] = Field(default={}, description="estimates so far, by dataset")
    pending: list[str] = Field(default=[], description="datasets whose slices are not complete")
    without: dict[str, str] = Field(default={}, description="dataset → why it has no estimate")


class Estimate(Record):
    """`estimates/<dataset>.json`: what a scoring job found out from one dataset's slice."""

    seconds: float = Field(description="from the run's creation")
    signal: Signal | None = None
    why_not: str = Field(default="", description="the error, if there is no signal")


def collect(run_dir: RunDir, run: Run) -> FirstSignal:
    """Return the record of all estimates that are there."""
    planned = slices(run)
    found = {}
    for name in planned:
        estimate = _files.read_record_if_there(run_dir.estimate(name), Estimate)
        if estimate is not None:
            found[name] = estimate
    unplanned = [d.name for d in run.suite.datasets if d.name not in planned]
    failed = {name: each.why_not for name, each in found.items() if each.signal is None}
    return FirstSignal(
        run=run.id,
        seconds=max((round(each.seconds, 3) for each in found.values()), default=0.0),
        datasets={name: each.signal for name, each in found.items() if each.signal},
        pending=[d.name for d in run.suite.datasets if d.name in planned and d.name not in found],
        without=dict.fromkeys(unplanned, NO_SLICE) | failed,
    )


def slices(run: Run) -> dict[str, list[Span]]:
    """Return the shards of each dataset's slice, in item order; empty without a first signal."""
    found: dict[str, list[Span]] = {}
    for shard in sorted((s for s in run.shards if s.signal), key=lambda s: s.start):
        found.setdefault(shard.dataset, []).append(shard.span)
    return found


def estimate(results: DatasetResults, index: DatasetRequests) -> Signal:
    """Return intervals for the scores of a dataset from the results of a slice.

    `index` describes the requests of the whole dataset.
    """
    estimates = {}
    for task, entry in results.results.items():
        if found := dict(_intervals(entry)):
            estimates[task] = found
    return Signal(
        items=results.items,
        of_items=index.items,
        tasks=len(results.n_samples),
        of_tasks=len(index.versions),
        estimates=estimates,
        main=main_of(results),
    )


def main_of(results: DatasetResults) -> Main | None:
    """Return the main metric of a dataset over the items of its results; None if it has none."""
    found = main_score(results)
    if found is None:
        return None
    return Main(
        metric=found.metric,
        value=found.value,
        stderr=found.stderr,
        items=results.items,
        higher_is_better=higher_is_better(results, found.metric),
    )


def _intervals(entry: dict[str, Any]) -> list[tuple[str, Interval]]:
    found = []
    for name, value, stderr in metrics(entry):
        if stderr is None:
            found.append((name, Interval(value=value)))
        else:
            low, high = value - Z_95 * stderr, value + Z_95 * stderr
            found.append((name, Interval(value=value, stderr=stderr, low=low, high=high)))
    return found
