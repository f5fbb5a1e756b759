"""Ends of jobs on a real controller: warnings, preemption, restarts."""

import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from coordinate_eval.clusters.protocol import Job
from coordinate_eval.slurm.cluster import SlurmCluster
from coordinate_eval.slurm.settings import SlurmSettings
from tests.slurm.jobs import WITNESS, await_end, witness


@pytest.mark.parametrize("requeue", [False, True])
def test_the_warning_signal_reaches_the_program(
    cluster: SlurmCluster, job: Callable[..., Job], tmp_path: Path, requeue: bool
) -> None:
    path = tmp_path / "witness"
    job_id = cluster.submit(job(WITNESS, str(path), requeue=requeue))
    witness(path, 1)
    subprocess.run(["scancel", "--signal=USR1", "--batch", job_id], check=True)
    assert witness(path, 2)[1][2] == "SIGUSR1"
    await_end(cluster, job("").name)
    exit_code = subprocess.run(
        ["scontrol", "--oneliner", "show", "job", job_id], check=True, capture_output=True
    ).stdout
    assert b" ExitCode=0:0" in exit_code


def test_a_preempted_trial_is_warned(
    cluster: SlurmCluster, job: Callable[..., Job], tmp_path: Path
) -> None:
    path = tmp_path / "witness"
    # node1 had a job while its controller restarted: Slurm 22.05 then starts no other on its GPUs
    # after a preemption.
    cluster.submit(job(WITNESS, str(path), node="node3", gpus=8, name="trial"))
    witness(path, 1)
    urgent = SlurmCluster(SlurmSettings(partition="high"))
    urgent.submit(job("", node="node3", gpus=8, name="urgent"))
    assert witness(path, 2)[1][2] == "SIGUSR1"
    await_end(cluster, "trial")
    await_end(cluster, "urgent")


def test_a_killed_supervisor_comes_back_and_hears_its_end(
    cluster: SlurmCluster, job: Callable[..., Job], tmp_path: Path
) -> None:
    path = tmp_path / "witness"
    job_id = cluster.submit(job(WITNESS, str(path), requeue=True))
    ((first, *_),) = witness(path, 1)
    os.kill(int(first), signal.SIGKILL)
    second, restarts, word = witness(path, 2)[1]
    assert (restarts, word) == ("0", "started")
    assert second != first
    cluster.cancel([job_id])
    assert witness(path, 3)[2] == [second, "0", "SIGTERM"]
    await_end(cluster, job("").name)
    assert len(witness(path, 3)) == 3


def test_a_supervisor_that_always_crashes_ends(
    cluster: SlurmCluster, job: Callable[..., Job], tmp_path: Path
) -> None:
    crash = "import os; print('up', flush=True); os.kill(os.getpid(), 9)"
    job_id = cluster.submit(job(crash, requeue=True))
    await_end(cluster, job("").name)
    log = (tmp_path / f"log.{job_id}.log").read_text()
    assert log.count("up\n") == 6
    assert log.count("ended by signal 9") == 5


def test_a_failing_supervisor_is_not_started_again(
    cluster: SlurmCluster, job: Callable[..., Job], tmp_path: Path
) -> None:
    job_id = cluster.submit(job("import sys; print('up'); sys.exit(3)", requeue=True))
    await_end(cluster, job("").name)
    assert (tmp_path / f"log.{job_id}.log").read_text() == "up\n"


def test_a_requeued_task_knows_its_restart(
    cluster: SlurmCluster, job: Callable[..., Job], tmp_path: Path
) -> None:
    path = tmp_path / "witness"
    job_id = cluster.submit(job(WITNESS, str(path), requeue=True))
    witness(path, 1)
    subprocess.run(["scontrol", "requeue", job_id], check=True)
    lines = witness(path, 3)
    assert [(line[1], line[2]) for line in lines] == [
        ("0", "started"),
        ("0", "SIGTERM"),
        ("1", "started"),
    ]
