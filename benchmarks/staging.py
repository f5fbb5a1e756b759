"""Staging weights against cp, dd and rsync: one file and many, cold and warm

    python benchmarks/staging.py --repeat 7

The time from the files of a checkpoint on disk to their copies in a memory file system, the checks
and the manifest of our copy included. A cold file is not in the page cache, a warm one is whole in
it. Each way takes its turn in every round, in another order, so that a busy moment meets all of
them. Seconds are medians; the last column is the median over rounds of how often our copy fits into
the time of the other one, so 1 is as fast and more is faster. CPU seconds are of all cores, for
each GiB. Left is what stays of the source in the page cache, which the kernel counts as memory of
the job that read it. A program that is not installed is left out.
"""

import argparse
import contextlib
import itertools
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.plans import CHECKPOINT

from coordinate_eval.coordinator.inputs.checkpoints import checkpoint as checkpoints
from coordinate_eval.coordinator.inputs.settings import StageSettings
from coordinate_eval.coordinator.workers.on_node.staging import StagedWeights

AT_ONCE = 4
"""Processes of the ways that start several."""

OURS = "this program"


class Work(NamedTuple):
    """Files to copy, and where to: for other programs the folder `target`."""

    files: Sequence[Path]
    target: Path
    place: StagedWeights


Way = Callable[[Work], object]


class Took(NamedTuple):
    """The cost of one copy."""

    seconds: float
    cpu_seconds: float
    cached_bytes: int


def main() -> None:
    """Measure one file and many, cold and warm, and print a table of each."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--repeat", type=int, default=5, help="rounds (default 5)")
    parser.add_argument("--mib", type=int, default=1024, help="size of a copy (default 1024)")
    parser.add_argument("--files", type=int, default=8, help="number of many files (default 8)")
    parser.add_argument("--disk", default=".", help="folder of the source (default: this one)")
    parser.add_argument(
        "--memory", default=StageSettings().root, help="folder of the copies (default %(default)s)"
    )
    given = parser.parse_args()
    with contextlib.ExitStack() as stack:
        disk, memory = (
            Path(stack.enter_context(tempfile.TemporaryDirectory(dir=place, prefix="staging-")))
            for place in (given.disk, given.memory)
        )
        for count, warm in itertools.product((1, given.files), (False, True)):
            files = write_files(disk, count, (given.mib << 20) // count)
            took = measure(files, memory, warm=warm, rounds=max(1, given.repeat))
            show(took, count, warm=warm, size=sum(file.stat().st_size for file in files))
            for file in files:
                file.unlink()


def write_files(folder: Path, count: int, size: int) -> list[Path]:
    """Write random files to disk."""
    files = [folder / f"model-{number:05}-of-{count:05}.safetensors" for number in range(count)]
    for path in files:
        with path.open("wb") as file:
            for begin in range(0, size, 1 << 20):
                file.write(os.urandom(min(1 << 20, size - begin)))
            file.flush()
            os.fsync(file.fileno())  # only what is on disk can be dropped
    return files


def measure(
    files: Sequence[Path], memory: Path, *, warm: bool, rounds: int
) -> dict[str, list[Took]]:
    """Copy the files in each way, in every round."""
    took: dict[str, list[Took]] = {name: [] for name in ways(files)}
    for number in range(rounds):
        names = list(took)
        for name in names[number % len(names) :] + names[: number % len(names)]:
            took[name].append(one_copy(ways(files)[name], files, memory, warm=warm))
    return took


def one_copy(way: Way, files: Sequence[Path], memory: Path, *, warm: bool) -> Took:
    """Copy the files once, check their sizes, and remove the copies."""
    for file in files:
        with file.open("rb", buffering=0) as reader:
            os.posix_fadvise(reader.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            while warm and reader.read(1 << 20):
                pass
    work = Work(files, memory / "copy", StagedWeights(str(memory), "run", "node"))
    work.target.mkdir()
    with work.place.hold():
        before, began = cpu_seconds(), time.perf_counter()
        way(work)
        seconds = time.perf_counter() - began
        cpu = cpu_seconds() - before
        copied = sum(path.stat().st_size for path in memory.rglob("*.safetensors"))
        assert copied == sum(file.stat().st_size for file in files), "a copy is not whole"
    shutil.rmtree(work.target)
    return Took(seconds, cpu, sum(map(cached_bytes, files)))


def ways(files: Sequence[Path]) -> dict[str, Way]:
    """Return the ways to copy these files, by name."""
    found: dict[str, Way] = {
        OURS: stage,
        "cp": lambda work: wait_for([["cp", *map(str, work.files), str(work.target)]]),
    }
    if len(files) > 1:
        found[f"{AT_ONCE} cp at once"] = several_cp
        found[f"{AT_ONCE} dd at once"] = several_dd
    else:
        found["dd"] = several_dd
        found[f"{AT_ONCE} dd, a part each"] = dd_of_parts
    if shutil.which("rsync"):
        found["rsync"] = lambda work: wait_for(
            [["rsync", "--whole-file", *map(str, work.files), str(work.target)]]
        )
    return found


def stage(work: Work) -> None:
    """Copy as a keeper does."""
    source = CHECKPOINT.model_copy(
        update={
            "path": str(work.files[0].parent),
            "identity": checkpoints._identity(list(work.files), []),
            "weights": [str(file) for file in work.files],
            "bytes": sum(file.stat().st_size for file in work.files),
        }
    )
    assert work.place.copy(source, lambda _: None)


def several_cp(work: Work) -> None:
    """Copy with several cp, each with its share of the files."""
    shares = [work.files[number::AT_ONCE] for number in range(AT_ONCE)]
    wait_for([["cp", *map(str, share), str(work.target)] for share in shares if share])


def several_dd(work: Work) -> None:
    """Copy with a dd for each file, several at once."""
    for first in range(0, len(work.files), AT_ONCE):
        some = work.files[first : first + AT_ONCE]
        wait_for([[*_DD, f"if={file}", f"of={work.target / file.name}"] for file in some])


def dd_of_parts(work: Work) -> None:
    """Copy one file with several dd, each with a part of it."""
    (file,) = work.files
    blocks = -(-file.stat().st_size // (1 << 20))
    edges = [blocks * number // AT_ONCE for number in range(AT_ONCE + 1)]
    files = [f"if={file}", f"of={work.target / file.name}", "conv=notrunc"]
    wait_for(
        [
            [*_DD, *files, f"skip={start}", f"seek={start}", f"count={stop - start}"]
            for start, stop in itertools.pairwise(edges)
        ]
    )


_DD = ("dd", "bs=1M", "status=none")


def wait_for(commands: Sequence[Sequence[str]]) -> None:
    """Run commands at the same time."""
    for process in [subprocess.Popen(command) for command in commands]:
        assert process.wait() == 0, process.args


def cpu_seconds() -> float:
    """Return the CPU seconds of this process, and of its children that have ended."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)


