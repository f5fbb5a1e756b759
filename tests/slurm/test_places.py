"""Runs on clusters of other kinds: what Slurm does not say, the settings do."""

import contextlib
import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.dev_cluster import DevCluster
from tests.runs import Workspace, scores, until
from tests.slurm.clusters import cluster_of
from tests.slurm.runs import Undisturbed
from tests.tiny import tiny_model


@pytest.fixture(scope="module")
def untyped() -> Iterator[DevCluster]:
    """Two nodes with GPUs for which Slurm has no type."""
    with cluster_of(nodes=2, gpus=2, cpus=32, gres="untyped") as cluster:
        yield cluster


@pytest.fixture(scope="module")
def workspace(
    undisturbed: Undisturbed, untyped: DevCluster, tmp_path_factory: pytest.TempPathFactory
) -> Workspace:
    assert untyped
    return Workspace(tmp_path_factory.mktemp("user")).with_prompts(undisturbed.requests)


def gpu_types(run: Path) -> set[str]:
    """Return the GPU types of a run's plan and of its first round."""
    nodes = [
        node
        for file in (run / "plan.json", run / "rounds" / "0.json")
        for node in json.loads(file.read_text())["nodes"]
    ]
    return {node["gpu_type"] for node in nodes}


@contextlib.contextmanager
def reserved(name: str, *options: str) -> Iterator[str]:
    """Have a reservation with these options of scontrol."""
    create = ["scontrol", "create", "reservation", f"ReservationName={name}", "Users=root"]
    subprocess.run([*create, *options], check=True)
    try:
        yield name
    finally:
        delete = ["scontrol", "delete", f"ReservationName={name}"]
        until(
            lambda: subprocess.run(delete, check=False).returncode == 0,
            "a reservation that no job uses",
        )


@pytest.fixture
def reservation(untyped: DevCluster) -> Iterator[str]:
    """A reservation of the second node."""
    assert untyped
    with reserved("evenings", "StartTime=now", "Duration=1-00:00:00", "Nodes=node2") as name:
        yield name


@pytest.fixture
def maintenance(untyped: DevCluster) -> Iterator[str]:
    """A maintenance of all nodes that begins while a supervisor of usual length would run."""
    assert untyped
    times = "StartTime=now+100minutes", "Duration=10:00:00"
    with reserved("patches", *times, "Flags=MAINT,IGNORE_JOBS", "Nodes=ALL") as name:
        yield name


def asked_minutes(run: Path) -> set[int]:
    """Return the time limits of a run's jobs."""
    jobs = [json.loads(path.read_text())["job"] for path in (run / "jobs").glob("*.json")]
    return {job["minutes"] for job in jobs}


def test_a_run_is_on_the_nodes_of_its_reservation_as_long_as_its_partition_lets_it(
    workspace: Workspace, reservation: str
) -> None:
    create = ["scontrol", "create", "PartitionName=short", "Nodes=ALL", "MaxTime=10", "State=UP"]
    subprocess.run(create, check=True)
    suite = workspace.suite("tiny_choice")
    run = workspace.submit(
        suite, "--reservation", reservation, "--run-dir", workspace.folder / "reserved",
        "--partition", "short", "--gpu-type", "h100", COORDINATE_EVAL_SLURM_GPU_TYPE="h100",
    )  # fmt: skip
    assert scores(run)
    nodes = json.loads((run / "rounds" / "0.json").read_text())["nodes"]
    # Slurm starts jobs there only with the reservation.
    assert [node["name"] for node in nodes] == ["node2"]
    assert gpu_types(run) == {"h100"}
    # The settings would have them ask for 15 minutes at least, and for 4 hours.
    assert asked_minutes(run) == {10}
    refused = workspace.call(
        "run", tiny_model(), "--suite", suite, "--reservation", "nights",
        "--run-dir", workspace.folder / "none", status=2,
    )  # fmt: skip
    assert "reservation nights does not exist" in " ".join(refused.stderr.split())
    assert not (workspace.folder / "none").exists()


def test_a_run_ends_before_a_maintenance(workspace: Workspace, maintenance: str) -> None:
    """Slurm would start none of its jobs before the end of it, were they as long as usual."""
    run = workspace.submit(workspace.suite("tiny_choice"), "--run-dir", workspace.folder / "before")
    assert scores(run)
    assert gpu_types(run) == {""}
    assert max(asked_minutes(run)) <= 94
    warned = workspace.call("doctor", status=None).stdout
    assert f"reservation {maintenance} (" in warned
