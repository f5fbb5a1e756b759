"""A Ray cluster that others have started: its nodes, its tasks, and the process that asks Ray."""

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from coordinate_eval.clusters.protocol import End, Job, State, Waits
from coordinate_eval.clusters.ray import driver
from coordinate_eval.clusters.ray.cluster import Link, RayCluster, of_job
from coordinate_eval.clusters.ray.driver import read_nodes, to_come
from coordinate_eval.clusters.ray.on_node import names_of, what_is_missing
from coordinate_eval.coordinator.inputs import clusters, layers
from coordinate_eval.errors import ClusterSilent, SubmitRefused, UserError


def entry(
    node: str, host: str, resources: Mapping[str, float], *, alive: bool = True
) -> dict[str, Any]:
    """A node as `ray.nodes()` has it."""
    return {
        "NodeID": node,
        "NodeManagerHostname": host,
        "Alive": alive,
        "Resources": resources,
    }


GPUS: dict[str, float] = {"GPU": 8, "CPU": 64, "memory": 512 << 30, "accelerator_type:H100": 1}


def test_nodes_are_free_busy_or_without_gpus() -> None:
    nodes = [
        entry("a", "gpu1", GPUS),
        entry("b", "gpu2", GPUS),
        entry("c", "gpu3", GPUS),
        entry("d", "head", {"CPU": 8}),
        entry("e", "gone", GPUS, alive=False),
    ]
    available = {
        "a": {"GPU": 3.5, "CPU": 16, "memory": float(64 << 30)},
        "b": {"GPU": 0.5},
        "c": GPUS,
    }
    free, busy = read_nodes(nodes, available, {"c": "does not share runs_dir"})
    (one,) = free
    assert (one.name, one.gpus, one.free_gpus, one.gpu_type) == ("gpu1", 8, 3, "H100")
    assert (one.cpus, one.memory_gib, one.gpu_memory_gib) == (16, 64.0, 80.0)
    assert [(each.name, each.why, each.excluded) for each in busy] == [
        ("gpu2", "8 of 8 GPUs in use", False),
        ("gpu3", "does not share runs_dir", True),
    ]


def test_the_memory_of_a_gpu_is_of_its_type_or_of_the_settings() -> None:
    nodes = [
        entry("a", "a", {"GPU": 1, "accelerator_type:A100-40G": 1}),
        entry("b", "b", {"GPU": 1}),
    ]
    available: dict[str, Mapping[str, float]] = {"a": {"GPU": 1}, "b": {"GPU": 1}}
    free, _ = read_nodes(nodes, available, {}, 24)
    assert [(node.gpu_type, node.gpu_memory_gib) for node in free] == [("A100-40G", 40), ("", 24)]


def test_nodes_that_may_come_have_the_type_that_is_asked_for() -> None:
    known = ["H100", "A100-40G"]
    for asked, kind, gib in (("h100", "H100", 80), ("a100-40g", "A100-40G", 40), ("x1", "x1", 24)):
        waited_for = to_come(asked, known, 24)
        assert (waited_for.gpu_type, waited_for.gpu_memory_gib) == (kind, gib)
        assert not waited_for.excluded
    assert to_come("", known, 24).excluded


def test_nodes_of_one_host_have_different_names() -> None:
    nodes = [
        entry("0123456789", "twins", {}),
        entry("abcdefghij", "twins", {}),
        entry("c", "single", {}),
        entry("d", "single", {}, alive=False),
    ]
    assert names_of(nodes) == {
        "0123456789": "twins-01234567",
        "abcdefghij": "twins-abcdefgh",
        "c": "single",
    }


def test_it_is_said_what_a_node_lacks(tmp_path: Path) -> None:
    seen, user = tmp_path / "seen", os.getuid()
    seen.write_text("token")
    assert what_is_missing({"runs_dir": (str(seen), "token")}, sys.executable, user) == ""
    for file, content in ((tmp_path / "hidden", "token"), (seen, "other"), (seen, "tok")):
        why = what_is_missing({"runs_dir": (str(file), content)}, sys.executable, user)
        assert why == f"does not share runs_dir ({tmp_path}) with the machine that calls"
    assert "as user" in what_is_missing({}, sys.executable, user + 1)
    assert "/no/python" in what_is_missing({}, "/no/python", user)


