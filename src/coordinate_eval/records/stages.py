"""Stages of a dataset: its items in one random order, asked part by part.

A run that is compared while it goes on asks a few items of all datasets first. Each stage has the
items of those before it, so a stage is a range of positions in this order.
"""

import hashlib
from collections.abc import Iterable, Mapping

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


def hashed_order(task: str, count: int) -> list[int]:
    """Return the numbers of a task's documents in its random order, which is always the same."""
    ranks = [hashlib.sha256(f"{task}\0{n}".encode()).digest() for n in range(count)]
    return sorted(range(count), key=ranks.__getitem__)


def seeded_order(tasks: Mapping[str, int]) -> list[int]:
    """Return the items of a dataset in the order in which its stages ask them.

    Each stage has about the same share of every task, and the first one at least `LEAST_OF_TASK`
    items of each.

    Args:
        tasks: the items of each leaf task, in the order of the dataset.
    """
    return [item for *_, item in sorted(_ranked(tasks))]


def _ranked(tasks: Mapping[str, int]) -> Iterable[tuple[bool, float, int]]:
    """Yield a rank for each item, and the item."""
    begin = 0
    for task, count in tasks.items():
        for place, n in enumerate(hashed_order(task, count)):
            yield place >= LEAST_OF_TASK, (place + 0.5) / count, begin + n
        begin += count
