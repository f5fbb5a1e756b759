"""Runs a `train.py` like that of `examples/guarded_training`, and notes each step it reads.

`read_training.py TRAIN JOURNAL ARGS…`: each rank adds a line to the journal when it reads a step's
data: attempt, Slurm's job, rank, process, node, step and the newest step saved. Rank 0 takes a
second more for each step after that in the file `slow-after`.
"""

import importlib.util
import os
import sys
import time
from pathlib import Path
from typing import Any


class Noted:
    """The data of a training, whose readers are written down."""

    def __init__(self, data: Any, journal: Path, checkpoints: Path) -> None:
        self._data, self._checkpoints = data, checkpoints
        self._slow_after = journal.with_name("slow-after")
        self._journal = os.open(journal, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        names = ("COORDINATE_EVAL_ATTEMPT", "SLURM_JOB_ID", "RANK")
        self._who = [os.environ.get(name) or "0" for name in names]
        self._who += [str(os.getpid()), os.environ.get("SLURMD_NODENAME", "here")]

    def __getitem__(self, which: tuple[int, slice]) -> Any:
        saved = 0
        if self._who[2] == "0" and self._checkpoints.exists():
            names = (path.name for path in self._checkpoints.glob("step-*"))
            saved = max((int(name[5:]) for name in names), default=0)
        line = " ".join([*self._who, str(which[0] + 1), str(saved)]) + "\n"
        os.write(self._journal, line.encode())
        if self._who[2] == "0" and which[0] >= int(self._slow_after.read_text() or 0):
            time.sleep(1.0)
        return self._data[which]


def main() -> None:
    if folder := os.environ.get("DRILL"):  # each node has its own network
        name = Path(folder, "interfaces", os.environ["SLURMD_NODENAME"]).read_text()
        os.environ["GLOO_SOCKET_IFNAME"] = name
    script, journal = Path(sys.argv[1]), Path(sys.argv[2])
    sys.argv = [str(script), *sys.argv[3:]]
    spec = importlib.util.spec_from_file_location("train", script)
    assert spec is not None
    assert spec.loader is not None
    train: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(train)
    opened = train.open_data
    checkpoints = Path(sys.argv[sys.argv.index("--checkpoints") + 1])
    train.open_data = lambda *args: Noted(opened(*args), journal, checkpoints)
    train.main()


if __name__ == "__main__":
    main()
