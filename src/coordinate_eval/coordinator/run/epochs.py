"""Epochs: the process with the highest one supervises a run."""

import os
import time

from pydantic import Field

from coordinate_eval import _files
from coordinate_eval.clusters.protocol import TASK_VARIABLE
from coordinate_eval.coordinator.run.paths import RunDir
from coordinate_eval.records import Record


class Epoch(Record):
    """`supervisor/<epoch>.json`: a process that became the supervisor."""

    epoch: int
    host: str
    pid: int
    time: float
    token: str
    task: str = Field(default="", description="of the scheduler; empty in a terminal")


def latest_epoch(run_dir: RunDir) -> int:
    """Return the highest epoch so far; 0 before the first supervisor."""
    stems = (name.removesuffix(".json") for name in _files.names(run_dir.supervisors_folder))
    return max((int(stem) for stem in stems if stem.isdigit()), default=0)


def take_over(run_dir: RunDir) -> int:
    """Become the supervisor. Return the new epoch."""
    while True:
        epoch = latest_epoch(run_dir) + 1
        entry = Epoch(
            epoch=epoch,
            host=os.uname().nodename,
            pid=os.getpid(),
            time=time.time(),
            token=_files.token(),
            task=os.environ.get(TASK_VARIABLE, ""),
        )
        if _files.create(run_dir.supervisor(epoch), entry.model_dump_json()):
            return epoch
