"""Jobs where the settings name several partitions or QOS: pinned to a node, and kept out of one."""

import os
from pathlib import Path

import pytest

from coordinate_eval.clusters.protocol import Job, Waits
from coordinate_eval.errors import SubmitRefused
from coordinate_eval.slurm.cluster import SlurmCluster
from coordinate_eval.slurm.settings import SlurmSettings

TESTS = Path(__file__).parents[1]


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SlurmCluster:
    """A cluster that refuses a job whose node is not in all of its partitions."""
    (tmp_path / "sbatch").symlink_to(TESTS / "fakes" / "enforcing_sbatch")
    monkeypatch.delenv("SLURM_CONF", raising=False)
    for folder in (TESTS / "fakes" / "slurm-24.11", tmp_path):
        monkeypatch.setenv("PATH", str(folder), prepend=os.pathsep)
    return SlurmCluster(SlurmSettings(partition="whole,low"))


def job(folder: Path, node: str | None) -> Job:
    return Job(name="n", argv=("x",), node=node, gpus=1, minutes=5, log=str(folder / "log"))


def partitions(cluster: SlurmCluster, made: Job) -> str:
    (found,) = [
        word for word in cluster.shown(made).command.split() if word.startswith("--partition=")
    ]
    return found.removeprefix("--partition=")


def test_a_pinned_job_goes_to_the_partitions_of_its_node_alone(
    cluster: SlurmCluster, tmp_path: Path
) -> None:
    cluster.nodes()
    assert cluster.submit(job(tmp_path, "a1")) == "7"
    assert cluster.client.calls["scontrol"] == 4  # partitions, configuration, nodes, accounting
    assert partitions(cluster, job(tmp_path, "a1")) == "low"
    assert partitions(cluster, job(tmp_path, None)) == "whole,low"


def test_the_partitions_of_a_node_are_asked_for_where_nodes_were_not_read(
    cluster: SlurmCluster, tmp_path: Path
) -> None:
    assert partitions(cluster, job(tmp_path, "a1")) == "whole,low"
    assert not cluster.client.calls  # what is shown asks nothing
    assert cluster.submit(job(tmp_path, "a1")) == "7"
    assert partitions(cluster, job(tmp_path, "a1")) == "low"


def test_a_node_that_slurm_does_not_know_is_for_sbatch_to_refuse(
    cluster: SlurmCluster, tmp_path: Path
) -> None:
    with pytest.raises(SubmitRefused, match=r"not in this partition(.|\n)*--partition=whole,low"):
        cluster.submit(job(tmp_path, "gone"))


def test_one_partition_needs_no_list_of_nodes(cluster: SlurmCluster, tmp_path: Path) -> None:
    one = SlurmCluster(SlurmSettings(partition="low"))
    assert one.submit(job(tmp_path, "a1")) == "7"
    assert one.client.calls["scontrol"] == 3  # partitions, configuration, accounting


@pytest.mark.parametrize(
    ("reason", "never", "waits"),
    [
        ("AccountNotAllowed", False, Waits.CLUSTER),
        ("PartitionTimeLimit", False, Waits.CLUSTER),
        ("QOSMaxGRESPerJob", False, Waits.CLUSTER),
        ("BadConstraints", True, Waits.PERSON),  # Slurm holds the job for good
        ("ReservationDeleted", True, Waits.PERSON),
        ("Priority", False, Waits.TURN),
    ],
)
def test_what_keeps_a_job_out_of_one_partition_ends_no_wait(
    cluster: SlurmCluster, tmp_path: Path, reason: str, never: bool, waits: Waits
) -> None:
    (tmp_path / "squeue").write_text(f"#!/bin/sh\nprintf '\\0367_0|PENDING|{reason}||ce-t\\n'\n")
    (tmp_path / "squeue").chmod(0o755)
    one = SlurmCluster(SlurmSettings(partition="low"))
    several_qos = SlurmCluster(SlurmSettings(qos="a,b"))
    for with_choice in (cluster, several_qos):
        [task] = with_choice.poll("ce-")
        assert (task.never_starts, task.waits) == (never, waits)
        assert ("in one of its partitions or QOS" in task.means) == (waits is Waits.CLUSTER)
        assert task.reason == reason
    [task] = one.poll("ce-")
    assert task.never_starts == (reason != "Priority")
