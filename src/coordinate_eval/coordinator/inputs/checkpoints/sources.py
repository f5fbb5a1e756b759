"""Sources of tensors: what each format of a checkpoint is to whoever describes or converts it.

A source tells names, types and shapes at once, from headers and without torch. It reads one tensor
when it is asked for. Sources are made of sources: renamed ones, an adapter merged into its base, an
average of several.
"""

import math
import mmap
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol

from coordinate_eval.coordinator.inputs.checkpoints import checkpoint_files
from coordinate_eval.coordinator.inputs.checkpoints.safetensors_file import Tensor
from coordinate_eval.errors import UserError

if TYPE_CHECKING:
    import torch


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


class Box(NamedTuple):
    """A part of a tensor, as it lies in a file."""

    file: Path
    at: int
    """The byte of the file where its first element begins."""
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    """Elements between neighbours in the file, by dimension. None is negative."""
    begin: tuple[int, ...]
    """Where the part begins in the tensor, by dimension."""


@dataclass(frozen=True)
class Layout:
    """A tensor, and the parts that it is put together of."""

    dtype: str
    """Such as `bfloat16`; that of each part."""
    shape: tuple[int, ...]
    boxes: Sequence[Box]
    flat: bool = False
    """The parts have one dimension: they are put together before the tensor gets its shape."""


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
        import torch

        layout = self._layouts[name]
        shape = (math.prod(layout.shape),) if layout.flat else layout.shape
        whole = torch.empty(shape, dtype=getattr(torch, layout.dtype))
        for box in layout.boxes:
            target = whole
            for dimension, (start, length) in enumerate(zip(box.begin, box.shape, strict=True)):
                target = target.narrow(dimension, start, length)
            _fill(target, box, layout.dtype)
        return whole.reshape(layout.shape)


def _check_cover(name: str, layout: Layout) -> None:
    """Check that the parts of a tensor are the tensor, and nothing twice.

    Parts that neither overlap nor reach beyond it, and have as many elements, are all of it.
    """
    shape = (math.prod(layout.shape),) if layout.flat else layout.shape
    elements = 0
    boxes = [box for box in layout.boxes if math.prod(box.shape)]
    for box in boxes:
        if not len(box.begin) == len(box.shape) == len(box.strides) == len(shape) or any(
            start < 0 or length < 0 or start + length > size
            for start, length, size in zip(box.begin, box.shape, shape, strict=True)
        ):
            raise UserError(f"{box.file}: a part of {name} lies outside its shape {list(shape)}")
        elements += math.prod(box.shape)
    if elements != math.prod(shape) or _overlap(boxes):
        where = boxes[0].file.parent if boxes else "a checkpoint"
        raise UserError(
            f"{where}: the parts of {name} hold {elements:,} elements of {math.prod(shape):,}, or "
            "some twice: a file of a rank is missing, or parts of two saves are mixed. "
            "Save the checkpoint again"
        )


def _overlap(boxes: Sequence[Box]) -> bool:
    """Return whether two parts share an element."""
    ordered = sorted(boxes, key=lambda box: box.begin)
    for place, box in enumerate(ordered):
        for other in ordered[place + 1 :]:
            if other.begin and other.begin[0] >= box.begin[0] + box.shape[0]:
                break  # so do all that follow
            if all(
                first < second + length and second < first + extent
                for first, extent, second, length in zip(
                    box.begin, box.shape, other.begin, other.shape, strict=True
                )
            ):
                return True
    return False


def _fill(target: "torch.Tensor", box: Box, dtype: str) -> None:
    """Copy a part from its file into a view of the tensor."""
    import torch

    kind = getattr(torch, dtype)
    span = 1 + sum((n - 1) * s for n, s in zip(box.shape, box.strides, strict=True))
    if not target.numel():
        return
    with checkpoint_files.opened(box.file, weights=True) as opened:
        need = box.at + span * kind.itemsize
        if os.fstat(opened.fileno()).st_size < need:
            raise UserError(f"{box.file} was cut short. Copy it again, or save it again")
        start = box.at // mmap.ALLOCATIONGRANULARITY * mmap.ALLOCATIONGRANULARITY
        with mmap.mmap(opened.fileno(), need - start, prot=mmap.PROT_READ, offset=start) as mapped:
            raw = bytearray(span * kind.itemsize)
            raw[:] = mapped[box.at - start : need - start]
    found = torch.frombuffer(raw, dtype=kind)
    target.copy_(found.as_strided(box.shape, box.strides))
