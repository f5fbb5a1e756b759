"""Sources of tensors: what each format of a checkpoint is to whoever describes or converts it.

A source tells names, types and shapes at once, from headers and without torch. It reads one tensor
when it is asked for. Sources are made of sources: renamed ones, an adapter merged into its base, an
average of several.
"""

import itertools
import math
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from coordinate_eval.coordinator.inputs.checkpoints import checkpoint_files
from coordinate_eval.errors import UserError

ITEM_BYTES: Final = {
    "float64": 8,
    "float32": 4,
    "float16": 2,
    "bfloat16": 2,
    "float8_e4m3fn": 1,
    "float8_e4m3fnuz": 1,
    "float8_e5m2": 1,
    "float8_e5m2fnuz": 1,
    "float8_e8m0fnu": 1,
    "int64": 8,
    "int32": 4,
    "int16": 2,
    "int8": 1,
    "uint64": 8,
    "uint32": 4,
    "uint16": 2,
    "uint8": 1,
    "bool": 1,
    "complex64": 8,
    "complex128": 16,
}
"""Bytes of one element, by torch's name of its type."""

if TYPE_CHECKING:
    import torch

_MOST_CUT = 4  # dimensions in which a tensor is cut into parts
_READ_BYTES = 64 << 20  # of one call: storage on a network is fastest with large ones


class Tensor(NamedTuple):
    """The type and the shape of a tensor."""

    dtype: str
    """Such as `bfloat16`."""
    shape: tuple[int, ...]


class Source(Protocol):
    """The tensors of a model."""

    @property
    def tensors(self) -> Mapping[str, Tensor]:
        """Return the type and the shape of each tensor by its name."""
        ...

    def read(self, name: str) -> "torch.Tensor":
        """Return a tensor, contiguous and on the CPU. The caller may change it.

        Raises:
            UserError: Its files were cut short, or are not what their headers say.
        """
        ...

    def layout(self, name: str) -> "Layout | None":
        """Return where the elements of a tensor lie; None if they are computed.

        Tensors of equal layouts are the same.
        """
        ...


class Box(NamedTuple):
    """A part of a tensor, as it lies in a file."""

    file: Path
    at: int
    """The byte of the file where its first element begins."""
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    """Elements between neighbours in the file, by dimension. None is negative."""
    begin: tuple[int, ...]
    """Start of the part in the tensor, by dimension."""
    length: int = 0
    """Bytes of what lies there, if that is no plain elements."""
    saved: tuple[int, ...] = ()
    """The shape of the tensor in what lies there, if the box is a part of that tensor."""
    first: tuple[int, ...] = ()
    """Start of the box in that tensor, by dimension."""


@dataclass(frozen=True)
class Layout:
    """A tensor, and the parts that it is put together of."""

    dtype: str
    """Such as `bfloat16`; that of each part."""
    shape: tuple[int, ...]
    boxes: tuple[Box, ...]
    flat: bool = False
    """The parts have one dimension: they are put together before the tensor gets its shape."""
    found: Callable[[Box, str], Box] | None = None
    """Returns a part with the place of its elements, of the layout's type, if only its file tells
    that."""

    @property
    def put_together(self) -> tuple[int, ...]:
        """Return the shape that the parts are put together in."""
        return (math.prod(self.shape),) if self.flat else self.shape

    def placed(self) -> Iterator[Box]:
        """Yield the parts with the places of their elements.

        Raises:
            UserError: A file is not what its name says.
        """
        for box in self.boxes:
            yield box if self.found is None else self.found(box, self.dtype)

    def runs(self) -> "list[Run] | None":
        """Return the ranges of files that follow one another in the tensor.

        Return None if elements lie in another order.
        """
        strides = contiguous(self.put_together)
        found = []
        for box in self.placed():
            if not _in_order(box, self.put_together):
                return None
            first = sum(start * stride for start, stride in zip(box.begin, strides, strict=True))
            found.append(Run(box.file, box.at, first, math.prod(box.shape)))
        return found


