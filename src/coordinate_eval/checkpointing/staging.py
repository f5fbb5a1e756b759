"""Copies of a state in host memory, from which torch.distributed.checkpoint writes.

A planner of torch says which parts of which tensors this rank has. They are copied into a buffer
that later saves use again, and a second planner gives torch the copies in their place. So what is
written, and its format, are torch's own.

Tensors that several ranks have are written by one of them. Once a save has shown by which, each
rank copies what it writes, and no more, until the tensors of its state change.
"""

from __future__ import annotations

import ctypes
import dataclasses
import io
import logging
import mmap
import threading
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.metadata import MetadataIndex, StorageMeta
from torch.distributed.checkpoint.planner import SavePlan, WriteItem, WriteItemType
from torch.distributed.checkpoint.stateful import Stateful
from torch.distributed.tensor import DTensor

_ALIGNED = 512
_PIECE_BYTES = 64 << 20
_SLACK_BYTES = 64 << 20
"""Bytes that a buffer may be too large without being made anew."""

_UNCHANGING = (int, float, bool, complex, str, bytes, type(None))


class Buffer:
    """Host memory for the copy of one state, pinned if its tensors are on a GPU."""

    def __init__(self) -> None:
        self._map: mmap.mmap | None = None
        self._pinned = False
        self._making: threading.Thread | None = None

    def make_ready(self, size: int, *, pin: bool) -> None:
        """Make room for so many bytes in a thread, so that the first save need not wait for it."""
        self._making = threading.Thread(target=self._fit, args=(size, pin), daemon=True)
        self._making.start()

    def room(self, size: int, *, pin: bool) -> mmap.mmap:
        """Return memory of at least so many bytes."""
        if self._making is not None:
            self._making.join()
            self._making = None
        return self._fit(size, pin)

    def _fit(self, size: int, pin: bool) -> mmap.mmap:
        has = len(self._map) if self._map is not None else -1
        if not size <= has <= 2 * size + _SLACK_BYTES or pin != self._pinned:
            self.free()
            self._map = mmap.mmap(-1, size + 1, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            self._map.madvise(mmap.MADV_DONTFORK)  # workers of a data loader have no copy of it
            # Only now does the system find the memory, which takes longer than a copy.
            for begin in range(0, size, _PIECE_BYTES):
                at = _address(self._map) + begin
                ctypes.memset(at, 0, min(_PIECE_BYTES, size - begin))
            self._pinned = pin
            if pin and _cudart().cudaHostRegister(_address(self._map), len(self._map), 0):
                logging.getLogger("coordinate_eval").warning(
                    "memory for saves cannot be pinned: copies from the GPU take longer. Raise the "
                    "limit of locked memory (ulimit -l)"
                )
        assert self._map is not None
        return self._map

    def free(self) -> None:
        """Give the memory back as soon as no tensor is in it."""
        if self._map is not None and self._pinned:
            _cudart().cudaHostUnregister(_address(self._map))
        self._map = None


class Staged(DefaultSavePlanner):
    """The copy of a state, as torch.distributed.checkpoint takes it."""

    def __init__(self, plan: SavePlan, data: Mapping[MetadataIndex, Any]) -> None:
        super().__init__()
        self.plan, self._data = plan, data
        self.written: frozenset[MetadataIndex] = frozenset()
        """The part that this rank writes, once all ranks have agreed."""

    def set_up_planner(
        self,
        state_dict: dict[str, Any],
        storage_meta: StorageMeta | None = None,
        is_coordinator: bool = False,
    ) -> None:
        """Do nothing: the plan was made with the copy."""
        self.state_dict, self.is_coordinator = state_dict, is_coordinator

    def create_local_plan(self) -> SavePlan:
        """Return the plan of what was copied."""
        return self.plan

    def finish_plan(self, new_plan: SavePlan) -> SavePlan:
        """Note what this rank writes."""
        self.written = frozenset(item.index for item in new_plan.items)
        return super().finish_plan(new_plan)

    def lookup_object(self, index: MetadataIndex) -> Any:  # noqa: ANN401 - as torch has it
        """Return a copy in place of what it is a copy of."""
        return self._data[index]

    def transform_object(self, write_item: WriteItem, object: Any) -> Any:  # noqa: ANN401
        """Return the bytes of a value that is no tensor."""
        if isinstance(object, io.BytesIO):
            return object
        return super().transform_object(write_item, object)


class Stager:
    """The layout of one training's states, kept from save to save."""

    def __init__(self, *, is_coordinator: bool) -> None:
        self._is_coordinator = is_coordinator
        self._seen: list[Any] = []
        self._plan = SavePlan([])
        self._own: frozenset[MetadataIndex] | None = None
        self._lock = threading.Lock()
        self.epoch = 0
        """Raised when ranks no more agree on who writes what: earlier partial copies are void."""

    def make_ready(self, state: Mapping[str, Any], buffer: Buffer) -> None:
        """Find out how much memory a state takes, and have it made."""
        planner, _ = self._look(state)
        tensors = [t for item in self._plan.items if (t := _tensor(planner, item)) is not None]
        buffer.make_ready(sum(map(_room, tensors)), pin=any(t.is_cuda for t in tensors))

    def stage(self, state: Mapping[str, Any], buffer: Buffer) -> tuple[Staged, Share]:
        """Copy a state. Return the copy, and how much of the state it is."""
        with self._lock:
            planner, lost = self._look(state)
            own, plan = self._own, self._plan
            share = Share(self._seen, self.epoch, own is not None, lost)
        if own is not None:
            plan = dataclasses.replace(plan, items=[i for i in plan.items if i.index in own])
        return Staged(plan, _copied(planner, plan.items, buffer)), share

    def learn(self, share: Share, written: frozenset[MetadataIndex]) -> None:
        """Note what this rank has written of a state that it had copied as a whole.

        Only the first save of a state counts: it is the same one on all ranks.
        """
        with self._lock:
            if share.seen is self._seen and self._own is None:
                self._own = written

    def forget(self) -> None:
        """Copy everything from now on, until another save shows who writes what."""
        with self._lock:
            self._seen, self._own = [], None
            self.epoch += 1

    def _look(self, state: Mapping[str, Any]) -> tuple[DefaultSavePlanner, bool]:
        """Flatten a state, and plan it anew if its tensors are others than last time.

        Return torch's planner, and whether this rank lacks what it alone has written so far.
        """
        planner = DefaultSavePlanner()
        called = {k: v.state_dict() if isinstance(v, Stateful) else v for k, v in state.items()}
        planner.set_up_planner(called, is_coordinator=self._is_coordinator)
        seen = [planner.mappings, *(_form(n, v) for n, v in planner.state_dict.items())]
        if seen == self._seen:
            return planner, False
        plan = planner.create_local_plan()
        indices = {item.index for item in plan.items}
        lost = self._own is not None and not self._own <= indices
        self._seen, self._plan, self._own = seen, plan, None
        return planner, lost


@dataclasses.dataclass(frozen=True)
class Share:
    """The part of a state that a copy has."""

    seen: list[Any]
    epoch: int
    partial: bool
    """It has what this rank writes, and no more."""
    lost: bool
    """The state lacks what only this rank has written so far."""


def _form(name: str, value: object) -> object:
    """Return what a plan depends on."""
    if isinstance(value, DTensor):
        return (name, value.shape, value.dtype, value.device_mesh, value.placements)
    if type(value) in (torch.Tensor, torch.nn.Parameter):
        return (name, value.shape, value.dtype)  # type: ignore[attr-defined]
    return (name, object() if isinstance(value, torch.Tensor) else None)


def _tensor(planner: DefaultSavePlanner, item: WriteItem) -> torch.Tensor | None:
    if item.type == WriteItemType.BYTE_IO:
        return None
    found = planner.lookup_object(item.index)
    assert isinstance(found, torch.Tensor)
    return found.detach()


def _room(tensor: torch.Tensor) -> int:
    return -(-tensor.nbytes // _ALIGNED) * _ALIGNED if _is_plain(tensor) else 0


def _is_plain(tensor: torch.Tensor) -> bool:
    return type(tensor) is torch.Tensor and tensor.layout is torch.strided and tensor.nbytes > 0


def _copied(
    planner: DefaultSavePlanner, items: Iterable[WriteItem], buffer: Buffer
) -> dict[MetadataIndex, Any]:
    """Return copies of the parts of a state, tensors in a buffer."""
    data: dict[MetadataIndex, Any] = {}
    tensors: list[tuple[MetadataIndex, torch.Tensor]] = []
    for item in items:
        tensor = _tensor(planner, item)
        if tensor is not None:
            tensors.append((item.index, tensor))
        else:
            value = planner.lookup_object(item.index)
            unchanging = isinstance(value, _UNCHANGING)
            data[item.index] = value if unchanging else planner.transform_object(item, value)
    on_gpus = {tensor.device for _, tensor in tensors if tensor.is_cuda}
    memory = buffer.room(sum(_room(tensor) for _, tensor in tensors), pin=bool(on_gpus))
    base, at = _address(memory), 0
    for index, tensor in tensors:
        if not _is_plain(tensor):
            data[index] = tensor.to("cpu", copy=True)
            continue
        # A storage of its own: torch.save writes whole storages.
        bytes_ = torch.frombuffer(memory, dtype=torch.uint8, count=tensor.nbytes, offset=at)
        copy = bytes_.view(tensor.dtype).view(tensor.shape)
        if tensor.is_cpu and tensor.is_contiguous() and not tensor.is_conj() | tensor.is_neg():
            # On busy cores, torch's threads wait long for each other.
            ctypes.memmove(base + at, tensor.data_ptr(), tensor.nbytes)
        else:
            copy.copy_(tensor, non_blocking=tensor.is_cuda)
        data[index] = copy
        at += _room(tensor)
    for device in on_gpus:
        torch.cuda.current_stream(device).synchronize()
    return data


def _address(memory: mmap.mmap) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(memory))


def _cudart() -> Any:  # noqa: ANN401 - torch has no type for it
    return torch.cuda.cudart()  # type: ignore[no-untyped-call]
