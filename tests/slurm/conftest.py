"""A real controller and several slurmd on this machine."""

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from coordinate_eval.cluster import Job
from coordinate_eval.slurm.cluster import SlurmCluster
from coordinate_eval.slurm.settings import SlurmSettings
from tests.dev_cluster import DevCluster, slurm_dev
from tests.slurm.jobs import not_ended, wait_for


def short_folder() -> Path:
    """A new folder for a cluster; pytest's own have too long names for the sockets of jobs."""
    return Path(tempfile.mkdtemp(prefix="slurm-"))


@contextlib.contextmanager
def cluster_of(**shape: object) -> Iterator[DevCluster]:
    """Have a cluster of this shape up, with SLURM_CONF set; down afterwards."""
    script = slurm_dev()
    if os.geteuid() != 0 or shutil.which("slurmctld") is None:
        words = f"needs Slurm, as root: {script.INSTALL}"
        if os.environ.get("CI"):
            pytest.fail(words)
        pytest.skip(words)
    cluster = script.DevCluster(short_folder(), script.Shape(**shape))
    before = os.environ.get("SLURM_CONF")
    try:
        cluster.up()
        os.environ["SLURM_CONF"] = str(cluster.conf)
        yield cluster
    finally:
        cluster.down()
        os.environ.pop("SLURM_CONF", None)
        if before is not None:
            os.environ["SLURM_CONF"] = before


@pytest.fixture(scope="session")
def slurm_cluster() -> Iterator[DevCluster]:
    """A cluster of four nodes for the whole session."""
    with cluster_of() as cluster:
        yield cluster


@pytest.fixture
def cluster(slurm_cluster: DevCluster) -> Iterator[SlurmCluster]:
    """The cluster through the backend. When the test has ended, its nodes are left by all jobs."""
    cluster = SlurmCluster(SlurmSettings(timeout_seconds=30))
    yield cluster
    cluster.cancel([task.job_id for task in not_ended(cluster)])
    # A job that has ended for the backend may still hold its cores: squeue lists it until then.
    wait_for(lambda: not squeue(), "an empty cluster")


def squeue() -> str:
    """Return the lines of squeue: the jobs that wait, run, or have not left their nodes."""
    done = subprocess.run(["squeue", "--noheader"], check=True, capture_output=True, text=True)
    return done.stdout.strip()


@pytest.fixture
def job(tmp_path: Path, request: pytest.FixtureRequest) -> Callable[..., Job]:
    """Makes jobs named after the test; `code` is what Python runs, `args` its arguments."""

    def make(code: str, *args: str, **fields: object) -> Job:
        values = {"name": request.node.name, "log": str(tmp_path / "log"), "minutes": 600, **fields}
        return Job.model_validate({"argv": (sys.executable, "-c", code, *args), **values})

    return make
