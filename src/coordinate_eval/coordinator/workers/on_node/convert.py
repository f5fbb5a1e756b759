"""The tensors of a source, written as safetensors: what engines read, whatever training wrote.

The header of a file follows from types and shapes, so its size is known before a tensor is read.
Several threads then write to several files, each tensor to its place, in blocks that a core's cache
holds: a block is read, its numbers are looked at, and it is written. A tensor that is computed, or
does not lie in files row by row, is in memory whole: few at a time. Whoever is killed leaves files
that are whole, and whoever goes on keeps them.
"""

import bisect
import contextlib
import json
import mmap
import os
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from itertools import chain, repeat, zip_longest
from pathlib import Path
from typing import NamedTuple

from coordinate_eval.coordinator.inputs.checkpoints import checkpoint_files, guard
from coordinate_eval.coordinator.inputs.checkpoints.formats import safetensors_file
from coordinate_eval.coordinator.inputs.checkpoints.formats.layouts import ITEM_BYTES
from coordinate_eval.coordinator.inputs.checkpoints.formats.sources import (
    BLOCK_BYTES,
    Source,
    blocks,
    lent,
)
from coordinate_eval.coordinator.workers.on_node import copying
from coordinate_eval.errors import UserError

SHARD_BYTES = 2_000_000_000
"""Largest file. A larger tensor has a file of its own."""

LEAST_WHOLE_BYTES = 128 << 20
"""Memory for tensors that are in memory whole, if the two largest ones have less."""

_TURNED_BYTES = 4 << 20  # of rows that are columns in a file: few rows are read in bits of a line

_UNFINISHED = ".part"


class _Shard(NamedTuple):
    """A file to write."""

    path: Path
    header: bytes
    begins: dict[str, int]
    """The byte where each of its tensors begins."""
    size: int

    def whole(self) -> bool:
        """Return whether it has been written."""
        return self.path.is_file() and self.path.stat().st_size == self.size

    @property
    def unfinished(self) -> Path:
        """Return its path while it is being written."""
        return self.path.with_name(f"{self.path.name}{_UNFINISHED}")


def write(
    source: Source,
    folder: Path,
    report: Callable[[int], None],
    needed: Collection[str] | None = None,
    *,
    shard_bytes: int = SHARD_BYTES,
) -> list[guard.NotFinite]:
    """Write the tensors of a source into a folder, as `save_pretrained` would.

    Return those with numbers that are not finite. Their files are not finished, and there is no
    index then. Files appear under their names when they are whole, the index last. Files that are
    there stay: they must be of the same source. The `config.json` in the folder tells whether
    embeddings are tied: if so, an output layer that is the embedding itself is left out.

    Args:
        report: called with the bytes written so far.
        needed: names of the tensors to write; None for all.
        shard_bytes: most bytes of one file.

    Raises:
        UserError: A weight file was cut short, or its numbers are of a type that safetensors lack.
    """
    names = [
        name
        for name in _without_tied(source, _ties_embeddings(folder))
        if needed is None or name in needed
    ]
    shards = _shards(source, sorted(names), folder, shard_bytes)
    done = sum(shard.size - len(shard.header) for shard in shards if shard.whole())
    report(done)
    left = [shard for shard in shards if not shard.whole()]
    largest = max((source.tensors[name].bytes for name in names), default=0)
    memory = _Memory(max(LEAST_WHOLE_BYTES, 2 * largest))
    bad: list[guard.NotFinite] = []
    for first in range(0, len(left), copying.THREADS):
        for count, found in _write(source, left[first : first + copying.THREADS], memory):
            done += count
            report(done)
            bad += [found] if found else []
    if len(shards) > 1 and not bad:
        _write_index(folder, shards, done)
    return sorted(bad)


def _ties_embeddings(folder: Path) -> bool:
    try:
        config = json.loads(checkpoint_files.read(folder / "config.json"))
    except (UserError, OSError, ValueError, RecursionError):  # judged by `checkpoint.inspect`
        return False
    return isinstance(config, dict) and config.get("tie_word_embeddings") is True


def _without_tied(source: Source, tied: bool) -> list[str]:
    """Return the names of the tensors, without an output layer that is the embedding itself."""
    names = list(source.tensors)
    heads = [name for name in names if name.split(".")[-2:] == ["lm_head", "weight"]]
    if not tied or not heads:
        return names
    others = {source.layout(name) for name in names if name not in heads}
    return [
        name for name in names if name not in heads or source.layout(name) not in others - {None}
    ]


def _shards(source: Source, names: Sequence[str], folder: Path, limit: int) -> list[_Shard]:
    """Return the files for these tensors, with as many in each as fit."""
    groups: list[list[str]] = [[]]
    size = 0
    for name in names:
        length = source.tensors[name].bytes
        if groups[-1] and size + length > limit:
            groups.append([])
            size = 0
        groups[-1].append(name)
        size += length
    return [
        _shard(source, group, folder / _file_name(number, len(groups)))
        for number, group in enumerate(groups, start=1)
    ]


def _file_name(number: int, count: int) -> str:
    if count == 1:
        return safetensors_file.SINGLE
    return f"model-{number:05}-of-{count:05}.safetensors"


