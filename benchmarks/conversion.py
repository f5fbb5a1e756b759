"""Converting what training writes against cp of the same bytes

    python benchmarks/conversion.py --gib 1 --repeat 5

The time from the files of a checkpoint on disk to safetensors in a memory file system, by a process
of its own that imports what a keeper does, against cp of the files that it reads. Both take turns
in every round, in another order: cp leaves the files in the page cache, and we drop them from it,
so whoever follows us reads from the disk. Seconds are medians; `cp / ours` is the median over
rounds, so 1 is as fast and more is faster. Memory is the largest of the process, torch included,
without the files that it wrote.

The weights are matrices of 64 MiB in bfloat16. They are one file of torch.save, in order or each
transposed; or a distributed checkpoint of PyTorch, cut into rows or columns of four ranks.
"""

import argparse
import contextlib
import io
import json
import pickle
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from rich.console import Console
from rich.table import Table
from torch.distributed.checkpoint import metadata as of_dcp
from torch.distributed.checkpoint.filesystem import _StorageInfo

from coordinate_eval.coordinator.inputs.settings import StageSettings

RANKS = 4
SIDE = 4096, 8192
BYTES = 2 * SIDE[0] * SIDE[1]

CONVERT = """
import json, resource, sys, time
from pathlib import Path
import torch
from coordinate_eval.coordinator.inputs.checkpoints.formats import dcp, torch_file
from coordinate_eval.coordinator.workers.on_node import convert
source, target = map(Path, sys.argv[1:])
began = time.perf_counter()
reader = dcp if source.is_dir() else torch_file
files = sorted(source.iterdir()) if source.is_dir() else [source]
convert.write(reader.open_source(files, []), target, lambda done: None)
seconds = time.perf_counter() - began
own = [line for line in open("/proc/self/status") if line.startswith("VmHWM")]
print(json.dumps([seconds, int(own[0].split()[1]) * 1024]))
"""


class Took(NamedTuple):
    """The cost of one conversion, and of cp beside it."""

    seconds: float
    memory: int
    cp_seconds: float


def main() -> None:
    """Measure each kind of source, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--gib", type=float, default=1.0, help="size of the weights (default 1)")
    parser.add_argument("--repeat", type=int, default=5, help="rounds (default 5)")
    parser.add_argument("--disk", default=".", help="folder of the source (default: this one)")
    parser.add_argument("--memory", default=StageSettings().root, help="folder of the copies")
    given = parser.parse_args()
    count = max(1, int(given.gib * 2**30) // BYTES)
    table = Table(title=f"{count * BYTES / 2**30:.1f} GiB")
    for name in ("written as", "seconds", "GiB/s", "cp, s", "cp / ours", "memory, GiB"):
        table.add_column(name, justify="left" if name == "written as" else "right")
    for name, write in SOURCES.items():
        with contextlib.ExitStack() as stack:
            disk, memory = (
                Path(stack.enter_context(tempfile.TemporaryDirectory(dir=place)))
                for place in (given.disk, given.memory)
            )
            source = write(disk, count)
            took = [one_round(source, memory, number) for number in range(given.repeat)]
        table.add_row(name, *shown(took, count * BYTES))
    Console(width=100).print(table)


def one_round(source: Path, memory: Path, number: int) -> Took:
    """Convert and copy the source, in one order or the other."""
    if number % 2:
        ours, cp = converted(source, memory), copied(source, memory)
    else:
        cp, ours = copied(source, memory), converted(source, memory)
    return Took(*ours, cp)


def converted(source: Path, memory: Path) -> tuple[float, int]:
    """Return the seconds of a conversion, and the memory of its process."""
    target = memory / "to"
    target.mkdir()
    argv = [sys.executable, "-c", CONVERT, str(source), str(target)]
    done = subprocess.run(argv, check=True, capture_output=True, text=True)
    shutil.rmtree(target)
    seconds, most = json.loads(done.stdout)
    return seconds, most


def copied(source: Path, memory: Path) -> float:
    """Return the seconds of cp."""
    began = time.perf_counter()
    subprocess.run(["cp", "-r", source, memory / "to"], check=True)
    seconds = time.perf_counter() - began
    subprocess.run(["rm", "-r", memory / "to"], check=True)
    return seconds


def shown(took: Sequence[Took], size: int) -> list[str]:
    """Return the columns of a table."""
    seconds = statistics.median(each.seconds for each in took)
    return [
        f"{seconds:.2f}",
        f"{size / 2**30 / seconds:.2f}",
        f"{statistics.median(each.cp_seconds for each in took):.2f}",
        f"{statistics.median(each.cp_seconds / each.seconds for each in took):.2f}",
        f"{max(each.memory for each in took) / 2**30:.2f}",
    ]


def file_of_torch(folder: Path, count: int, *, turned: bool = False) -> Path:
    """Write one file of torch.save."""
    matrices = {f"layers.{n}.weight": matrix(n) for n in range(count)}
    torch.save({n: m.T if turned else m for n, m in matrices.items()}, folder / "model.pt")
    return folder / "model.pt"


def parts_of_ranks(folder: Path, count: int, dimension: int) -> Path:
    """Write a distributed checkpoint, as ranks that each have some rows or columns do."""
    made = folder / "step-1"
    made.mkdir()
    whole = of_dcp.Metadata({}, {}, {})
    files = [(made / f"__{rank}_0.distcp").open("wb") for rank in range(RANKS)]
    for number in range(count):
        name, chunks = f"layers.{number}.weight", []
        for rank, part in enumerate(matrix(number).chunk(RANKS, dimension)):
            begin = torch.Size(rank * part.shape[d] if d == dimension else 0 for d in (0, 1))
            blob = io.BytesIO()
            torch.save(part.clone(), blob)
            at = files[rank].tell()
            files[rank].write(blob.getbuffer())
            index = of_dcp.MetadataIndex(name, begin, rank)
            whole.storage_data[index] = _StorageInfo(f"__{rank}_0.distcp", at, blob.tell())
            chunks.append(of_dcp.ChunkStorageMetadata(begin, part.shape))
        kind = of_dcp.TensorProperties(torch.bfloat16)
        shape = torch.Size(SIDE)
        whole.state_dict_metadata[name] = of_dcp.TensorStorageMetadata(kind, shape, chunks)
    for file in files:
        file.close()
    (made / ".metadata").write_bytes(pickle.dumps(whole))
    return made


def matrix(number: int) -> torch.Tensor:
    """Return a matrix of numbers that no file system leaves out."""
    return torch.full(SIDE, number + 1.0, dtype=torch.bfloat16)


SOURCES: dict[str, Callable[[Path, int], Path]] = {
    "one .pt file": file_of_torch,
    "one .pt file, transposed": lambda folder, count: file_of_torch(folder, count, turned=True),
    "DCP, rows of 4 ranks": lambda folder, count: parts_of_ranks(folder, count, 0),
    "DCP, columns of 4 ranks": lambda folder, count: parts_of_ranks(folder, count, 1),
}

if __name__ == "__main__":
    main()
