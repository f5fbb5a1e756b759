"""Runs on a Ray cluster of several nodes: what is lost of it changes no score."""

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from tests.cluster_contract import PROMISES, Trial
from tests.ray_servers import GPUS, TYPE, Servers
from tests.runs import PATIENCE_SECONDS, Workspace, begun, kill, processes, scores, trials, until
from tests.tiny import tiny_model

from coordinate_eval.clusters.protocol import End
from coordinate_eval.clusters.ray.cluster import RayCluster

DATASETS = ("tiny_choice", "tiny_sums")


@pytest.fixture(scope="module")
def servers() -> Iterator[Servers]:
    made = Servers()
    try:
        made.start_head()
        made.start_node()
        made.start_node()
        yield made
    finally:
        made.stop()


@pytest.fixture(scope="module")
def expected(user: Workspace) -> dict[str, Any]:
    """The scores of a run on one machine."""
    run = user.folder / "on one machine"
    user.call("run", tiny_model(), "--suite", user.suite(*DATASETS), "--run-dir", run)
    return scores(run)


@pytest.fixture(scope="module")
def caller(user: Workspace, servers: Servers, expected: dict[str, Any]) -> Workspace:
    """The same user, who calls on a node of the cluster. The prompts are built."""
    made = Workspace(user.folder)
    made.environ |= servers.environ
    made.environ |= {
        "COORDINATE_EVAL_CLUSTER": "ray",
        "COORDINATE_EVAL_RAY_ADDRESS": servers.address,
        "COORDINATE_EVAL_TRIAL_CPUS": "1",
    }
    return made


def asked(caller: Workspace, run: Path, *more: object) -> tuple[object, ...]:
    suite = caller.suite(*DATASETS)
    return "run", tiny_model(), "--suite", suite, "--run-dir", run, *more


def nothing_runs(run: Path) -> None:
    def alive() -> list[int]:
        jobs = ("_supervise", "_build", "_keep", "_trial", "_metric", "_score")
        return [pid for job in jobs for pid in processes(job, str(run))]

    until(lambda: not alive(), "an end of its jobs")


def supervisor(run: Path, epoch: int) -> int:
    """The process that supervises a run since an epoch."""
    return int(json.loads((run / "supervisor" / f"{epoch}.json").read_text())["pid"])


def lose_supervisor(run: Path, epoch: int) -> None:
    """End the worker of Ray that runs a supervisor, and wait for the next one."""
    pid = supervisor(run, epoch)
    worker = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1]
    kill([int(worker)])
    until(lambda: pid not in processes("_supervise", str(run)), "its end")
    until((run / "supervisor" / f"{epoch + 1}.json").exists, "another supervisor")


def memory_is_empty(caller: Workspace, servers: Servers) -> None:
    """No weights are left in the memory of nodes that were not lost."""
    names = servers.names()
    until(lambda: not [path for name in names for path in caller.memory.rglob(name)], "no weights")


def test_the_doctor_sees_the_cluster(caller: Workspace, servers: Servers) -> None:
    done = caller.call(
        "doctor", "--submit", "--json", HF_HUB_OFFLINE="1",
        COORDINATE_EVAL_RAY_ADDRESS="auto", RAY_ADDRESS=servers.address,
    )  # fmt: skip
    here, *there = json.loads(done.stdout)["answers"]
    said = {each["check"]: each["found"] for each in here["findings"]}
    assert said["scheduler"].startswith("Ray ")
    assert said[f"GPUs {TYPE}"].startswith(f"{2 * GPUS} free on 2 nodes")
    assert [each["where"] for each in there] == ["in a job with a GPU", "in a job without a GPU"]
    for each in there:
        assert "runs_dir" in {finding["check"] for finding in each["findings"]}


def test_a_supervisor_is_started_again_and_a_run_cancelled(
    caller: Workspace, servers: Servers
) -> None:
    run = caller.folder / "cancelled"
    asked_for = asked(caller, run, *caller.pause("cancelled").args)
    caller.call(*asked_for)
    begun(run)
    lose_supervisor(run, 1)
    lose_supervisor(run, 2)
    kill([supervisor(run, 3)])  # its worker lives
    until((run / "supervisor" / "4.json").exists, "another supervisor")
    caller.call("cancel", run)
    nothing_runs(run)
    memory_is_empty(caller, servers)


@pytest.fixture(scope="module")
def cluster(servers: Servers) -> Iterator[RayCluster]:
    """The cluster as this process sees it."""
    with (
        mock.patch.dict(os.environ, servers.environ),
        RayCluster(servers.address, {}) as cluster,
    ):
        yield cluster


@pytest.mark.parametrize("promise", PROMISES, ids=lambda promise: promise.__name__)
def test_it_keeps_what_every_cluster_promises(
    cluster: RayCluster, tmp_path: Path, promise: Callable[[Trial], None]
) -> None:
    trial = Trial(cluster, tmp_path)
    try:
        promise(trial)
    finally:
        trial.close()


def test_a_job_that_fails_has_failed(cluster: RayCluster, tmp_path: Path) -> None:
    trial = Trial(cluster, tmp_path)
    for script in ("exit 3", "kill -9 $$"):
        trial.submit(script, script)
        assert trial.ended(script) == {End.FAILED}


def test_a_run_goes_on_by_itself_though_a_node_is_lost(
    caller: Workspace, servers: Servers, expected: dict[str, Any]
) -> None:
    run, names, pause = caller.folder / "node lost", servers.names(), caller.pause("node lost")
    done = caller.call(*asked(caller, run, *pause.args, "--nodes", ",".join(names)))
    assert Path(done.stdout.strip()) == run
    until(lambda: {trial.node for trial in trials(run)} == {*names}, "a trial on each node", run)
    shown = json.loads(caller.call("status", run, "--json").stdout)
    assert any(job["what"].startswith("super") for job in shown["jobs"])
    servers.kill(trials(run)[0].node)
    pause.end()
    assert scores(run) == expected
    nothing_runs(run)
    servers.start_node()


def test_the_head_is_lost_and_a_supervisor_waits(
    caller: Workspace, servers: Servers, expected: dict[str, Any]
) -> None:
    run, pause = caller.folder / "head lost", caller.pause("head lost")
    process = caller.start(*asked(caller, run, *pause.args), "--wait", "--json")
    begun(run)
    servers.kill_head()
    pause.end()
    servers.start_head()
    servers.start_node()
    servers.start_node()
    out, err = process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == 0, err
    assert json.loads(out)["results"] == expected
    nothing_runs(run)