class Run(NamedTuple):
    """Elements that follow one another in a file, and in a tensor."""

    file: Path
    at: int
    """The byte of the file where the first one begins."""
    first: int
    """Elements of the tensor before them."""
    elements: int


def _in_order(box: Box, shape: Sequence[int]) -> bool:
    """Return whether the elements of a part follow one another in its file and in its tensor."""
    long = [place for place, length in enumerate(box.shape) if length != 1]
    plain = contiguous(box.shape)
    return all(box.strides[place] == plain[place] for place in long) and all(
        box.shape[place] == shape[place] for place in range(long[0] + 1 if long else 0, len(shape))
    )


class Stored:
    """A source of tensors whose elements lie in files, as they are."""

    def __init__(self, layouts: Mapping[str, Layout]) -> None:
        """Take the layouts of tensors by name.

        Raises:
            UserError: The parts of a tensor leave a hole in it, overlap, or reach beyond it.
        """
        self._layouts = layouts
        for name, layout in layouts.items():
            _check_cover(name, layout)

    @property
    def tensors(self) -> Mapping[str, Tensor]:
        """Return the type and the shape of each tensor by its name."""
        return {name: Tensor(each.dtype, each.shape) for name, each in self._layouts.items()}

    def read(self, name: str) -> "torch.Tensor":
        """Return a tensor, put together of its parts."""
        return put_together(self._layouts[name])

    def layout(self, name: str) -> Layout:
        """Return where the elements of a tensor lie."""
        return self._layouts[name]


def whole(file: Path, at: int, dtype: str, shape: tuple[int, ...]) -> Layout:
    """Return the layout of a tensor whose elements lie in a file, one after another."""
    return Layout(dtype, shape, (Box(file, at, shape, contiguous(shape), (0,) * len(shape)),))


def contiguous(shape: Sequence[int]) -> tuple[int, ...]:
    """Return the strides of a tensor of this shape whose elements lie one after another."""
    return tuple(math.prod(shape[place + 1 :]) for place in range(len(shape)))


def window(layout: Layout, begin: Sequence[int], shape: tuple[int, ...]) -> Layout | None:
    """Return the layout of a part of a tensor; None if it is scattered over flat parts."""
    low, size = tuple(begin), shape
    if layout.flat:
        long = [place for place, length in enumerate(shape) if length != 1]
        rest = long[0] + 1 if long else len(shape)
        if shape[rest:] != layout.shape[rest:]:
            return None
        strides = contiguous(layout.shape)
        low = (sum(start * stride for start, stride in zip(begin, strides, strict=True)),)
        size = (math.prod(shape),)
    boxes = (_cut(box, low, size, ITEM_BYTES[layout.dtype]) for box in layout.boxes)
    return Layout(layout.dtype, shape, tuple(filter(None, boxes)), layout.flat, layout.found)


def _cut(box: Box, low: Sequence[int], size: Sequence[int], item: int) -> Box | None:
    """Return what of a part of a tensor lies in a part of this size; None if nothing does."""
    starts = [max(first, other) for first, other in zip(low, box.begin, strict=True)]
    ends = [
        min(first + length, other + extent)
        for first, length, other, extent in zip(low, size, box.begin, box.shape, strict=True)
    ]
    if any(start >= end for start, end in zip(starts, ends, strict=True)):
        return None
    skipped = sum(
        (start - other) * stride
        for start, other, stride in zip(starts, box.begin, box.strides, strict=True)
    )
    shape = tuple(end - start for start, end in zip(starts, ends, strict=True))
    begin = tuple(start - first for start, first in zip(starts, low, strict=True))
    if box.length:  # its elements are placed later
        first = tuple(start - other for start, other in zip(starts, box.begin, strict=True))
        return box._replace(shape=shape, begin=begin, saved=box.shape, first=first)
    return box._replace(at=box.at + skipped * item, shape=shape, begin=begin)