def cached_bytes(path: Path) -> int:
    """Return the bytes of a file that are in the page cache; 0 if nothing here can tell."""
    command = ["fincore", "--bytes", "--noheadings", "--output", "RES", str(path)]
    with contextlib.suppress(OSError, ValueError):
        return int(subprocess.run(command, capture_output=True, check=False).stdout)
    return 0


def show(took: dict[str, list[Took]], count: int, *, warm: bool, size: int) -> None:
    """Print a line for each way."""
    files = "one file" if count == 1 else f"{count} files"
    table = Table(title=f"{files}, {size / 2**30:.1f} GiB, {'warm' if warm else 'cold'}")
    table.add_column("copied by")
    for heading in ("seconds", "GiB/s", "CPU s/GiB", "left, GiB", "its time / ours"):
        table.add_column(heading, justify="right")
    gib = size / 2**30
    for name, copies in took.items():
        seconds = statistics.median(copy.seconds for copy in copies)
        cpu = statistics.median(copy.cpu_seconds for copy in copies)
        left = statistics.median(copy.cached_bytes for copy in copies)
        ratios = [o.seconds / u.seconds for o, u in zip(copies, took[OURS], strict=True)]
        table.add_row(
            name,
            f"{seconds:.2f}",
            f"{gib / seconds:.2f}",
            f"{cpu / gib:.2f}",
            f"{left / 2**30:.2f}",
            "" if name == OURS else f"{statistics.median(ratios):.2f}",
        )
    Console().print(table)


if __name__ == "__main__":
    main()
