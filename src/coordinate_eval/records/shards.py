"""Pieces of a dataset, as they are planned and claimed, and its stages.

A run that is compared while it goes on asks a few items of all datasets first. Each stage has the
items of those before it, so a stage is a range of positions in one random order of the items.
"""

import hashlib
import itertools
from collections.abc import Iterable, Iterator, Mapping
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


LOOKS = (156, 625, 2500)
"""Items of a dataset at which scores are compared: those of a standard error of 0.04, 0.02 and
0.01, at most, for scores between 0 and 1. Each look halves the error of the one before it."""

MOST_OF_ALL = 0.8
"""Share of a dataset's items above which a stage has all of them."""

LEAST_OF_TASK = 2
"""Items of each leaf task in the first stage, for a standard error."""


def stages(items: int, tasks: int) -> list[int]:
    """Return how many items of a dataset are asked by the end of each stage, in the end all."""
    ends = (max(look, LEAST_OF_TASK * tasks) for look in LOOKS)
    return sorted({end for end in ends if end <= MOST_OF_ALL * items} | {items})


def _hashed_order(task: str, count: int) -> list[int]:
    """Return the numbers of a task's documents in its random order, which is always the same."""
    ranks = [hashlib.sha256(f"{task}\0{n}".encode()).digest() for n in range(count)]
    return sorted(range(count), key=ranks.__getitem__)


def seeded_order(tasks: Mapping[str, int]) -> list[int]:
    """Return the items of a dataset in the order in which its stages ask them.

    Each stage has about the same share of every task, and the first one at least `LEAST_OF_TASK`
    items of each.
    """
    return [item for *_, item in sorted(_ranked(tasks))]


def _ranked(tasks: Mapping[str, int]) -> Iterable[tuple[bool, float, int]]:
    """Yield a rank for each item, and the item."""
    begin = 0
    for task, count in tasks.items():
        for place, n in enumerate(_hashed_order(task, count)):
            yield place >= LEAST_OF_TASK, (place + 0.5) / count, begin + n
        begin += count
