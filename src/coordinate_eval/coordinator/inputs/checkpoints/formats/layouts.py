"""Layouts of tensors: which parts of which files they are put together of. Nothing is read."""

import itertools
import math
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, NamedTuple

from coordinate_eval._format import brief
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

_MOST_NAME_CHARACTERS = 10_000  # patterns are matched with names
_MOST_CUT = 4  # dimensions in which a tensor is cut into parts


class Tensor(NamedTuple):
    """The type and the shape of a tensor."""

    dtype: str
    """Such as `bfloat16`."""
    shape: tuple[int, ...]

    @property
    def bytes(self) -> int:
        """Return the bytes of its elements."""
        return ITEM_BYTES[self.dtype] * math.prod(self.shape)


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

    @property
    def span(self) -> int:
        """Return the elements of the file from the first to the last one of the part."""
        return 1 + sum((n - 1) * s for n, s in zip(self.shape, self.strides, strict=True))

    @property
    def straight(self) -> bool:
        """Return whether the elements of the part follow one another in its file."""
        plain = contiguous(self.shape)
        return all(self.strides[n] == plain[n] for n, size in enumerate(self.shape) if size != 1)

    @property
    def by_rows(self) -> bool:
        """Return whether the part lies in its file row by row, with gaps or without."""
        long = [stride for stride, n in zip(self.strides, self.shape, strict=True) if n != 1]
        return long == sorted(long, reverse=True)

    @property
    def ends(self) -> tuple[int, ...]:
        """Return the end of the part in the tensor, by dimension."""
        return tuple(map(sum, zip(self.begin, self.shape, strict=True)))


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

    def placed(self) -> "Layout":
        """Return the layout with the places of all elements.

        Raises:
            UserError: A file is not what its name says.
        """
        if self.found is None:
            return self
        boxes = tuple(self.found(box, self.dtype) for box in self.boxes)
        return replace(self, boxes=boxes, found=None)

    @property
    def held(self) -> int:
        """Return the bytes of the parts that, once placed, do not lie in files row by row."""
        elements = sum(math.prod(box.shape) for box in self.boxes if not box.by_rows)
        return elements * ITEM_BYTES[self.dtype]


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
    boxes = (cut(box, low, size, ITEM_BYTES[layout.dtype]) for box in layout.boxes)
    return Layout(layout.dtype, shape, tuple(filter(None, boxes)), layout.flat, layout.found)


def cut(box: Box, low: Sequence[int], size: Sequence[int], item: int) -> Box | None:
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


def check_name(name: str, file: Path) -> None:
    """Check that a name of a tensor in a file is text, and no longer than any model's.

    Raises:
        UserError: It is not.
    """
    if re.search("[\ud800-\udfff]", name):
        raise UserError(f"{file} has a tensor {brief(name)}, whose name is no text. Save it again")
    if len(name) > _MOST_NAME_CHARACTERS:
        raise UserError(
            f"{file} has a tensor with a name of {len(name):,} characters, more than the "
            f"{_MOST_NAME_CHARACTERS:,} that are read: it is damaged. Save it again"
        )


def check_cover(name: str, layout: Layout) -> None:
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
