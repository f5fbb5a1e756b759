"""Slurms on this machine for benchmarks, and what their jobs use of it."""

import ctypes
import os
import resource
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.dev_cluster import slurm_dev

GPUS_PER_NODE = 8
CPUS_PER_NODE = 128

_SUBREAPER = 36
"""PR_SET_CHILD_SUBREAPER of prctl(2)."""


def impossible() -> str:
    """Return why this machine cannot run a Slurm, or an empty string if it can."""
    if os.geteuid() != 0 or shutil.which("slurmctld") is None:
        return f"it needs Slurm, as root: {slurm_dev().INSTALL}"
    return ""


@contextmanager
def cluster(folder: Path, nodes: int) -> Iterator[Path]:
    """Run a Slurm of nodes of eight GPUs in `folder`; yield its SLURM_CONF.

    Its orphans become children of this process, so that `Watch` counts their CPU time.
    """
    ctypes.CDLL(None).prctl(_SUBREAPER, 1, 0, 0, 0)
    script = slurm_dev()
    shape = script.Shape(nodes=nodes, gpus=GPUS_PER_NODE, cpus=CPUS_PER_NODE)
    made = script.DevCluster(folder, shape)
    try:
        made.up()
        yield made.conf
    finally:
        made.down()


def await_empty_queue(conf: Path) -> None:
    """Wait until every job has ended, whose processes are then counted."""
    environ = os.environ | {"SLURM_CONF": str(conf)}
    ask = ["squeue", "-h"]
    while subprocess.run(ask, env=environ, capture_output=True, check=True).stdout.strip():
        time.sleep(0.5)


class Watch:
    """The work of this machine's cores from now on."""

    def __init__(self) -> None:
        self._cpu, self._machine = _cpu_of_children(), _machine()

    def cpu_seconds(self) -> float:
        """Return the CPU seconds of processes of ours that have ended since.

        Call it when no child is awaited.
        """
        return _cpu_of_children() - self._cpu

    def busy(self) -> float:
        """Return the share of all cores' time in which they worked, for whomever."""
        busy, total = (now - then for now, then in zip(_machine(), self._machine, strict=True))
        return busy / total


def _cpu_of_children() -> float:
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _machine() -> tuple[int, int]:
    """Return the busy time and all time of this machine's cores, in ticks (proc(5))."""
    ticks = [int(each) for each in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
    return sum(ticks) - ticks[3] - ticks[4], sum(ticks)
