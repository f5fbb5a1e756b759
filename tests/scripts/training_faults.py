"""Seeded schedules of faults in a guarded training, on a development cluster, and their table.

`python -m tests.scripts.training_faults --schedules 60` needs Slurm and root, as `make test` does.
A schedule that fails has its reason in the table, and the exit status is 1.
"""

import argparse
import tempfile
from pathlib import Path

from rich.console import Console
from rich.table import Table
from tests.drills import ENDING, Drill, schedule
from tests.guarded import NODES
from tests.runs import Workspace, until
from tests.slurm.clusters import cluster_of
from tests.slurm.runs import queue


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--schedules", type=int, default=len(ENDING))
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--folder", type=Path, help="keeps what the trainings wrote")
    given = parser.parse_args()
    folder = given.folder or Path(tempfile.mkdtemp(prefix="drills-"))
    table = Table("seed", "faults", "causes found", "seconds to restart", "steps lost")
    failed = 0
    with cluster_of(nodes=NODES, gpus=0, cpus=4) as cluster:
        for seed in range(given.first, given.first + given.schedules):
            faults = schedule(seed)
            user = Workspace(folder / str(seed))
            try:
                row = Drill(cluster, user).run(faults).row()
            except Exception as error:  # one schedule more is worth more than a clean end
                failed += 1
                words = ", ".join(f"{fault.kind} at {fault.step}" for fault in faults)
                row = (words, f"FAILED: {type(error).__name__}: {str(error)[:1000]}", "", "")
            until(lambda: not queue(), "an empty queue")
            print(seed, *row, sep=" | ", flush=True)
            table.add_row(str(seed), *row)
    Console().print(table)
    ended = f"{given.schedules - failed} of {given.schedules}"
    print(f"{ended} ended with the weights of an undisturbed training; see {folder}")
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
