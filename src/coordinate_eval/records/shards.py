"""Pieces of a dataset, as they are planned and claimed."""

import itertools
from collections.abc import Iterator
from typing import NamedTuple

from pydantic import Field

from coordinate_eval.records.base import Record


class Span(NamedTuple):
    """The items `start` ≤ i < `stop` of a dataset, which a shard or a portion of it covers."""

    dataset: str
    start: int
    stop: int

    @property
    def stem(self) -> str:
        """Return the span as a part of a file name."""
        return f"{self.start}-{self.stop}"


class Shard(Record):
    """A span of items, with its predicted costs in seconds."""

    dataset: str
    start: int
    stop: int
    gpu_seconds: float
    metric_cpu_seconds: float
    signal: bool = Field(default=False, description="part of the first signal, which runs first")

    @property
    def span(self) -> Span:
        """Return the items that it covers."""
        return Span(self.dataset, self.start, self.stop)


def even_parts(start: int, stop: int, count: int) -> Iterator[tuple[int, int]]:
    """Yield `count` neighbouring ranges of about as many items each, from `start` to `stop`."""
    edges = (start + (stop - start) * n // count for n in range(count + 1))
    yield from itertools.pairwise(edges)
