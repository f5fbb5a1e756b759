"""Rules of a site that change what jobs get: memory that costs CPUs, and cores with two CPUs."""

import subprocess
from collections.abc import Callable, Iterator

import pytest

from coordinate_eval.cluster import Job, State
from coordinate_eval.coordinator.inputs.settings import Settings
from coordinate_eval.coordinator.planning.places import nodes as select
from coordinate_eval.slurm.cluster import SlurmCluster
from coordinate_eval.slurm.settings import SlurmSettings
from tests.runs import until
from tests.slurm.clusters import cluster_of
from tests.slurm.jobs import not_ended
from tests.slurm.runs import queue

KEEPER_GIB = 14.0
SETTINGS = Settings.model_validate({"trial": {"cpus": 8, "memory_gib": 32}, "stage": {"cpus": 4}})
WAITS = "import time; time.sleep(600)"


@pytest.fixture
def two_threads() -> Iterator[None]:
    """A node of 64 CPUs, two to a core, on which 4,000 MiB cost a CPU."""
    with cluster_of(nodes=1, cpus=64, threads=2):
        change = ["scontrol", "update", "PartitionName=low", "MaxMemPerCPU=4000"]
        subprocess.run(change, check=True)
        yield


@pytest.mark.parametrize("memory", [True, "per-cpu"])
def test_as_many_trials_start_as_are_planned_where_memory_costs_cpus(
    two_threads: None, job: Callable[..., Job], memory: bool | str
) -> None:
    site = SlurmSettings.model_validate({"timeout_seconds": 30, "memory": memory})
    cluster = SlurmCluster(site)
    (node,), _ = cluster.nodes()
    assert (node.cpus, node.cpus_per_core, node.gib_per_cpu) == (64, 2, 4000 / 1024)
    (chosen,) = select.nodes_with_room([node], [], SETTINGS, 1, KEEPER_GIB)
    # 32 GiB cost 9 CPUs, which are 5 cores; the keeper gets 4 CPUs.
    assert chosen.trials == 6
    trial = {"gpus": 1, "gpu_type": "h200", "cpus": 8, "memory_mib": 32 * 1024}
    keeper = {"gpu_work": True, "cpus": chosen.keeper_cpus, "memory_mib": int(KEEPER_GIB * 1024)}
    cluster.submit(job(WAITS, name="keeper", node=node.name, **keeper))
    cluster.submit(job(WAITS, name="trials", node=node.name, count=chosen.trials, **trial))
    wanted = chosen.trials + 1

    def all_run() -> bool:
        tasks = not_ended(cluster)
        return [task.state for task in tasks] == [State.RUNNING] * wanted

    until(all_run, "a keeper and all trials")
    cluster.submit(job(WAITS, name="another", node=node.name, **trial))
    until(
        lambda: any("another" in line and "PENDING" in line for line in queue()), "one that waits"
    )
    assert cluster.nodes()[0] == []  # no CPU is left
    cluster.cancel([task.job_id for task in not_ended(cluster)])
    until(lambda: not queue(), "an empty cluster")