def _shard(source: Source, names: Sequence[str], path: Path) -> _Shard:
    """Return a file: those with the largest elements first, so that each lies at a multiple."""
    begins: dict[str, int] = {}
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    at = 0
    for name in sorted(names, key=lambda name: (-ITEM_BYTES[source.tensors[name].dtype], name)):
        dtype, shape = source.tensors[name]
        begins[name], end = at, at + source.tensors[name].bytes
        header[name] = {
            "dtype": safetensors_file.TYPES[dtype],
            "shape": shape,
            "data_offsets": [at, end],
        }
        at = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    head = len(text).to_bytes(8, "little") + text
    return _Shard(path, head, {n: len(head) + b for n, b in begins.items()}, len(head) + at)


class _Memory:
    """Memory that threads share. One that needs more than there is waits until it is alone."""

    def __init__(self, size: int) -> None:
        # Pages that nobody has used take no memory.
        self._room = memoryview(mmap.mmap(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))
        self._taken: list[tuple[int, int]] = []
        self._changed = threading.Condition()

    @contextlib.contextmanager
    def taking(self, size: int) -> Iterator[memoryview]:
        """Wait until there is room for so many bytes, which the block takes."""
        with self._changed:
            self._changed.wait_for(lambda: self._gap(size) is not None)
            begin = self._gap(size) or 0
            taken = begin, begin + -(-size // mmap.PAGESIZE) * mmap.PAGESIZE
            bisect.insort(self._taken, taken)
        try:
            yield self._room[begin : taken[1]]
        finally:
            with self._changed:
                self._taken.remove(taken)
                self._changed.notify_all()

    def _gap(self, size: int) -> int | None:
        """Return where so many bytes are free; None if they are nowhere."""
        at = 0
        for begin, end in self._taken:
            if begin - at >= size:
                return at
            at = end
        return at if not self._taken or len(self._room) - at >= size else None


def _write(
    source: Source, shards: Sequence[_Shard], memory: _Memory
) -> Iterator[tuple[int, guard.NotFinite | None]]:
    """Write several files at once. Yield the bytes of each tensor, and what is wrong with it."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(checkpoint_files.sharing_weights())
        targets = [_open(stack, shard) for shard in shards]
        pool = ThreadPoolExecutor(copying.THREADS)
        # All threads have ended before the files are closed.
        stack.callback(pool.shutdown, cancel_futures=True)
        # One file takes one write at a time, so tensors of all are mixed.
        order = chain.from_iterable(zip_longest(*(shard.begins for shard in shards)))
        number = chain.from_iterable(repeat(range(len(shards))))
        of_tensor: dict[Future[tuple[int, guard.NotFinite | None]], int] = {
            pool.submit(_write_tensor, source, name, targets[n], shards[n].begins[name], memory): n
            for name, n in zip(order, number, strict=False)
            if name is not None
        }
        left = [len(shard.begins) for shard in shards]
        for future in as_completed(of_tensor):
            yield future.result()
            n = of_tensor[future]
            left[n] -= future.result()[1] is None
            if not left[n]:
                shards[n].unfinished.replace(shards[n].path)


def _open(stack: contextlib.ExitStack, shard: _Shard) -> int:
    """Open a file of its full size with its header, until the stack is closed."""
    shard.unfinished.unlink(missing_ok=True)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    target = os.open(shard.unfinished, flags, 0o600)
    stack.callback(os.close, target)
    os.ftruncate(target, shard.size)
    copying.write(target, memoryview(shard.header), 0)
    return target


def _write_tensor(
    source: Source, name: str, target: int, at: int, memory: _Memory
) -> tuple[int, guard.NotFinite | None]:
    """Write a tensor into an open file, from byte `at` on.

    Return its bytes, and what is wrong with its numbers.
    """
    tensor = source.tensors[name]
    length, dtype = tensor.bytes, tensor.dtype
    layout = source.layout(name)
    placed = layout and layout.placed()
    held = placed.held if placed else source.held(name)
    most = _TURNED_BYTES if placed and held else BLOCK_BYTES
    buffer = memoryview(bytearray(min(most, length)))
    done = nan = infinite = 0
    with memory.taking(held) as room, lent(room):
        for block in blocks(placed, buffer) if placed else source.parts(name, buffer):
            found = guard.count_not_finite(block, dtype)
            nan, infinite = nan + found[0], infinite + found[1]
            copying.write(target, block, at + done)
            done += len(block)
    assert done == length, f"{name}: {done:,} bytes instead of {length:,}"
    return length, guard.NotFinite(name, nan, infinite) if nan or infinite else None


def _write_index(folder: Path, shards: Sequence[_Shard], total: int) -> None:
    index = {
        "metadata": {"total_size": total},
        "weight_map": {name: shard.path.name for shard in shards for name in shard.begins},
    }
    path = folder / safetensors_file.INDEX
    unfinished = path.with_name(f"{path.name}{_UNFINISHED}")
    unfinished.write_text(json.dumps(index, indent=2), encoding="utf-8")
    unfinished.replace(path)
