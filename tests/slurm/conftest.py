"""A real controller and four slurmd on this machine, for the whole session."""

import importlib.util
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Protocol

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "slurm_dev.py"


class DevCluster(Protocol):
    """What the tests use of `DevCluster` in scripts/slurm_dev.py."""

    dir: Path
    conf: Path

    def start_controller(self) -> None: ...
    def stop_controller(self) -> None: ...
    def start_node(self, name: str) -> None: ...
    def kill_node(self, name: str) -> None: ...


def _slurm_dev() -> ModuleType:
    spec = importlib.util.spec_from_file_location("slurm_dev", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["slurm_dev"] = module
    spec.loader.exec_module(module)
    return module


def short_folder() -> Path:
    """A new folder for a cluster; pytest's own have too long names for the sockets of jobs."""
    return Path(tempfile.mkdtemp(prefix="slurm-"))


@pytest.fixture(scope="session")
def slurm_cluster() -> Iterator[DevCluster]:
    """A cluster that is up, with SLURM_CONF set."""
    slurm_dev = _slurm_dev()
    if os.geteuid() != 0 or shutil.which("slurmctld") is None:
        words = f"needs Slurm, as root: {slurm_dev.INSTALL}"
        if os.environ.get("CI"):
            pytest.fail(words)
        pytest.skip(words)
    cluster = slurm_dev.DevCluster(short_folder())
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
