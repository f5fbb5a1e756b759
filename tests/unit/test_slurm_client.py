"""Running Slurm's commands: silence, refusal, and what they inherit, with fakes on PATH."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from coordinate_eval.clusters.protocol import Job
from coordinate_eval.errors import (
    ClusterError,
    ClusterSilent,
    SubmitLater,
    SubmitRefused,
    UserError,
)
from coordinate_eval.slurm import client
from coordinate_eval.slurm.answers.refusals import refusal
from coordinate_eval.slurm.client import SlurmClient, slurm_configured
from coordinate_eval.slurm.cluster import SlurmCluster
from coordinate_eval.slurm.settings import SlurmSettings

FAKES = Path(__file__).parents[1] / "fakes"

Says = Callable[..., None]


@pytest.fixture
def says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Says:
    """Makes every Slurm command print and exit as given."""
    for command in ("sbatch", "squeue", "sinfo", "scontrol", "scancel"):
        (tmp_path / command).symlink_to(FAKES / "says")
    monkeypatch.delenv("SLURM_CONF", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)

    def say(output: str = "", words: str = "", status: int = 0, hangs: str = "") -> None:
        monkeypatch.setenv("FAKE_OUTPUT", output)
        monkeypatch.setenv("FAKE_WORDS", words)
        monkeypatch.setenv("FAKE_STATUS", str(status))
        monkeypatch.setenv("FAKE_HANGS", hangs)

    say()
    return say


@pytest.mark.parametrize(
    "words",
    [
        "slurm_load_jobs error: Unable to contact slurm controller (connect failure)",
        "sbatch: error: Batch job submission failed: Socket timed out on send/recv operation",
        "slurm_load_node error: Zero Bytes were transmitted or received",
        "sbatch: error: Munge encode failed: Failed to connect to the munge socket",
        "error: If munged is up, restart with --num-threads=10\n"
        "squeue: error: Munge encode failed: Failed to access",
        "sbatch: error: Slurm temporarily unable to accept job, sleeping and retrying",
        "sbatch: error: Slurm temporarily unable to accept job, sleeping and retrying\n"
        "sbatch: error: Batch job submission failed: Socket timed out on send/recv operation",
        "slurm_load_jobs error: Slurm backup controller in standby mode",
        "sbatch: error: Batch job submission failed: Protocol authentication error",
        "sinfo: fatal: Could not establish a configuration source",
    ],
)
@pytest.mark.parametrize("command", ["sbatch", "squeue"])
def test_no_answer_is_silence(says: Says, command: str, words: str) -> None:
    says(words=words, status=1)
    with pytest.raises(ClusterSilent, match="no answer") as caught:
        SlurmClient(5).run(command)
    assert words in str(caught.value)


def test_a_command_that_hangs_is_silence(says: Says) -> None:
    says(hangs="yes")
    with pytest.raises(ClusterSilent, match=r"0\.2 s"):
        SlurmClient(0.2).run("squeue")


def test_a_command_that_prints_on_is_ended(says: Says, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "MOST_BYTES", 1000)
    says(output="x" * 2000, hangs="yes")
    with pytest.raises(ClusterSilent, match=r"squeue printed more than .* try again later"):
        SlurmClient(3600).run("squeue")


@pytest.mark.parametrize(
    "words",
    [
        "sbatch: error: Slurm temporarily unable to accept job, sleeping and retrying\n",
        "sbatch: error: Slurm job queue full, sleeping and retrying.\n",
        "sbatch: Job creation temporarily disabled, retrying\n",
    ],
)
def test_an_sbatch_that_would_ask_again_by_itself_is_ended_and_refused_for_now(
    says: Says, words: str
) -> None:
    says(words=words, hangs="yes")
    with pytest.raises(SubmitRefused) as caught:
        SlurmClient(290).run("sbatch")
    assert isinstance(refusal(str(caught.value), "sbatch", gpus=True), SubmitLater)


def test_an_sbatch_that_says_nothing_is_silence(says: Says) -> None:
    says(hangs="yes")
    with pytest.raises(ClusterSilent, match=r"0\.5 s"):
        SlurmClient(0.5).run("sbatch", script="#!/bin/sh")


@pytest.mark.parametrize(
    "words",
    [
        "sbatch: error: Batch job submission failed: Invalid qos specification",
        "sbatch: error: Batch job submission failed: Job violates accounting/QOS policy "
        "(job submit limit, user's size and/or time limits)",
        "sbatch: error: Batch job submission failed: Requested node configuration is not available",
        "sbatch: error: Slurm job queue full, sleeping and retrying.\n"
        "sbatch: error: Batch job submission failed: Resource temporarily unavailable",
    ],
)
def test_a_refused_job_is_not_silence(says: Says, words: str) -> None:
    says(words=words, status=1)
    with pytest.raises(SubmitRefused) as caught:
        SlurmClient(5).run("sbatch", "--parsable")
    assert words in str(caught.value)
    with pytest.raises(ClusterError) as other:
        SlurmClient(5).run("scontrol", "show")
    assert type(other.value) is ClusterError


def test_a_job_longer_than_its_partition_allows_is_refused(says: Says, tmp_path: Path) -> None:
    says(output="PartitionName=low Default=YES MaxTime=01:00:00 State=UP\n")
    job = Job(name="n", argv=("x",), minutes=240, requeue=True, log=str(tmp_path / "log"))
    with pytest.raises(SubmitRefused, match="allows jobs of 60 minutes, and n asks for 240"):
        SlurmCluster(SlurmSettings()).submit(job)
    with pytest.raises(ClusterSilent):  # sbatch is asked: a QOS may allow more
        SlurmCluster(SlurmSettings(qos="long")).submit(job)


def test_a_partition_that_is_down_queues_jobs(says: Says) -> None:
    cluster = SlurmCluster(SlurmSettings())
    says(output="PartitionName=low Default=YES State=DOWN\n")
    assert not cluster.whole_nodes()


LINEAR = "SelectType              = select/linear\nSelectTypeParameters    = CR_MEMORY\n"


@pytest.mark.parametrize(
    ("config", "settings", "oversubscribe", "whole"),
    [
        ("", {}, "NO", False),
        ("", {}, "EXCLUSIVE", True),
        ("", {"extra_args": ("--exclusive",)}, "NO", True),
        ("", {"extra_args": ("--exclusive=user",)}, "NO", False),
        (LINEAR, {}, "NO", True),
        (LINEAR, {}, "YES:4", True),
        (LINEAR, {}, "FORCE:4", False),
        ("SelectType = select/cons_tres\nX = select/linear\n", {}, "NO", False),
    ],
)
def test_who_gets_whole_nodes_is_recognized_or_said(
    says: Says, config: str, settings: dict[str, Any], oversubscribe: str, whole: bool
) -> None:
    says(f"{config}PartitionName=low Default=YES State=UP OverSubscribe={oversubscribe}\n")
    cluster = SlurmCluster(SlurmSettings(cpu_partition="low", **settings))
    assert cluster.whole_nodes() is whole
    asked = cluster.client.calls.copy()
    assert cluster.whole_nodes() is whole
    assert cluster.client.calls == asked  # only once
    if whole:
        with pytest.raises(UserError, match=r"get whole nodes: set .* cpu_partition"):
            SlurmCluster(SlurmSettings(**settings)).whole_nodes()


def test_a_partition_that_drains_takes_nothing(says: Says) -> None:
    cluster = SlurmCluster(SlurmSettings())
    says(output="PartitionName=low Default=YES State=DRAIN\n")
    with pytest.raises(UserError, match="low is DRAIN; try again later"):
        cluster.whole_nodes()
    says(output="PartitionName=low Default=YES State=UP\n")
    assert not cluster.whole_nodes()


def test_cancelling_nothing_asks_nothing(says: Says) -> None:
    cluster = SlurmCluster(SlurmSettings())
    cluster.cancel([])
    cluster.cancel(["not-an-id"])
    assert not cluster.client.calls
    cluster.cancel([str(number) for number in range(1001)])
    assert cluster.client.calls["scancel"] == 3


def test_cancelling_what_has_ended_is_no_error_and_what_is_anothers_is(says: Says) -> None:
    cluster = SlurmCluster(SlurmSettings())
    ended = "scancel: error: Kill job error on job id 1: Invalid job id specified"
    says(words=ended, status=1)
    cluster.cancel(["1"])
    denied = "scancel: error: Kill job error on job id 2: Access/permission denied"
    says(words=f"{ended}\n{denied}", status=1)
    with pytest.raises(ClusterError, match="denied"):
        cluster.cancel(["1", "2"])


def test_a_missing_command_is_the_users_to_mend(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SLURM_CONF", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UserError, match="squeue is not on PATH"):
        SlurmClient(5).run("squeue")


def test_a_configuration_that_is_missing_is_told_and_still_means_slurm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_CONF", str(tmp_path / "gone.conf"))
    assert slurm_configured()
    with pytest.raises(UserError, match=r"gone\.conf"):
        SlurmCluster(SlurmSettings()).nodes()


def test_a_configuration_in_a_closed_folder_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def closed(path: Path) -> bool:  # as for an ordinary user; root can read everything
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setenv("SLURM_CONF", "/closed/slurm.conf")
    monkeypatch.setattr(Path, "is_file", closed)
    with pytest.raises(UserError, match=r"/closed/slurm\.conf.*that you can read"):
        SlurmClient(5)


def test_commands_without_any_configuration_are_no_slurm(says: Says) -> None:
    if Path("/etc/slurm/slurm.conf").exists():
        pytest.skip("this machine has a Slurm configuration")
    says(words="scontrol: fatal: Could not establish a configuration source", status=1)
    assert not slurm_configured()
    says(words="Slurmctld(primary) at head is DOWN", status=1)
    assert slurm_configured()


def test_nodes_are_asked_for_with_one_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SLURM_CONF", raising=False)
    monkeypatch.setenv("PATH", str(FAKES / "slurm-24.11"), prepend=os.pathsep)
    cluster = SlurmCluster(SlurmSettings(constraint="h200&ib"))
    nodes, busy = cluster.nodes()
    assert [(node.name, node.free_gpus, node.cpus, node.memory_gib) for node in nodes] == [
        ("a1", 5, 100, 500)
    ]
    assert [node.name for node in busy] == ["a2"]
    cluster.nodes()
    assert cluster.client.calls == {"scontrol": 4}


@pytest.mark.parametrize("variable", ["SLURM_CLUSTERS", "SBATCH_CLUSTERS"])
@pytest.mark.parametrize("value", ["gpu2", "all", "dev,gpu2"])
def test_another_cluster_than_the_one_that_is_asked_is_refused_before_anything_else(
    says: Says, monkeypatch: pytest.MonkeyPatch, variable: str, value: str
) -> None:
    says(output="ClusterName             = dev\n")
    monkeypatch.setenv(variable, value)
    client = SlurmClient(5)
    for command in ("squeue", "sbatch"):
        with pytest.raises(UserError, match=f"{variable} is '{value}'.*cluster 'dev'.*SLURM_CONF"):
            client.run(command)
    assert set(client.calls) == {"scontrol"}


def test_a_cluster_may_be_named_that_is_asked_anyway(
    says: Says, monkeypatch: pytest.MonkeyPatch
) -> None:
    says(output="ClusterName             = dev\n")
    monkeypatch.setenv("SLURM_CLUSTERS", "DEV")
    client = SlurmClient(5)
    client.run("squeue")
    client.run("squeue")
    assert client.calls == {"scontrol": 1, "squeue": 2}
    says(words="slurm_load_ctl_conf error: Unable to contact slurm controller", status=1)
    with pytest.raises(ClusterSilent):
        SlurmClient(5).run("squeue")


def test_a_job_with_more_memory_than_any_may_have_is_refused(says: Says, tmp_path: Path) -> None:
    says(output="PartitionName=low Default=YES State=UP MaxMemPerNode=100000\n")
    job = Job(name="n", argv=("x",), minutes=5, memory_mib=200_000, log=str(tmp_path / "log"))
    with pytest.raises(
        SubmitRefused, match=r"MaxMemPerNode allows .* 100,000 .* for 200,000: lower"
    ):
        SlurmCluster(SlurmSettings()).submit(job)
    with pytest.raises(ClusterSilent):  # sbatch is asked
        SlurmCluster(SlurmSettings(memory=False)).submit(job)


def test_what_is_shown_has_the_cpus_of_what_is_submitted_once_limits_are_known(
    says: Says, tmp_path: Path
) -> None:
    says(output="PartitionName=low Default=YES State=UP MaxMemPerCPU=1000\n")
    job = Job(name="n", argv=("x",), minutes=5, memory_mib=2500, log=str(tmp_path / "log"))
    cluster = SlurmCluster(SlurmSettings())
    assert "--cpus-per-task=1 " in cluster.shown(job).command
    assert not cluster.calls  # what is shown asks nothing
    with pytest.raises(ClusterSilent):  # the fake prints no id
        cluster.submit(job)
    assert "--cpus-per-task=3 " in cluster.shown(job).command
