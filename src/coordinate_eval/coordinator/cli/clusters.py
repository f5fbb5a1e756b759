"""Open the cluster that the settings name."""

import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from typing import Literal, TypeVar

from coordinate_eval.coordinator.cluster import Cluster
from coordinate_eval.coordinator.inputs.settings import Settings
from coordinate_eval.errors import ClusterSilent

SILENCE_SECONDS = 60.0
"""How long a command goes on asking a scheduler that does not answer."""

T = TypeVar("T")


def cluster_kind(settings: Settings) -> Literal["slurm", "ray", "file"]:
    """Return the kind of cluster that the settings name; "auto" is Slurm where it is configured."""
    if settings.cluster == "slurm":
        return "slurm"
    if settings.cluster == "ray":
        return "ray"
    if settings.cluster == "auto":
        from coordinate_eval.slurm.cluster import slurm_configured

        return "slurm" if slurm_configured() else "ray"
    return "file"


@contextlib.contextmanager
def opened(kind: str, settings: Settings) -> Iterator[Cluster]:
    """Yield a cluster of this kind, and close it afterwards."""
    if kind == "slurm":
        from coordinate_eval.slurm.cluster import SlurmCluster

        yield SlurmCluster(settings.slurm)
        return
    from coordinate_eval.coordinator.ray_cluster import RayCluster

    with contextlib.closing(RayCluster(settings.ray, settings.trial.memory_gib)) as cluster:
        yield cluster


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
