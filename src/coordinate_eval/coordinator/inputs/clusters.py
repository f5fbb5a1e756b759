"""The schedulers that this program knows, by name.

To add one, write a class with the protocol of `clusters/protocol.py`, a function here that makes
it from the settings, and a line in `_MAKERS`.
"""

import os
import shutil
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

from coordinate_eval.clusters.protocol import Cluster
from coordinate_eval.coordinator.inputs.settings import FOLDERS, Settings
from coordinate_eval.errors import ClusterSilent, UserError

DESCRIBED = "slurm"
"""Scheduler of a cluster that is only described by a file."""

SILENCE_SECONDS = 60.0
"""Longest time for which a command repeats a question to a scheduler that does not answer."""

T = TypeVar("T")


def by_name(name: str, settings: Settings) -> Cluster:
    """Return the cluster with this name. It is not opened yet."""
    if name not in _MAKERS:
        raise UserError(f"cluster {name!r} is unknown: choose one of {', '.join(_MAKERS)}")
    return _MAKERS[name](settings)


def chosen(settings: Settings) -> Cluster | None:
    """Return the cluster that the settings name, or None if they name a cluster file.

    `auto` is the first scheduler that this machine belongs to.

    Raises:
        UserError: the setting looks like the name of a scheduler, and there is none of that name,
            or nobody says where the Ray cluster is.
    """
    name = settings.cluster
    if name == "ray" and settings.ray.address is None:
        raise UserError(
            "cluster ray needs the address of a Ray cluster: set [ray] address, or RAY_ADDRESS. To "
            "run on this machine alone, which needs no Ray, write --cluster local"
        )
    if name == "auto":
        made = (make(settings) for make in _MAKERS.values())
        return next(cluster for cluster in made if cluster.here())
    if name in _MAKERS:
        return by_name(name, settings)
    if is_file(name):
        return None
    raise UserError(
        f"cluster {name!r} is unknown: choose one of auto, {', '.join(_MAKERS)}, or a cluster file"
    )


def is_file(name: str) -> bool:
    """Return whether the setting `cluster` names a cluster file, on which one can only plan."""
    path = Path(name)
    of_scheduler = name == "auto" or name in _MAKERS
    return not of_scheduler and bool(path.suffix or path.name != name or path.exists())


def why_not_from_here(name: str) -> str:
    """Return why nothing can be submitted to a scheduler from this machine; empty if it can be."""
    if name != "slurm" or shutil.which("sbatch"):
        return ""
    return f"there is no sbatch on {os.uname().nodename}"


def patiently(ask: Callable[[], T]) -> T:
    """Return the scheduler's answer; while it is silent, ask again with longer and longer pauses.

    Raises:
        ClusterSilent: it did not answer for `SILENCE_SECONDS`.
    """
    end, pause = time.monotonic() + SILENCE_SECONDS, 1.0
    while True:
        try:
            return ask()
        except ClusterSilent:
            if time.monotonic() + pause > end:
                raise
            sys.stderr.write(f"the scheduler does not answer, next try in {pause:g} s\n")
            time.sleep(pause)
            pause = min(2 * pause, 15.0)


# Each scheduler's module is imported where it is used: a command pays only for its own.
def _slurm(settings: Settings) -> Cluster:
    from coordinate_eval.slurm.cluster import SlurmCluster

    return SlurmCluster(settings.slurm, settings.gpu_memory_gib or 0.0)


def _local(settings: Settings) -> Cluster:
    from coordinate_eval.clusters.local import LocalCluster

    memory = settings.gpu_memory_gib or 0.0
    return LocalCluster(settings.local, settings.trial.memory_gib, memory)


def _ray(settings: Settings) -> Cluster:
    from coordinate_eval.clusters.ray.cluster import RayCluster

    folders = {name: getattr(settings, name) for name in FOLDERS}
    paths = {name: Path(folder).expanduser() for name, folder in folders.items()}
    memory = settings.gpu_memory_gib or 0.0
    return RayCluster(settings.ray.address or "auto", paths, memory, settings.gpu_type)


_MAKERS: Mapping[str, Callable[[Settings], Cluster]] = {
    "slurm": _slurm,
    "local": _local,
    "ray": _ray,
}
"""In the order in which `auto` tries them: `local` is at home on every machine."""