def actor(state: str, cause: object = None) -> dict[str, Any]:
    """A task's actor as Ray lists it."""
    return {
        "Name": f"coordinate-eval-{os.getuid()} 0ab1 2 ce-run.x-trial0-gpu 1",
        "State": state,
        "Address": {"NodeID": "a"},
        "DeathCause": cause,
    }


@pytest.mark.parametrize(
    ("said", "state"),
    [
        ("ALIVE", State.RUNNING),
        ("DEPENDENCIES_UNREADY", State.PENDING),
        ("PENDING_CREATION", State.PENDING),
        ("RESTARTING", State.PENDING),
    ],
)
def test_actors_are_tasks(said: str, state: State) -> None:
    task = driver.read_task(actor(said), {"a": "gpu 1"})
    assert (task.name, task.job_id, task.index) == ("ce-run.x-trial0-gpu 1", "0ab1", 2)
    assert task.state is state
    assert (task.waits is Waits.TURN) == (state is State.PENDING)
    assert task.node == ("gpu 1" if state is State.RUNNING else "")


def test_the_end_of_an_actor_is_told_from_rays_words() -> None:
    messages = pytest.importorskip("ray.core.generated.common_pb2")

    def end(**cause: Any) -> End:
        return driver.read_task(actor("DEAD", messages.ActorDeathCause(**cause)), {}).end

    died, why = messages.ActorDiedErrorContext, messages.ActorDiedErrorContext.Reason.Value
    assert end() is End.UNKNOWN
    assert end(actor_died_error_context=died(reason=why("WORKER_DIED"))) is End.UNKNOWN
    worker = "The actor is dead because its worker process has died. Worker exit detail: "
    for said, how in (
        ("Worker exits unexpectedly. Worker exits with an exit code 1.", End.FAILED),
        ("Worker exits by an user request. Worker exits with an exit code 0.", End.UNKNOWN),
        ("Worker unexpectedly exits with a connection error code 2. End of file.", End.UNKNOWN),
    ):
        told = died(reason=why("WORKER_DIED"), error_message=worker + said)
        assert end(actor_died_error_context=told) is how
    assert end(actor_died_error_context=died(reason=why("NODE_DIED"))) is End.NODE_FAILED
    assert end(oom_context=messages.OomContext()) is End.OUT_OF_MEMORY


class Nodes:
    """Ray, which lists these nodes."""

    def __init__(self, *nodes: dict[str, Any]) -> None:
        self._nodes = list(nodes)

    def nodes(self) -> list[dict[str, Any]]:
        return self._nodes


@pytest.mark.parametrize(
    ("others", "not_on"), [([entry("b", "worker", GPUS)], "!in(a)"), ([], None)]
)
def test_a_supervisor_takes_nothing_and_leaves_a_head_without_cores_alone(
    others: list[dict[str, Any]], not_on: str | None
) -> None:
    pytest.importorskip("ray")
    job = Job(name="n", argv=("a",), cpus=4, minutes=1, log="/l", requeue=True)
    asked = driver.Driver.__new__(driver.Driver)
    asked._ray, asked._good = Nodes(entry("a", "head", {"memory": 1e9}), *others), {"a", "b"}
    found = asked._place(job, {})
    assert found.get("label_selector", {}).get("ray.io/node-id") == not_on
    assert driver.options_of(job)["num_cpus"] == 0
    assert "memory" not in driver.options_of(job)
    others_of_a_run = job.model_copy(update={"requeue": False})
    assert driver.options_of(others_of_a_run)["num_cpus"] == 4


def test_auto_is_the_address_of_the_environment_and_of_nobody_s_processes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = []

    def init(address: str, **options: object) -> None:
        asked.append(address)
        raise ConnectionError("refused")

    monkeypatch.setattr(driver, "_import_ray", lambda: SimpleNamespace(init=init))
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    with pytest.raises(UserError, match="auto needs RAY_ADDRESS"):
        driver.Driver("auto")
    assert not asked
    monkeypatch.setenv("RAY_ADDRESS", "head:1")
    with pytest.raises(ClusterSilent, match="head:1"):
        driver.Driver("auto")
    assert asked == ["head:1"]


