"""GPUs of a node in Slurm's lists of generic resources. Nothing here runs a command.

Jobs may have parts of GPUs, as `shard` or `mps`. Slurm gives such a GPU to no job that asks for
whole ones.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import NamedTuple

_PARTS_OF_GPUS = ("shard", "mps")


class _Part(NamedTuple):
    """One part of a list. `details` is what stands in its parentheses."""

    name: str
    kind: str
    amount: int
    details: str


def gpus(gres: str | None, gres_used: str | None) -> list[tuple[str, int, int]]:
    """Return each GPU type of a node with the numbers of its installed and its free GPUs.

    A missing type is ''.
    """
    installed: Counter[str] = Counter()
    for part in _parts(gres):
        if part.name == "gpu" and part.amount:
            installed[part.kind] += part.amount
    used = _used(gres_used)
    if len(installed) == 1:
        # A type may be in only one of the two lists. They are the same GPUs nevertheless.
        ((kind, count),) = installed.items()
        return [(kind, count, max(0, count - used.total()))]
    of_any = 0 if "" in installed else used[""]  # nothing tells of which type they are
    return [(kind, count, max(0, count - used[kind] - of_any)) for kind, count in installed.items()]


def _used(gres_used: str | None) -> Counter[str]:
    """Count by type the GPUs that jobs have, whole or in part."""
    parts = list(_parts(gres_used))
    whole = [part for part in parts if part.name == "gpu"]
    counts: Counter[str] = Counter()
    for part in whole:
        counts[part.kind] += part.amount
    counted = {index for part in whole for index in _indices(part.details)}
    shared: defaultdict[str, set[int]] = defaultdict(set)
    for part in parts:
        if part.name in _PARTS_OF_GPUS:
            shared[part.kind] |= _indices(part.details) - counted
            # Later versions tell how much of each GPU is in use: `(0/64,32/64)`.
            counts[part.kind] += len(re.findall(r"\b0*[1-9]\d*/\d", part.details))
    for kind, indices in shared.items():
        counts[kind] += len(indices)
    return counts


def _parts(gres: str | None) -> Iterator[_Part]:
    """Yield the parts of `gpu:h200:8(S:0-1),gpu:a100:2,shard:8`."""
    for text in re.findall(r"(?:[^,(]|\([^)]*\)?)+", gres or ""):
        # Parentheses contain sockets, indices or parts in use, or `(null)` for a missing type.
        name, *fields = re.sub(r"\([^()]*\)", "", text).strip().split(":")
        count = int(fields.pop()) if fields and fields[-1].isdigit() else 1
        yield _Part(name, ":".join(fields), count, text.rpartition("(")[2])


def _indices(details: str) -> set[int]:
    """Return the numbers in `IDX:0-2,7)`; none of `IDX:N/A)` and of anything else."""
    found: set[int] = set()
    if details.startswith("IDX:"):
        for first, last in re.findall(r"(?<![\d-])(\d{1,4})(?:-(\d{1,4}))?(?![\d-])", details):
            found.update(range(int(first), int(last or first) + 1))
    return found
