"""`first-signal.json`: rough scores while a run goes on, from a slice of each dataset.

They have another shape than results, so that neither people nor programs confuse the two.
"""

from typing import Any, Literal

from pydantic import ConfigDict, Field

from coordinate_eval.coordinator.report.main_metric import metrics
from coordinate_eval.coordinator.run.records import Run
from coordinate_eval.records import DatasetRequests, DatasetResults, Record, Span

Z_95 = 1.96
"""Standard errors on either side of the mean that hold 95 % of a normal distribution.

E. Miller, "Adding Error Bars to Evals", 2024, arXiv:2411.00640, applies it to scores of language
models.
"""

UNFINISHED = "its scoring began and has not ended"

NO_SLICE = "it has no slice: its items take too long, or it cannot be split"


class Interval(Record):
    """A metric over some of the items, and its 95 % interval if the standard error is known."""

    value: float
    stderr: float | None = None
    low: float | None = Field(default=None, description="value - 1.96 standard errors")
    high: float | None = Field(default=None, description="value + 1.96 standard errors")


class Signal(Record):
    """The estimates for one dataset."""

    items: int = Field(description="in the slice, of the tasks below")
    of_items: int
    tasks: int = Field(
        description="leaf tasks with several items in the slice: the others count for nothing"
    )
    of_tasks: int
    estimates: dict[str, dict[str, Interval]] = Field(description="task or group → metric → value")


class FirstSignal(Record):
    """The content of `first-signal.json`."""

    schema_: Literal["coordinate-eval/first-signal@1"] = Field(
        default="coordinate-eval/first-signal@1", alias="schema"
    )
    model_config = ConfigDict(populate_by_name=True)

    complete: Literal[False] = False
    confidence: float = 0.95
    run: str
    seconds: float = Field(description="from the run's creation to this file's last change")
    datasets: dict[str, Signal] = Field(default={}, description="estimates so far, by dataset")
    pending: list[str] = Field(default=[], description="datasets whose slices are not complete")
    without: dict[str, str] = Field(default={}, description="dataset → why it has no estimate")

    def is_settled(self, dataset: str) -> bool:
        """Return whether a dataset has its estimates, or will have none."""
        return dataset in self.datasets or dataset in self.without

    def with_dataset(self, dataset: str, found: Signal | str, seconds: float) -> "FirstSignal":
        """Return a copy with a dataset's estimates, or with the reason why it has none."""
        datasets = {k: v for k, v in self.datasets.items() if k != dataset}
        without = {k: v for k, v in self.without.items() if k != dataset}
        if isinstance(found, Signal):
            datasets[dataset] = found
        else:
            without[dataset] = found
        return self.model_copy(
            update={
                "datasets": datasets,
                "without": without,
                "pending": [name for name in self.pending if name != dataset],
                "seconds": round(seconds, 3),
            }
        )


def empty(run: Run) -> FirstSignal:
    """Return the record before any dataset is estimated."""
    planned = slices(run)
    names = [d.name for d in run.suite.datasets]
    return FirstSignal(
        run=run.id,
        seconds=0.0,
        pending=[name for name in names if name in planned],
        without={name: NO_SLICE for name in names if name not in planned},
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