def put_together(layout: Layout) -> "torch.Tensor":
    """Return the tensor of a layout, read from its files.

    Raises:
        UserError: A file was cut short, or its type is none of torch's.
    """
    import torch

    kind = getattr(torch, layout.dtype, None)
    if not isinstance(kind, torch.dtype):
        where = f"{layout.boxes[0].file}: " if layout.boxes else ""
        raise UserError(f"{where}torch has no numbers of type {layout.dtype}")
    made = torch.empty(layout.put_together, dtype=kind)
    for box in layout.placed():
        target = made
        for dimension, (start, length) in enumerate(zip(box.begin, box.shape, strict=True)):
            target = target.narrow(dimension, start, length)
        _fill(target, box)
    return made.reshape(layout.shape)


def _check_cover(name: str, layout: Layout) -> None:
    """Check that the parts of a tensor are the tensor, and nothing twice.

    Parts that neither overlap nor reach beyond it, and have as many elements, are all of it.
    """
    shape = layout.put_together
    elements = 0
    boxes = [box for box in layout.boxes if math.prod(box.shape)]
    for box in boxes:
        if not len(box.begin) == len(box.shape) == len(box.strides) == len(shape) or any(
            start < 0 or length < 0 or start + length > size
            for start, length, size in zip(box.begin, box.shape, shape, strict=True)
        ):
            raise UserError(f"{box.file}: a part of {name} lies outside its shape {list(shape)}")
        elements += math.prod(box.shape)
    if not _covers(boxes, shape):
        where = boxes[0].file.parent if boxes else "a checkpoint"
        raise UserError(
            f"{where}: the parts of {name} hold {elements:,} elements of {math.prod(shape):,}, or "
            "some twice: a file of a rank is missing, or parts of two saves are mixed. "
            "Save the checkpoint again"
        )


def _covers(boxes: Sequence[Box], shape: Sequence[int]) -> bool:
    """Return whether parts have each element of a tensor once.

    They do if their corners, with alternating signs, add up to those of the tensor.
    """
    if not boxes:
        return 0 in shape
    cut = [
        place for place, size in enumerate(shape) if any(box.shape[place] != size for box in boxes)
    ]
    if len(cut) > _MOST_CUT:
        return False
    corners: Counter[tuple[int, ...]] = Counter()
    for box in boxes:
        _add_corners(corners, [(box.begin[n], box.begin[n] + box.shape[n]) for n in cut], 1)
    _add_corners(corners, [(0, shape[n]) for n in cut], -1)
    return not any(corners.values())


def _add_corners(
    corners: Counter[tuple[int, ...]], sides: Sequence[tuple[int, int]], sign: int
) -> None:
    for corner in itertools.product((0, 1), repeat=len(sides)):
        at = tuple(side[end] for side, end in zip(sides, corner, strict=True))
        corners[at] += -sign if sum(corner) % 2 else sign


def _fill(target: "torch.Tensor", box: Box) -> None:
    """Copy a part from its file into a view of the tensor."""
    import torch

    if not target.numel():
        return
    span = 1 + sum((n - 1) * s for n, s in zip(box.shape, box.strides, strict=True))
    straight = target.is_contiguous() and _in_order(box, box.shape)
    found = target if straight else torch.empty(span, dtype=target.dtype)
    with checkpoint_files.opened(box.file, weights=True) as opened:
        raw = found.reshape(-1).view(torch.uint8).numpy().data
        read_into(opened, box.at, raw, box.file)
    if not straight:
        target.copy_(found.as_strided(box.shape, box.strides))


def read_into(opened: FileIO, at: int, target: memoryview, path: Path) -> None:
    """Read the bytes of a file from `at` on, as many as there is room for.

    Raises:
        UserError: The file has less.
    """
    done = 0
    while done < len(target):
        part = target[done : done + _READ_BYTES]
        count = os.preadv(opened.fileno(), [part], at + done)
        if not count:
            raise UserError(f"{path} was cut short. Copy it again, or save it again")
        done += count
