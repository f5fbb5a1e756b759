"""All checks of one place, in the order in which a person would look."""

import os
from collections.abc import Iterator
from pathlib import Path

from coordinate_eval.clusters.protocol import Cluster
from coordinate_eval.coordinator.doctor import folders, programs, scheduler, surroundings
from coordinate_eval.coordinator.doctor.findings import Finding, Role
from coordinate_eval.coordinator.inputs.settings import Settings


def examine(settings: Settings, role: Role) -> Iterator[Finding]:
    """Yield what is found on this machine, as it is found."""
    yield programs.python()
    yield from folders.of_settings(settings)
    if role is not Role.GPU_JOB:
        yield folders.hub_cache(os.environ)
        yield programs.harness()
        yield surroundings.sandbox()
        yield surroundings.compilers()
        yield from surroundings.network(settings)
    if role is not Role.CPU_JOB:
        yield from folders.stage(settings, role)
        yield from programs.engine(settings, role)


def examine_here(settings: Settings, cluster: Cluster | None) -> Iterator[Finding]:
    """Yield what is found where the command is called, what the scheduler says first."""
    if cluster is None:
        yield scheduler.of_file(Path(settings.cluster))
        yield from examine(settings, Role.LOGIN)
    elif cluster.local:
        yield from examine(settings, Role.MACHINE)
    else:
        yield from scheduler.of_cluster(cluster)
        yield from examine(settings, Role.LOGIN)
