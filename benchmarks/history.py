"""The history of a training: seconds to open it, and what its alarms find

    python benchmarks/history.py

*Opening* is a command on records of so many checkpoints of 63 datasets in nine groups, from the
start of the process to its end: processor seconds the first time, when each file is read by itself,
and the median of five times after that, when all come from the pack. `history` alone is that in a
terminal; `history --all` is what a pipe gets.

*Alarms* are those of simulated trainings with known truth. Each has 60 checkpoints of 63 datasets
with the numbers of items of the base suite's kind (100 to 14,042). Scores rise to a level of their
own and have three kinds of noise: that of their items, one of each dataset, and one that all share;
the last two last for some checkpoints (autoregressive, 0.5). *False* is the share of checkpoints of
healthy trainings with any alarm. *Found* is the share of drops of all datasets by so many points
that the mean raises an alarm for, at the checkpoint itself or the next one.

*Page* is `coordinate-eval report` of one of those trainings, with 200 checkpoints: the seconds from
the start of the process to its end, nearly all for the curves, and the size of the page.
"""

import argparse
import math
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

from coordinate_eval.coordinator.history import measured
from coordinate_eval.coordinator.history.alarms import alarms
from coordinate_eval.coordinator.history.columns import Plain, Score
from coordinate_eval.coordinator.history.measured import Measured
from coordinate_eval.coordinator.history.rows import Row
from coordinate_eval.coordinator.history.series import Series

DATASETS = [f"dataset_{number}" for number in range(63)]
ITEMS = (100, 164, 500, 1000, 1319, 2000, 5000, 14042)
CHECKPOINTS = 60
COMMANDS = (
    "history", "history --all", "history --csv", "history --json",
    "best --by 'mean(dataset_1*,dataset_2*)'", "alarms",
)  # fmt: skip
TRAININGS: Mapping[str, Mapping[str, float]] = {
    "usual": {"shared": 0.002, "own": 0.004, "rise": 0.35},
    "quiet": {"shared": 0.0, "own": 0.0, "rise": 0.35},
    "noisy": {"shared": 0.004, "own": 0.01, "rise": 0.35},
    "rising fast": {"shared": 0.002, "own": 0.004, "rise": 0.6},
}


def main() -> None:
    """Measure, and print three tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--checkpoints", type=int, nargs="+", default=[1000, 10_000])
    parser.add_argument("--trainings", type=int, default=40, help="simulated, of each kind")
    parser.add_argument("--points", type=float, default=2.0, help="size of the drops")
    parser.add_argument("--page", type=int, default=200, help="checkpoints of the page")
    asked = parser.parse_args()
    where = Console(width=100)
    where.print(opening(asked.checkpoints))
    where.print(truth(asked.trainings, asked.points / 100))
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
        simulated = training(np.random.default_rng(0), TRAININGS["usual"], checkpoints=count)
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


def truth(count: int, drop: float) -> Table:
    """Return the share of false alarms, and of drops that are found in time."""
    table = Table(
        "training", "false, % of checkpoints", f"found, drops of {100 * drop:g} points",
        title=f"alarms, {count} trainings of each kind with and without a drop",
    )  # fmt: skip
    for name, kind in TRAININGS.items():
        draw = np.random.default_rng(0)
        false = sum(
            len({alarm.row.step for alarm in alarms(training(draw, kind))}) for _ in range(count)
        )
        in_time = 0
        for _ in range(count):
            at = int(draw.integers(15, CHECKPOINTS - 5))
            raised = alarms(training(draw, kind, at=at, drop=drop))
            in_time += any(a.what == "mean" and a.row.step in (at, at + 1) for a in raised)
        table.add_row(name, f"{100 * false / count / CHECKPOINTS:.2f}", f"{in_time} of {count}")
    return table


def training(
    draw: np.random.Generator,
    kind: Mapping[str, float],
    *,
    at: int = CHECKPOINTS,
    drop: float = 0.0,
    last: float = 0.5,
    checkpoints: int = CHECKPOINTS,
) -> Series:
    """Return a simulated training; from checkpoint `at` on, all of its scores are lower."""
    items = draw.choice(ITEMS, len(DATASETS))
    start = draw.uniform(0.1, 0.4, len(DATASETS))
    gain, pace = draw.uniform(0.02, kind["rise"], len(DATASETS)), draw.uniform(5, 60, len(DATASETS))
    together, alone = 0.0, np.zeros(len(DATASETS))
    fresh = math.sqrt(1 - last**2)
    rows = []
    for step in range(checkpoints):
        together = last * together + draw.normal(0, kind["shared"] * fresh)
        alone = last * alone + draw.normal(0, kind["own"] * fresh, len(DATASETS))
        mean = start + gain * (1 - np.exp(-step / pace)) + together + alone - drop * (step >= at)
        values = draw.binomial(items, np.clip(mean, 0.001, 0.999)) / items
        errors = np.sqrt(np.maximum(values * (1 - values), 1e-6) / (items - 1))
        scores = {
            name: Score(float(value), float(error), int(count), "acc", True, "")
            for name, value, error, count in zip(DATASETS, values, errors, items, strict=True)
        }
        rows.append(Row("/t", step, f"/t/step-{step}", ["run"], float(step), scores, [], None))
    return Series(rows, DATASETS, {}, [])


if __name__ == "__main__":
    main()
