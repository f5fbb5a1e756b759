"""The processes of one training, and the messages between them.

Training has its own groups. A collective of the writer's thread never mixes with one of training,
because it goes through another group, over gloo, which needs no GPU.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist

T = TypeVar("T")

_PATIENCE = timedelta(minutes=30)
"""Time that ranks wait for one that says nothing. One that ends is noticed at once."""


class Ranks:
    """All processes of a training. Make it on each of them."""

    def __init__(self) -> None:
        together = dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1
        self.rank = dist.get_rank() if together else 0
        self.size = dist.get_world_size() if together else 1
        self.group = _gloo() if together else None
        self._votes = _gloo() if together else None
        self._vote: tuple[Any, torch.Tensor] | None = None

    def gather(self, value: T) -> list[T]:
        """Return what each rank has given, by rank."""
        if self.group is None:
            return [value]
        found: list[Any] = [None] * self.size
        dist.all_gather_object(found, value, group=self.group)
        return found

    def agreed(self, wanted: bool) -> bool:
        """Return whether a rank wanted something at the call before this one.

        Each rank calls it once a step. The answer of the earlier call has arrived meanwhile, so
        nobody waits for it, and all ranks learn it at the same step.
        """
        if self._votes is None:
            return wanted
        earlier, mine = self._vote, torch.tensor([int(wanted)], dtype=torch.int32)
        self._vote = (
            dist.all_reduce(mine, dist.ReduceOp.MAX, group=self._votes, async_op=True),
            mine,
        )
        if earlier is None:
            return False
        earlier[0].wait()
        return bool(earlier[1].item())


def _gloo() -> Any:  # noqa: ANN401 - torch has several types for it
    return dist.new_group(backend="gloo", timeout=_PATIENCE)
