"""Seeded schedules of faults in a guarded training, on development clusters, and their table.

`python -m tests.scripts.training_faults --schedules 60` needs Slurm and root, as `make test` does.
A schedule that fails has its reason in the table, and the exit status is 1.
"""

import argparse
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path

from rich.console import Console
from rich.table import Table
from tests.drills import ENDING, Drill, schedule
from tests.guarded import NODES
from tests.runs import Workspace, until
from tests.slurm.clusters import cluster_of
from tests.slurm.runs import queue

Row = tuple[int, tuple[str, str, str, str]]


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--schedules", type=int, default=len(ENDING))
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--at-once", type=int, default=1, help="each on a cluster of its own")
    parser.add_argument("--minutes", type=float, default=1e9, help="begin none after so many")
    parser.add_argument("--folder", type=Path, help="keeps what the trainings wrote")
    given = parser.parse_args()
    folder = given.folder or Path(tempfile.mkdtemp(prefix="drills-"))
    seeds = range(given.first, given.first + given.schedules)
    shares = [seeds[part :: given.at_once] for part in range(given.at_once)]
    table = Table("seed", "faults", "causes found", "seconds to restart", "steps lost")
    with ProcessPoolExecutor(given.at_once) as pool:
        run = partial(run_some, folder=folder, end=time.monotonic() + 60 * given.minutes)
        rows = sorted(row for some in pool.map(run, shares) for row in some)
    for seed, cells in rows:
        table.add_row(str(seed), *cells)
    Console().print(table)
    well = sum(not cells[1].startswith("FAILED") for _, cells in rows)
    ended = f"{well} of {len(rows)}"
    print(f"{ended} ended with the weights of an undisturbed training; see {folder}")
    return 0 if well == len(rows) else 1


def run_some(seeds: Sequence[int], folder: Path, end: float) -> list[Row]:
    """Run schedules one after the other on one cluster."""
    rows: list[Row] = []
    first_job = 1 + 100 * seeds[0]  # ranks meet at a port that it tells
    with cluster_of(nodes=NODES, gpus=1, cpus=4, first_job=first_job) as cluster:
        for seed in seeds:
            if time.monotonic() > end:
                break
            faults = schedule(seed)
            own = folder / f"from-{seeds[0]}" / str(seed)
            own.mkdir(parents=True)
            began = time.monotonic()
            try:
                row = Drill(cluster, Workspace(own)).run(faults).row()
            except Exception as error:  # one schedule more is worth more than a clean end
                words = ", ".join(f"{fault.kind} at {fault.step}" for fault in faults)
                row = (words, f"FAILED: {type(error).__name__}: {str(error)[:1000]}", "", "")
            until(lambda: not queue(), "an empty queue")
            took = f"{time.monotonic() - began:.0f} s"
            print(time.strftime("%H:%M:%S"), seed, *row, took, sep=" | ", flush=True)
            rows.append((seed, row))
    return rows


if __name__ == "__main__":
    raise SystemExit(main())
