"""A real controller and several slurmd on this machine."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from coordinate_eval.clusters.protocol import Job
from coordinate_eval.slurm.cluster import SlurmCluster
from coordinate_eval.slurm.settings import SlurmSettings
from tests import reference
from tests.dev_cluster import DevCluster
from tests.runs import TASKS, until
from tests.slurm.clusters import cluster_of
from tests.slurm.runs import (
    REAL_TASKS,
    ROOM,
    Undisturbed,
    once,
    queue,
    undisturbed_run,
)
from tests.tiny import need, tiny_model


@pytest.fixture(scope="session")
def slurm_cluster() -> Iterator[DevCluster]:
    """A cluster of four nodes for the whole session."""
    with cluster_of() as cluster:
        yield cluster


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that all workers of the session share."""
    folder = tmp_path_factory.getbasetemp()
    return folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder


@pytest.fixture(scope="session")
def undisturbed(slurm_cluster: DevCluster, shared: Path) -> Undisturbed:
    """A run of the four tasks: the first worker to ask for it makes it for all."""
    return undisturbed_run(shared)


@pytest.fixture(scope="session")
def by_command(shared: Path) -> dict[str, Any]:
    """What `lm_eval --model hf` says of `REAL_TASKS`, once for all workers."""
    need("lm_eval", "harness")

    def make() -> dict[str, Any]:
        with tempfile.TemporaryDirectory() as folder:
            checkpoint = reference.roomy(tiny_model(), Path(folder) / "checkpoint", ROOM)
            return reference.lm_eval(checkpoint, REAL_TASKS, include=TASKS, folder=TASKS)

    found: dict[str, Any] = once(shared, "by-command", make)
    return found


@pytest.fixture
def cluster(slurm_cluster: DevCluster) -> Iterator[SlurmCluster]:
    """The cluster through the backend. When the test has ended, its nodes are left by all jobs."""
    yield SlurmCluster(SlurmSettings())
    until(_emptied, "an empty cluster")


@pytest.fixture(scope="module", autouse=True)
def left_empty() -> Iterator[None]:
    """No module meets jobs of another one on the cluster of the session."""
    yield
    if "SLURM_CONF" in os.environ:
        until(_emptied, "an empty cluster")


def _emptied() -> bool:
    """Cancel what squeue lists, those first that wait, so that none begins in place of another.

    It lists a job for as long as that holds its cores. Slurm may lose a signal that comes as a job
    begins, so whoever waits for this sends it again.
    """
    left = sorted(queue(), key=lambda line: "PENDING" not in line)
    for line in left:
        subprocess.run(["scancel", line.split()[0]], check=False, capture_output=True)
    return not left


@pytest.fixture
def job(tmp_path: Path, request: pytest.FixtureRequest) -> Callable[..., Job]:
    """Makes jobs named after the test; `code` is what Python runs, `args` its arguments."""

    def make(code: str, *args: str, **fields: object) -> Job:
        values = {"name": request.node.name, "log": str(tmp_path / "log"), "minutes": 600, **fields}
        return Job.model_validate(
            {"argv": (sys.executable, "-c", code, *args), **values}, extra="forbid"
        )

    return make
