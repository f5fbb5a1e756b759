"""Items of a shard that end engines: those that were with an engine when it died run alone.

Each death of a trial names, for each shard that it held, the items that its engine had and had not
answered: the suspects. The shard's next owner gives its engine nothing else, and of the suspects
one batch after the other. A batch that is answered is cleared. If the engine dies at one, that is
the next, smaller set of suspects: a shared one is tried as a whole, one that died alone in eighths.
So one item among hundreds is found by about four engines, and everything else is answered.
"""

import math
from collections.abc import Iterable, Sequence

from pydantic import ValidationError

from coordinate_eval.records import Record

PARTS = 8
"""Batches into which suspects are split. An engine's start costs as much as several batches."""

LEAST_DEATHS = 3
"""Deaths of engines that had an item, the last of them alone, after which the item is given up."""


class Batch(Record):
    """Items that an engine had of one shard. `alone` if it had nothing else."""

    items: list[int]
    alone: bool


def read_batch(note: str) -> Batch | None:
    """Return the batch in the note of an attempt, or None if it is missing or torn."""
    try:
        return Batch.model_validate_json(note)
    except ValidationError:
        return None


def deadly(items: Iterable[int], deaths: Sequence[Batch | None]) -> list[int]:
    """Return the items that end engines for certain.

    `deaths` are what engines had when they died, None for one of which that is not known.
    """
    known = [batch for batch in deaths if batch is not None]
    alone = {batch.items[0] for batch in known if batch.alone and len(batch.items) == 1}
    return [
        item
        for item in items
        if item in alone and sum(item in batch.items for batch in known) >= LEAST_DEATHS
    ]


def next_batch(unanswered: Sequence[int], deaths: Sequence[Batch | None]) -> list[int]:
    """Return the items to be answered next, and nothing else with them; none if all are deadly.

    What is least likely to end an engine comes first, so that most is answered before it dies.
    """
    lost = set(deadly(unanswered, deaths))
    left = [item for item in unanswered if item not in lost]
    every = frozenset(unanswered)
    sets = [(frozenset(batch.items), batch.alone) if batch else (every, False) for batch in deaths]
    sizes = [len(batch.items) if batch else math.inf for batch in deaths]
    groups: dict[int | None, list[int]] = {}
    for item in left:
        # An item counts to the smallest batch that an engine died at.
        mine = [number for number, (items, _) in enumerate(sets) if item in items]
        smallest = min(mine, key=lambda n: (sizes[n], not sets[n][1]), default=None)
        groups.setdefault(smallest, []).append(item)
    whole: list[list[int]] = []
    parts: list[list[int]] = []
    for number, group in groups.items():
        if number is None:
            return group
        items, alone = sets[number]
        explained = bool(items & lost) or any(other < items and sole for other, sole in sets)
        if explained or not alone:
            whole.append(group)
        else:
            parts.append(_part(group, len(items)))
    return next(iter(whole + parts), [])


def _part(group: Sequence[int], died: int) -> list[int]:
    """Return the next part of what is left of a batch of `died` items at which an engine died."""
    size = math.ceil(died / PARTS)
    if len(group) <= size:  # the others are cleared, so that it is among these
        size = math.ceil(len(group) / PARTS)
    return list(group[:size])
