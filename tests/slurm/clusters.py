"""Clusters of any shape, each up while a test needs it."""

import contextlib
import os
import random
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.dev_cluster import DevCluster, slurm_dev


def short_folder() -> Path:
    """A new folder for a cluster; pytest's own have too long names for the sockets of jobs."""
    return Path(tempfile.mkdtemp(prefix="slurm-"))


@contextlib.contextmanager
def cluster_of(**shape: object) -> Iterator[DevCluster]:
    """Have a cluster of this shape up, with SLURM_CONF set; down afterwards.

    Trainings make ports of their jobs' numbers, so no two clusters begin with the same ones; the
    first thousand would be the ports of Ray's workers.
    """
    script = slurm_dev()
    if os.geteuid() != 0 or shutil.which("slurmctld") is None:
        words = f"needs Slurm, as root: {script.INSTALL}"
        if os.environ.get("CI"):
            pytest.fail(words)
        pytest.skip(words)
    first_job = random.SystemRandom().randrange(1000, 9000)
    made = script.Shape(**{"first_job": first_job, **shape})
    cluster = script.DevCluster(short_folder(), made)
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
