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
from functools import cached_property
from io import FileIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

from coordinate_eval.coordinator.inputs.checkpoints import checkpoint_files, remote
from coordinate_eval.coordinator.inputs.checkpoints.formats.layouts import (
    ITEM_BYTES,
    Box,
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
_GAPPED_BYTES = 4 << 20  # of one read of elements with others between them
_lent = threading.local()
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

    def held(self, name: str) -> int:
        """Return the most bytes that `parts` of a tensor has in memory besides its buffer.

        Raises:
            UserError: As for `read`.
        """
        layout = self.layout(name)
        return 2 * self.tensors[name].bytes if layout is None else layout.placed().held


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

    @cached_property
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
    made = _taken(math.prod(layout.shape) * ITEM_BYTES[layout.dtype])
    _read_whole(layout, made.data)
    return made.view(kind_of(layout)).reshape(layout.shape)


def kind_of(layout: Layout) -> str:
    """Return numpy's name of numbers with as many bits as those of a layout."""
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
    kind = kind_of(layout)
    corners = (len(layout.boxes), len(shape))
    begins = np.array([box.begin for box in layout.boxes], np.int64).reshape(corners)
    ends = np.array([box.ends for box in layout.boxes], np.int64).reshape(corners)
    whole: dict[int, np.ndarray[Any, Any]] = {}
    with contextlib.closing(_Files()) as files:
        for begin, size in cuts(shape, len(buffer) // item):
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
                files.stop = box.at + box.span * item
                if box.by_rows:
                    _fill(place, part, files)
                    continue
                if number not in whole:
                    whole[number] = _turned(box, kind, files)
                starts = [max(0, b - o) for b, o in zip(begin, box.begin, strict=True)]
                stops = map(sum, zip(starts, part.shape, strict=True))
                copy(place, whole[number][tuple(map(slice, starts, stops))])
            yield block


def _fill(target: "np.ndarray[Any, Any]", part: Box, files: "_Files") -> None:
    """Read a part that lies in its file row by row, with gaps or without."""
    import numpy as np

    item = target.itemsize
    if target.flags.c_contiguous and part.straight:
        files.read(part.file, part.at, target)
    elif part.span * item <= _GAPPED_BYTES or target.size == 1:
        found = np.empty(part.span, target.dtype)
        files.read(part.file, part.at, found)
        strides = [stride * item for stride in part.strides]
        copy(target, np.lib.stride_tricks.as_strided(found, part.shape, strides))
    else:
        place = next(n for n, length in enumerate(part.shape) if length > 1)
        length, before = part.shape[place], (slice(None),) * place
        for start, stop in ((0, length // 2), (length // 2, length)):
            shape = (*part.shape[:place], stop - start, *part.shape[place + 1 :])
            at = part.at + start * part.strides[place] * item
            half = part._replace(at=at, shape=shape)
            _fill(target[(*before, slice(start, stop))], half, files)


def _turned(box: Box, kind: str, files: "_Files") -> "np.ndarray[Any, Any]":
    """Return a part that does not lie in its file row by row."""
    import numpy as np

    order = sorted(range(len(box.shape)), key=lambda n: -box.strides[n])
    shape, strides = (tuple(of[n] for n in order) for of in (box.shape, box.strides))
    made = _taken(math.prod(shape) * np.dtype(kind).itemsize).view(kind).reshape(shape)
    _fill(made, box._replace(shape=shape, strides=strides), files)
    return made.transpose(np.argsort(order))


@contextlib.contextmanager
def lent(room: memoryview) -> Iterator[None]:
    """Let this thread read into some memory what it cannot read in blocks.

    The kernel clears memory that is new, which takes as long as to read into it.
    """
    _lent.room = room
    try:
        yield
    finally:
        _lent.room = memoryview(b"")


def _taken(size: int) -> "np.ndarray[Any, Any]":
    """Return so many bytes of memory: of what was lent to this thread, if that is enough."""
    import numpy as np

    room: memoryview = getattr(_lent, "room", memoryview(b""))
    if not 0 < size <= len(room):
        return np.empty(size, "u1")
    _lent.room = room[-(-size // 16) * 16 :]  # so that numbers lie at multiples of their size
    return np.frombuffer(room[:size], "u1")


def cuts(shape: Sequence[int], most: int) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Yield the begin and the shape of parts of an array that follow one another.

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
        self.stop = 0
        """The byte where what is read next ends. Objects of a store are read ahead up to there."""

    def read(self, path: Path, at: int, target: "np.ndarray[Any, Any]") -> None:
        """Read numbers of a file from byte `at` on, as many as there is room for."""
        reader = self._open.get(path)
        if reader is None:
            if len(self._open) == _MOST_OPEN:
                self._open.pop(next(iter(self._open))).close()
            reader = self._open[path] = _Reader(path)
        reader.read(at, target.reshape(-1).view("u1").data, self.stop)

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
        self._most = _READ_BYTES if isinstance(self._file, FileIO) else _AHEAD_BYTES
        self._read: list[tuple[int, int]] = []  # from where to where, and not dropped yet

    def read(self, at: int, target: memoryview, stop: int) -> None:
        """Read bytes from `at` on. Those up to `stop` will be read as well.

        Raises:
            UserError: The file has less.
        """
        done = 0
        while done < len(target):
            part = target[done : done + self._most]
            if isinstance(self._file, remote.RemoteFile):
                self._file.ahead = min(_AHEAD_BYTES, max(len(part), stop - at - done))
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
