"""Sources of tensors: what each format of a checkpoint is to whoever describes or converts it.

A source tells names, types and shapes at once, from headers and without torch. It reads one tensor
when it is asked for. Sources are made of sources: renamed ones, an adapter merged into its base, an
average of several.
"""

import contextlib
import itertools
import math
import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from io import FileIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

from coordinate_eval.coordinator.inputs.checkpoints import checkpoint_files, remote
from coordinate_eval.coordinator.inputs.checkpoints.formats.layouts import (
    ITEM_BYTES,
    Layout,
    Tensor,
    check_cover,
    contiguous,
    cut,
)
from coordinate_eval.errors import UserError

if TYPE_CHECKING:
    import numpy as np
    import torch

    from coordinate_eval.coordinator.inputs.checkpoints.formats.megatron_settings import Trained

BLOCK_BYTES: Final = 512 << 10
"""Bytes of a tensor that are read at a time: a core's cache holds them until they are written."""

_READ_BYTES = 64 << 20  # of one call, and until what was read is dropped from the page cache
_AHEAD_BYTES = 8 << 20  # of a request to a store, whose answers take long to begin
_MOST_OPEN = 8  # files, of each tensor that is being read
_MOST_KEPT_BYTES = 128 << 20  # of a thread, for its next tensor
_kept = threading.local()
_TILE = 128  # rows and columns that a core's cache holds


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

    def parts(self, name: str, buffer: memoryview) -> Iterator[memoryview]:
        """Yield the bytes of a tensor in order, each time as many as a buffer has room for.

        Raises:
            UserError: As for `read`.
        """
        layout = self.layout(name)
        if layout is not None:
            yield from blocks(layout, buffer)
            return
        yield from cut_to(buffer, bytes_of(self.read(name)))


class Stored(Source):
    """A source of tensors whose elements lie in files, as they are."""

    trained: "Trained | None" = None
    """The settings of training, where files tell them."""

    def __init__(self, layouts: Mapping[str, Layout]) -> None:
        """Take the layouts of tensors by name.

        Raises:
            UserError: The parts of a tensor leave a hole in it, overlap, or reach beyond it.
        """
        self._layouts = layouts
        for name, layout in layouts.items():
            check_cover(name, layout)

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


def compute_on_one_thread() -> None:
    """Let torch compute on the thread that calls it: several compute already."""
    import torch

    if torch.get_num_threads() > 1:
        torch.set_num_threads(1)


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
    made = torch.empty(layout.shape, dtype=kind)
    _read_whole(layout, bytes_of(made))
    return made


def bits(layout: Layout) -> "np.ndarray[Any, Any]":
    """Return the tensor of a layout, with numbers of as many bits in the place of its own.

    Raises:
        UserError: As for `blocks`.
    """
    import numpy as np

    made = np.empty(layout.shape, _kind(layout))
    _read_whole(layout, made.reshape(-1).view("u1").data)
    return made


def _kind(layout: Layout) -> str:
    item = ITEM_BYTES[layout.dtype]
    return f"u{item}" if item <= 8 else f"c{item}"


def _read_whole(layout: Layout, room: memoryview) -> None:
    for _ in blocks(layout, room):  # there is one
        pass


def bytes_of(tensor: "torch.Tensor") -> memoryview:
    """Return the bytes of a tensor: its memory, if its elements follow one another there."""
    import torch

    return tensor.contiguous().reshape(-1).view(torch.uint8).numpy().data


def cut_to(buffer: memoryview, raw: memoryview) -> Iterator[memoryview]:
    """Yield bytes in order, each time as many as a buffer has room for."""
    for start in range(0, len(raw), max(1, len(buffer))):
        yield raw[start : start + len(buffer)]