def test_what_jobs_get_of_the_caller() -> None:
    job = Job(name="n", argv=("a",), minutes=1, log="/l", needs=("KEY",), without=("HF_SECRET",))
    environ = {
        "COORDINATE_EVAL_ENGINE_NAME": "vllm",
        "HF_HOME": "/shared/hf",
        "HF_SECRET": "x",
        "KEY": "k",
        "MASTER_ADDR": "h",
        "PATH": "/bin",
        "RAY_AUTH_TOKEN": "t",
        "VLLM_CACHE_ROOT": "/home",
    }
    assert of_job(environ, job).keys() == {"COORDINATE_EVAL_ENGINE_NAME", "HF_HOME", "KEY"}


CHILD = """
import json, os, sys
for line in sys.stdin:
    name, arguments = json.loads(line)
    if name == "die":
        sys.exit("its head is gone")
    if name == "hang":
        continue
    reply = [arguments.get("error"), [os.getpid(), arguments]]
    if name == "fail":
        reply = [arguments["error"], "why"]
    print(json.dumps(reply), flush=True)
"""


def link(seconds: float = 60, **first: Any) -> Link:
    return Link(first, (sys.executable, "-c", CHILD), seconds)


def test_a_process_answers_until_it_is_closed() -> None:
    asked = link()
    first, arguments = asked.call("ask", some="ü\n")
    assert arguments == {"some": "ü\n"}
    assert asked.call("ask")[0] == first
    with pytest.raises(SubmitRefused, match="why"):
        asked.call("fail", error="SubmitRefused")
    assert asked.call("ask")[0] == first
    asked.close()
    asked.close()
    assert not Path(f"/proc/{first}").exists()


def test_a_process_that_dies_is_silence_and_another_one_answers() -> None:
    asked = link()
    first, _ = asked.call("ask")
    with pytest.raises(ClusterSilent, match="its head is gone"):
        asked.call("die")
    second, _ = asked.call("ask")
    assert second != first
    with pytest.raises(ClusterSilent, match="why"):
        asked.call("fail", error="ClusterSilent")
    assert asked.call("ask")[0] != second
    asked.close()


def test_a_process_that_hangs_is_ended() -> None:
    asked = link(seconds=0.2)
    with pytest.raises(ClusterSilent, match="no answer"):
        asked.call("hang")
    asked.close()


def test_no_connection_is_said_each_time() -> None:
    asked = link(error="UserError")
    for _ in range(2):
        with pytest.raises(UserError):
            asked.call("ask")
    asked.close()


def test_ray_needs_an_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    asked = {"cluster": "ray"}
    with pytest.raises(UserError, match=r"set \[ray\] address, or RAY_ADDRESS.* --cluster local"):
        clusters.chosen(layers.load(asked)[0])
    named, _ = layers.load({**asked, "ray.address": "head:6379"})
    assert isinstance(clusters.chosen(named), RayCluster)
    monkeypatch.setenv("RAY_ADDRESS", "head:6379")
    found, sources = layers.load(asked)
    assert isinstance(clusters.chosen(found), RayCluster)
    assert (found.ray.address, sources["ray.address"]) == ("auto", "RAY_ADDRESS")


@pytest.mark.parametrize("address", ["", "head", "head:", "ray://head:10001", "head:1;x", " a:1"])
def test_other_addresses_are_refused(address: str) -> None:
    with pytest.raises(UserError, match=r"ray\.address"):
        layers.load({"ray.address": address})


@pytest.mark.parametrize("address", ["10.0.0.1:6379", "[fd00::1]:6379", "auto", "head-svc.ns:1"])
def test_addresses_of_ray_clusters_are_taken(address: str) -> None:
    found, _ = layers.load({"ray.address": address})
    assert found.ray.address == address


def test_a_silent_address_is_named() -> None:
    why = driver._why_not("head:1", ConnectionError("refused"))
    assert isinstance(why, ClusterSilent)
    assert "head:1" in str(why)
    assert isinstance(driver._why_not("h:1", RuntimeError("Version mismatch: 2.1")), UserError)
