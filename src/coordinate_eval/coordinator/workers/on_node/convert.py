"""The tensors of a source, written as safetensors: what engines read, whatever training wrote.

The header of a file follows from types and shapes, so its size is known before a tensor is read.
Several threads then write to several files, each tensor to its place. Where a tensor lies in files
as it is, ranges of these are copied. Else it is read, whole: few at a time, so that memory is
bounded. Whoever is killed leaves files that are whole, and whoever goes on keeps them.
"""

import contextlib
import json
import math
import os
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from itertools import chain, repeat, zip_longest
from pathlib import Path
from typing import NamedTuple

from coordinate_eval.coordinator.inputs.checkpoints import checkpoint_files
from coordinate_eval.coordinator.inputs.checkpoints.formats import safetensors_file
from coordinate_eval.coordinator.inputs.checkpoints.formats.sources import ITEM_BYTES, Run, Source
from coordinate_eval.coordinator.workers.on_node import copying
from coordinate_eval.errors import UserError

SHARD_BYTES = 2_000_000_000
"""Largest file. A larger tensor has a file of its own."""

READ_BYTES = 1 << 30
"""Most bytes of tensors that are read whole at the same time, unless one alone has more."""

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
) -> None:
    """Write the tensors of a source into a folder, as `save_pretrained` would.

    Files appear under their names when they are whole, the index last. Files that are there stay:
    they must be of the same source. The `config.json` in the folder tells whether embeddings are
    tied: if so, an output layer that is the embedding itself is left out.

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
    reading = threading.BoundedSemaphore(_readers(source, left))
    for first in range(0, len(left), copying.THREADS):
        for count in _write(source, left[first : first + copying.THREADS], reading):
            done += count
            report(done)
    if len(shards) > 1:
        _write_index(folder, shards, done)


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
        length = _bytes(source, name)
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
        begins[name], end = at, at + _bytes(source, name)
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


def _bytes(source: Source, name: str) -> int:
    dtype, shape = source.tensors[name]
    return ITEM_BYTES[dtype] * math.prod(shape)


def _readers(source: Source, shards: Sequence[_Shard]) -> int:
    """Return how many tensors may be read whole at a time: each takes twice its size."""
    largest = max((_bytes(source, n) for shard in shards for n in shard.begins), default=0)
    return max(1, min(copying.THREADS, READ_BYTES // max(1, 2 * largest)))


def _write(
    source: Source, shards: Sequence[_Shard], reading: threading.BoundedSemaphore
) -> Iterator[int]:
    """Write several files at once, and yield the bytes of each part that is written."""
    with contextlib.ExitStack() as stack:
        targets = [_open(stack, shard) for shard in shards]
        pool = ThreadPoolExecutor(copying.THREADS)
        # All threads have ended before the files are closed.
        stack.callback(pool.shutdown, cancel_futures=True)
        # One file takes one write at a time, so tensors of all are mixed.
        order = chain.from_iterable(zip_longest(*(shard.begins for shard in shards)))
        number = chain.from_iterable(repeat(range(len(shards))))
        of_tensor: dict[Future[int], int] = {
            pool.submit(_write_tensor, source, name, targets[n], shards[n].begins[name], reading): n
            for name, n in zip(order, number, strict=False)
            if name is not None
        }
        left = [len(shard.begins) for shard in shards]
        for future in as_completed(of_tensor):
            yield future.result()
            n = of_tensor[future]
            left[n] -= 1
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
    source: Source, name: str, target: int, at: int, reading: threading.BoundedSemaphore
) -> int:
    """Write a tensor into an open file, from byte `at` on. Return its bytes."""
    length = _bytes(source, name)
    layout = source.layout(name)
    runs = None if layout is None else layout.runs()
    if runs is not None:
        item = ITEM_BYTES[source.tensors[name].dtype]
        for run in runs:
            _copy(run, target, at + run.first * item, run.elements * item)
        return length
    import torch

    with reading:
        tensor = source.read(name)
        expected = source.tensors[name]
        found = str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape)
        assert found == expected, f"{name}: {found} instead of {expected}"
        raw = tensor.contiguous().reshape(-1).view(torch.uint8).numpy().data
        copying.write(target, raw, at)
    return length


def _copy(run: Run, target: int, at: int, length: int) -> None:
    with checkpoint_files.opened(run.file, weights=True) as opened:
        for first in range(0, length, copying.RANGE_BYTES):
            count = min(copying.RANGE_BYTES, length - first)
            start, to = run.at + first, at + first
            copying.copy_range(run.file, opened.fileno(), start, target, to, count)


def _write_index(folder: Path, shards: Sequence[_Shard], total: int) -> None:
    index = {
        "metadata": {"total_size": total},
        "weight_map": {name: shard.path.name for shard in shards for name in shard.begins},
    }
    path = folder / safetensors_file.INDEX
    unfinished = path.with_name(f"{path.name}{_UNFINISHED}")
    unfinished.write_text(json.dumps(index, indent=2), encoding="utf-8")
    unfinished.replace(path)
