"""scripts/slurm_dev.py from its command line, beside another cluster of its kind."""

import os
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from tests.dev_cluster import SCRIPT, DevCluster
from tests.runs import until
from tests.slurm.clusters import short_folder


def slurm_dev(*args: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, SCRIPT, *args],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        check=False,
    )


def processes_with(variable: str) -> list[int]:
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            if variable.encode() in path.read_bytes().split(b"\0"):
                found.append(int(path.parent.name))
        except OSError:
            continue
    return found


STUBBORN = """#!/bin/bash
trap '' TERM
touch "$1"
setsid -f sleep 300
while :; do sleep 1; done
"""


def test_up_twice_then_down_leaves_nothing(slurm_cluster: DevCluster, tmp_path: Path) -> None:
    folder = short_folder()
    shape = ("--nodes", "2", "--gpus", "1", "--cpus", "4")
    conf = folder / "slurm.conf"
    try:
        first = slurm_dev("up", "--dir", str(folder), *shape)
        assert (first.returncode, first.stdout) == (0, f"export SLURM_CONF={conf}\n"), first.stderr
        # What is lost comes back; what runs is left alone.
        controller = (folder / "run/slurmctld.pid").read_text()
        os.kill(int((folder / "run/slurmd.node2.pid").read_text()), 9)
        assert slurm_dev("status", "--dir", str(folder)).returncode == 1
        assert slurm_dev("up", "--dir", str(folder), *shape).stdout == first.stdout
        assert (folder / "run/slurmctld.pid").read_text() == controller
        assert slurm_dev("status", "--dir", str(folder)).returncode == 0
        other = slurm_dev("up", "--dir", str(folder), "--nodes", "3")
        assert other.returncode == 2
        assert "another shape" in other.stderr

        sbatch = partial(subprocess.run, env={**os.environ, "SLURM_CONF": str(conf)}, check=True)
        sbatch(["sbatch", "--wait", "-N2", "--gres=gpu:h200:1", "-o/dev/null", "--wrap", "true"])
        started = tmp_path / "started"
        sbatch(["sbatch", "-o/dev/null", "/dev/stdin", str(started)], input=STUBBORN.encode())
        until(started.exists, "a job that does not listen")
        assert processes_with(f"SLURM_CONF={conf}")
    finally:
        down = slurm_dev("down", "--dir", str(folder))
    assert down.returncode == 0, down.stderr
    assert not folder.exists()
    assert processes_with(f"SLURM_CONF={conf}") == []
    answer = subprocess.run(["scontrol", "ping"], check=False, env=os.environ)
    assert answer.returncode == 0, "the other cluster does not answer any more"
    assert slurm_dev("down", "--dir", str(folder)).returncode == 0


@pytest.mark.skipif(os.geteuid() != 0, reason="says first that it needs root")
def test_a_folder_too_long_for_sockets_is_refused(tmp_path: Path) -> None:
    done = slurm_dev("up", "--dir", str(tmp_path / ("x" * 80)))
    assert done.returncode == 2
    assert "characters" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_folder_of_something_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "precious").touch()
    for command in ("down", "status"):
        assert slurm_dev(command, "--dir", str(tmp_path)).returncode != 0
    assert (tmp_path / "precious").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="says first that it needs root")
def test_missing_packages_are_named_with_the_command_to_install_them(tmp_path: Path) -> None:
    done = slurm_dev("up", "--dir", str(tmp_path / "x"), PATH=str(tmp_path))
    assert done.returncode == 2
    assert done.stdout == ""
    assert "apt-get install -y slurm-wlm slurm-client munge" in done.stderr
    assert not (tmp_path / "x").exists()
