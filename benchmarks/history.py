"""The history of a training: seconds to open it

    python benchmarks/history.py

*Opening* is a command on records of so many checkpoints of 63 datasets in nine groups, from the
start of the process to its end: processor seconds the first time, when each file is read by itself,
and the median of five times after that, when all come from the pack. `history` alone is that in a
terminal; `history --all` is what a pipe gets.

*Page* is `coordinate-eval report` of a simulated training with 200 checkpoints: the seconds from
the start of the process to its end, nearly all for the curves, and the size of the page.
"""

import argparse
import os
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks._trainings import DATASETS, Kind, training
from coordinate_eval.coordinator.history import measured
from coordinate_eval.coordinator.history.columns import Plain
from coordinate_eval.coordinator.history.measured import Measured

COMMANDS = (
    "history", "history --all", "history --csv", "history --json",
    "best --by 'mean(dataset_1*,dataset_2*)'", "alarms",
)  # fmt: skip


def main() -> None:
    """Measure, and print two tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--checkpoints", type=int, nargs="+", default=[1000, 10_000])
    parser.add_argument("--page", type=int, default=200, help="checkpoints of the page")
    asked = parser.parse_args()
    where = Console(width=100)
    where.print(opening(asked.checkpoints))
    where.print(page(asked.page))


def opening(counts: list[int]) -> Table:
    """Return the processor seconds that commands take on so many records."""
    table = Table("checkpoints", "command", "CPU seconds", title="opening")
    for count in counts:
        with tempfile.TemporaryDirectory() as home:
            write_records(home, _any_scores(count))
            first = _cpu_seconds(home, "history", "--csv")
            table.add_row(f"{count:,}", "history --csv, the first time", f"{first:.2f}")
            for command in COMMANDS:
                later = sorted(_cpu_seconds(home, *shlex.split(command)) for _ in range(5))[2]
                table.add_row("", command, f"{later:.2f}")
    return table


def _cpu_seconds(home: str, *arguments: str) -> float:
    before = os.times()
    _seconds(home, *arguments)
    after = os.times()
    user = after.children_user - before.children_user
    return user + after.children_system - before.children_system


def write_records(home: str, every: Iterable[Mapping[str, Plain]]) -> None:
    """Write the records of a training with the scores of each checkpoint."""
    folder = measured.folder(home)
    folder.mkdir(mode=0o700, parents=True)
    for step, scores in enumerate(every):
        record = Measured(
            run=f"step-{step}", dir="/none", checkpoint=f"/training/step-{step}", step=step,
            training="/training",
            identity=f"{step:064}", suite="base", created=step, ended=1, complete=True,
            groups={name: f"group_{place % 9}" for place, name in enumerate(DATASETS)},
            scores=dict(scores),
        )  # fmt: skip
        (folder / f"step-{step}.{step:016x}.json").write_text(record.line())


def _any_scores(count: int) -> Iterator[dict[str, Plain]]:
    draw = np.random.default_rng(0)
    for _ in range(count):
        yield {
            name: (float(draw.random()), 0.01, 1000, "acc", True, "0123456789abcdef")
            for name in DATASETS
        }


def page(count: int) -> Table:
    """Return the seconds that a page takes, and its size."""
    table = Table("checkpoints", "datasets", "seconds", "MB", title="page")
    with tempfile.TemporaryDirectory() as home:
        simulated = training(np.random.default_rng(0), Kind(), checkpoints=count).series()
        write_records(home, (row.scores for row in simulated.rows))
        file = Path(home) / "page.html"
        seconds = _seconds(home, "report", "--output", str(file))
        size = f"{file.stat().st_size / 1e6:.1f}"
        table.add_row(str(count), str(len(DATASETS)), f"{seconds:.1f}", size)
    return table


def _seconds(home: str, *arguments: str) -> float:
    """Return the seconds of a command. One that finds an alarm ends with 1."""
    command = [str(Path(sys.executable).with_name("coordinate-eval")), *arguments]
    began = time.perf_counter()
    environment = {**os.environ, "COORDINATE_EVAL_RUNS_DIR": home}
    if arguments == ("history",):  # in a terminal it shows less
        command = ["script", "-qec", shlex.join(command), "/dev/null"]
    done = subprocess.run(command, env=environment, stdout=subprocess.DEVNULL, check=False)
    if done.returncode not in (0, 1):
        raise SystemExit(f"{shlex.join(command)} ended with {done.returncode}")
    return time.perf_counter() - began


if __name__ == "__main__":
    main()
