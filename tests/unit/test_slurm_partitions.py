"""Partitions, and what the cluster says of itself, as each version of Slurm prints them."""

import math

import pytest

from coordinate_eval.slurm.answers.partitions import (
    ClusterConfig,
    MemoryLimits,
    Partition,
    read_config,
    read_partitions,
)


def test_partitions_are_read_with_their_limits() -> None:
    text = (
        "PartitionName=low AllowGroups=ALL Default=YES OverSubscribe=NO TRES=cpu=512,node=4 "
        "MaxTime=UNLIMITED State=UP DefMemPerNode=UNLIMITED MaxMemPerNode=UNLIMITED\n"
        "PartitionName=whole Default=NO OverSubscribe=EXCLUSIVE MaxTime=1-02:30:00 QoS=pq "
        "State=DRAIN\n\n"
        "PartitionName=mem QoS=N/A MaxCPUsPerNode=40 DefMemPerCPU=3000 MaxMemPerCPU=4000\n"
    )
    assert list(read_partitions(text).values()) == [
        Partition(name="low", default=True, whole=False, state="UP", minutes=math.inf),
        Partition("whole", default=False, whole=True, state="DRAIN", minutes=1590, qos="pq"),
        Partition(
            name="mem",
            default=False,
            whole=False,
            memory=MemoryLimits(most_per_cpu=4000, default_per_cpu=3000),
            most_cpus=40,
        ),
    ]
    assert [partition.words() for partition in read_partitions(text).values()] == [
        "state UP, jobs of any length",
        "state DRAIN, jobs of at most 1590 minutes, whole nodes only",
        "state UP, jobs of any length",
    ]


@pytest.mark.parametrize(
    ("fields", "whole"),
    [
        # 22.05 and 24.11
        ("ExclusiveUser=NO OverSubscribe=NO", False),
        ("ExclusiveUser=NO OverSubscribe=EXCLUSIVE", True),
        ("ExclusiveUser=YES OverSubscribe=NO", False),
        # 25.05 and 25.11
        ("ExclusiveTopo=NO ExclusiveUser=NO OverSubscribe=NO", False),
        ("ExclusiveTopo=YES ExclusiveUser=NO OverSubscribe=NO", True),
        # 26.05
        ("Exclusive=NO OverSubscribe=NO", False),
        ("Exclusive=NODE OverSubscribe=NO", True),
        ("Exclusive=TOPO OverSubscribe=NO", True),
        ("Exclusive=USER OverSubscribe=NO", False),
        ("Exclusive=USER OverSubscribe=FORCE:4", False),
    ],
)
def test_a_partition_of_whole_nodes_is_recognized(fields: str, whole: bool) -> None:
    text = f"PartitionName=p AllocNodes=ALL Default=NO {fields} PreemptMode=REQUEUE State=UP\n"
    assert read_partitions(text)["p"].whole is whole


def test_jobs_may_share_nodes_whether_they_ask_for_it_or_not() -> None:
    values = ("NO", "YES:4", "FORCE:4", "FORCE", "EXCLUSIVE")
    text = "".join(f"PartitionName={value} OverSubscribe={value}\n" for value in values)
    found = [each.name for each in read_partitions(text).values() if each.shared]
    assert found == ["FORCE:4", "FORCE"]


def test_the_cluster_says_its_name_and_its_limits() -> None:
    text = (
        "Configuration data as of 2026-11-25T21:10:00\n"
        "ClusterName             = dev\n"
        "DefMemPerCPU            = 1000\n"
        "MaxMemPerNode           = UNLIMITED\n"
        "SelectType              = select/cons_tres\n"
        "SelectTypeParameters    = CR_CORE_MEMORY\n"
    )
    assert read_config(text) == ClusterConfig("dev", False, MemoryLimits(default_per_cpu=1000))
    assert read_config("SelectType = select/linear\nMaxMemPerCPU = 4000\n") == ClusterConfig(
        "", True, MemoryLimits(most_per_cpu=4000)
    )
    assert read_config("") == ClusterConfig()


def test_a_partition_replaces_the_limits_of_its_cluster() -> None:
    cluster = MemoryLimits(most_per_cpu=4000, default_per_cpu=1000)
    assert MemoryLimits().within(cluster) == cluster
    own = MemoryLimits(most_per_cpu=2000, default_per_cpu=500)
    assert own.within(cluster) == own
    # Slurm has one limit or the other.
    assert MemoryLimits(most_per_node=9000).within(cluster) == MemoryLimits(
        most_per_node=9000, default_per_cpu=1000
    )
