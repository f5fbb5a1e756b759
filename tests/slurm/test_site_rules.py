"""Rules of a site: memory that costs CPUs, cores with two CPUs, and plugins that refuse jobs."""

import subprocess
from collections.abc import Callable, Iterator

import pytest

from coordinate_eval.clusters.protocol import Job, State
from coordinate_eval.coordinator.inputs.settings import Settings
from coordinate_eval.coordinator.planning.places import nodes as select
from coordinate_eval.errors import SettingsRefused, SubmitRefused
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
    site = SlurmSettings.model_validate({"memory": memory})
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


JOB_SUBMIT = """
function slurm_job_submit(job, partitions, user)
  if job.partition == nil then
    slurm.log_user("Please choose one of our partitions.")
    return slurm.ERROR
  end
  if job.gres == nil and job.tres_per_node == nil then
    slurm.log_user("No GPUs requested.")
    return 2072 -- ESLURM_INVALID_GRES
  end
  return slurm.SUCCESS
end
function slurm_job_modify(job, record, partitions, user) return slurm.SUCCESS end
return slurm.SUCCESS
"""

CLI_FILTER = """
function slurm_cli_setup_defaults(options, early) return slurm.SUCCESS end
function slurm_cli_pre_submit(options, offset)
  if options["mem"] ~= nil and options["mem"] ~= "-2" then
    slurm.log_error("Memory by node is not supported. Use --mem-per-cpu.")
    return slurm.ERROR
  end
  return slurm.SUCCESS
end
function slurm_cli_post_submit(offset, job, step) return slurm.SUCCESS end
return slurm.SUCCESS
"""


@pytest.fixture(scope="module")
def strict_site() -> Iterator[None]:
    """A cluster whose plugins refuse jobs in their own words."""
    with cluster_of(nodes=1) as cluster:
        (cluster.dir / "job_submit.lua").write_text(JOB_SUBMIT)
        (cluster.dir / "cli_filter.lua").write_text(CLI_FILTER)
        cluster.stop_controller()
        plugins = "\nJobSubmitPlugins=lua\nCliFilterPlugins=lua\n"
        cluster.conf.write_text(cluster.conf.read_text() + plugins)
        cluster.start_controller()
        yield


@pytest.mark.parametrize(
    ("site", "fields", "kind", "words"),
    [
        ({}, {"gpus": 1}, SettingsRefused, r'Use --mem-per-cpu.*: \[slurm\] memory \("per-cpu"'),
        ({"memory": "per-cpu"}, {"gpus": 1}, SettingsRefused, r"our part.*: \[slurm\] partition"),
        # A job with GPUs does a keeper's work; all others go to another partition.
        ({"memory": "per-cpu", "partition": "low"}, {"gpu_work": True}, SubmitRefused, "No GPUs"),
        (
            {"memory": "per-cpu", "partition": "low"},
            {},
            SettingsRefused,
            r"No GPUs.*: set \[slurm\] cpu_partition",
        ),
    ],
)
def test_a_plugins_own_words_name_the_setting(
    strict_site: None,
    job: Callable[..., Job],
    site: dict[str, str],
    fields: dict[str, object],
    kind: type[SubmitRefused],
    words: str,
) -> None:
    cluster = SlurmCluster(SlurmSettings.model_validate(site))
    with pytest.raises(SubmitRefused, match=words) as caught:
        cluster.submit(job("pass", **fields))
    assert type(caught.value) is kind


def test_a_job_that_heeds_them_is_taken(strict_site: None, job: Callable[..., Job]) -> None:
    site = {"memory": "per-cpu", "partition": "low"}
    cluster = SlurmCluster(SlurmSettings.model_validate(site))
    cluster.submit(job("pass", gpus=1, cpus=3, memory_mib=1000))
    until(lambda: not not_ended(cluster), "the job to end")