def blocks(layout: Layout, buffer: memoryview) -> Iterator[memoryview]:
    """Yield the bytes of a tensor in order, each time as many as a buffer has room for.

    A part that does not lie in its file row by row is read whole, and in memory until the end.

    Raises:
        UserError: A file was cut short, or is not what its name says.
    """
    import numpy as np

    layout, shape, item = layout.placed(), layout.put_together, ITEM_BYTES[layout.dtype]
    kind = _kind(layout)
    corners = (len(layout.boxes), len(shape))
    begins = np.array([box.begin for box in layout.boxes], np.int64).reshape(corners)
    ends = np.array([box.ends for box in layout.boxes], np.int64).reshape(corners)
    whole: dict[int, np.ndarray[Any, Any]] = {}
    with contextlib.closing(_Files()) as files:
        for begin, size in _cuts(shape, len(buffer) // item):
            block = buffer[: math.prod(size) * item]
            target = np.frombuffer(block, kind).reshape(size)
            inside = ((begins < np.add(begin, size)) & (ends > begin)).all(axis=1)
            for number in np.flatnonzero(inside).tolist():
                box = layout.boxes[number]
                part = cut(box, begin, size, item)
                if part is None:  # it has no elements
                    continue
                inner: tuple[Any, ...] = (*map(slice, part.begin, part.ends), ...)
                place = target[inner]
                if place.flags.c_contiguous and part.straight:
                    files.read(part.file, part.at, place)
                    continue
                if box.by_rows:
                    found = np.empty(part.span, kind)
                    files.read(part.file, part.at, found)
                else:
                    if number not in whole:
                        whole[number] = _taken(box.span * item).view(kind)
                        files.read(box.file, box.at, whole[number])
                    found = whole[number][(part.at - box.at) // item :]
                strides = [stride * item for stride in part.strides]
                copy(place, np.lib.stride_tricks.as_strided(found, part.shape, strides))
            yield block
    for array in whole.values():
        if array.base is not None and array.base.nbytes <= _MOST_KEPT_BYTES:
            _kept.memory = array.base


def _taken(size: int) -> "np.ndarray[Any, Any]":
    """Return so many bytes of memory: what this thread has kept, if that is enough.

    The kernel clears memory that is new, which takes as long as to read into it.
    """
    import numpy as np

    kept, _kept.memory = getattr(_kept, "memory", None), None
    return kept[:size] if kept is not None and len(kept) >= size else np.empty(size, "u1")


def _cuts(shape: Sequence[int], most: int) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Yield the begin and the shape of parts of a tensor that follow one another.

    Each has so many elements at most, and these follow one another, too.
    """
    if not shape:
        yield (), ()
    if not shape or 0 in shape:
        return
    strides = contiguous(shape)
    place = next(n for n, stride in enumerate(strides) if stride <= most)
    rest, step = shape[place + 1 :], most // strides[place]
    for outer in itertools.product(*map(range, shape[:place])):
        for start in range(0, shape[place], step):
            rows = min(step, shape[place] - start)
            yield (*outer, start, *(0 for _ in rest)), (*(1 for _ in outer), rows, *rest)


def copy(target: "np.ndarray[Any, Any]", source: "np.ndarray[Any, Any]") -> None:
    """Copy numbers; where rows of one are columns of the other, in tiles that a cache holds."""
    import numpy as np

    long = [n for n, length in enumerate(source.shape) if length > 1]
    column = min(long, key=lambda n: source.strides[n], default=0)
    if not long or source.shape[column] * source.shape[long[-1]] < _TILE or column == long[-1]:
        target[...] = source
        return
    axes = (column, long[-1]), (-2, -1)
    source, target = np.moveaxis(source, *axes), np.moveaxis(target, *axes)
    rows, columns = source.shape[-2:]
    for index in np.ndindex(source.shape[:-2]):
        for row, start in itertools.product(range(0, rows, _TILE), range(0, columns, _TILE)):
            tile = (*index, slice(row, row + _TILE), slice(start, start + _TILE))
            target[tile] = source[tile].T.copy().T


class _Files:
    """Files that a tensor is read from: some stay open for its next block."""

    def __init__(self) -> None:
        self._open: dict[Path, _Reader] = {}

    def read(self, path: Path, at: int, target: "np.ndarray[Any, Any]") -> None:
        """Read numbers of a file from byte `at` on, as many as there is room for."""
        reader = self._open.get(path)
        if reader is None:
            if len(self._open) == _MOST_OPEN:
                self._open.pop(next(iter(self._open))).close()
            reader = self._open[path] = _Reader(path)
        reader.read(at, target.reshape(-1).view("u1").data)

    def close(self) -> None:
        """Close all files."""
        for reader in self._open.values():
            reader.close()


class _Reader:
    """An open file. What was read of it is dropped from the page cache after a while."""

    def __init__(self, path: Path) -> None:
        self._path, self._stack = path, contextlib.ExitStack()
        opened = checkpoint_files.opened(path, weights=True)
        self._file = self._stack.enter_context(opened)
        if isinstance(self._file, remote.RemoteFile):
            self._file.ahead = _AHEAD_BYTES
        self._read: list[tuple[int, int]] = []  # from where to where, and not dropped yet

    def read(self, at: int, target: memoryview) -> None:
        """Read bytes from `at` on.

        Raises:
            UserError: The file has less.
        """
        done = 0
        while done < len(target):
            part = target[done : done + _READ_BYTES]
            count = checkpoint_files.read_into(self._file, part, at + done)
            if not count:
                raise UserError(f"{self._path} was cut short. Copy it again, or save it again")
            done += count
        begin = self._read.pop()[0] if self._read and self._read[-1][1] == at else at
        self._read.append((begin, at + done))
        if at + done - begin >= _READ_BYTES:
            self._drop()

    def close(self) -> None:
        """Close the file."""
        self._drop()
        self._stack.close()

    def _drop(self) -> None:
        """Drop what was read, which would count as memory of the job."""
        for begin, end in self._read if isinstance(self._file, FileIO) else ():
            with contextlib.suppress(OSError):
                os.posix_fadvise(self._file.fileno(), begin, end - begin, os.POSIX_FADV_DONTNEED)
        self._read.clear()
