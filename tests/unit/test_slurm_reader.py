"""Reading with pyslurm where it fits, with the answers of pyslurm 25.11; else with commands."""

import importlib.util
import json
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from coordinate_eval.clusters.protocol import Busy, Node, State, TaskStatus
from coordinate_eval.errors import ClusterSilent, UserError
from coordinate_eval.slurm.answers.nodes import Wanted, read_fields, read_nodes
from coordinate_eval.slurm.answers.queue import read_tasks
from coordinate_eval.slurm.cluster import SlurmCluster
from coordinate_eval.slurm.settings import SlurmSettings

TESTS = Path(__file__).parents[1]
ME, OTHER = os.getuid(), os.getuid() + 1

# As scontrol says of the same nodes in tests/fixtures/slurm.
NODE = {
    "state": "IDLE", "reason": None, "available_features": [], "active_features": [],
    "configured_gres": {"gpu:h200": 8}, "allocated_gres": {}, "total_cpus": 128,
    "effective_cpus": 128, "allocated_cpus": 0, "real_memory": 1000000, "allocated_memory": 0,
    "memory_reserved_for_system": None, "partitions": ["high", "low", "whole"],
    "owner": None,
}  # fmt: skip
NODES = [
    NODE | {"name": "node1", "state": "MIXED", "allocated_cpus": 4, "allocated_memory": 10240},
    NODE | {"name": "node2", "state": "IDLE+MAINTENANCE+RESERVED"},
    NODE | {"name": "node3", "state": "IDLE+FAIL", "reason": "fan\nState=IDLE CPUTot=9"},
    NODE
    | {
        "name": "node4",
        "state": "IDLE+DRAIN",
        "reason": "hw check, a=b: see [ticket 7] at x@y",
    },
]
JOB = {
    "user_id": ME, "name": "ce-t", "state": "PENDING", "state_reason": "None",
    "allocated_nodes": None, "array_id": None, "array_task_id": None,
    "array_tasks_waiting": None, "heterogeneous_id": None, "layout": {},
}  # fmt: skip


def on(node: str, gpus: int) -> dict[str, Any]:
    """What a job that runs on a node with so many GPUs has besides."""
    gres = {"gpu:h200": {"count": gpus, "indexes": "0"}} if gpus else {}
    layout = {node: {"cpu_ids": "0-3", "gres": gres, "memory": 10240}}
    return {"state": "RUNNING", "allocated_nodes": node, "layout": layout}


JOBS = [
    JOB | {"id": 1, "user_id": OTHER, "name": "ce-t|\x1e2|FAILED|None||ce-t"} | on("node1", 2),
    JOB | {"id": 5, "array_id": 3} | on("node1", 1),
    JOB | {"id": 6, "array_id": 3, "array_task_id": 1, "state": "FAILED"},
    JOB
    | {"id": 3, "array_id": 3, "array_tasks_waiting": "2,4-5,7-11:2", "state_reason": "Priority"},
    JOB | {"id": 7, "name": "other"} | on("node1", 0),
    JOB
    | {"id": 8, "name": "ce-t-8\n|", "state": "COMPLETED", "layout": on("node1", 5)["layout"]},
    JOB | {"id": 9, "heterogeneous_id": 9},
]  # fmt: skip
SQUEUE = "".join(
    f"\x1e{record}\n"
    for record in (
        "3_0|RUNNING|None|node1|ce-t",
        "3_1|FAILED|None||ce-t",
        *(f"3_{index}|PENDING|Priority||ce-t" for index in (2, 4, 5, 7, 9, 11)),
        "8|COMPLETED|None||ce-t-8\n|",
    )
)

Says = Callable[..., None]


@pytest.fixture
def pyslurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Says:
    """Installs pyslurm for Slurm 25.11, and makes it answer as given."""
    site = tmp_path / "site"
    shutil.copytree(TESTS / "fakes" / "pyslurm", site)
    told = site / "pyslurm-25.11.2.dist-info"
    told.mkdir()
    (told / "METADATA").write_text("Metadata-Version: 2.1\nName: pyslurm\nVersion: 25.11.2\n")
    monkeypatch.syspath_prepend(site)
    monkeypatch.setenv("PYTHONPATH", str(site), prepend=os.pathsep)
    monkeypatch.setenv("PYSLURM_SAYS", str(tmp_path / "says.json"))

    def say(**answers: object) -> None:
        said = {"nodes": NODES, "jobs": JOBS} | answers
        (tmp_path / "says.json").write_text(json.dumps(said))

    say()
    return say


@pytest.fixture(autouse=True)
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Has Slurm's commands on PATH, of version 25.11 at first."""
    commands = tmp_path / "bin"
    commands.mkdir()
    fakes = TESTS / "fakes" / "slurm-24.11"
    (commands / "scontrol").write_text(
        f'#!/bin/sh\n[ "$*" = ping ] || exec {fakes}/scontrol "$@"\n'
    )
    (commands / "squeue").write_text("#!/bin/sh\nprintf '\\0367|RUNNING|None|a1|ce-t\\n'\n")
    monkeypatch.delenv("SLURM_CONF", raising=False)
    monkeypatch.setenv("PATH", str(commands), prepend=os.pathsep)

    def be(version: str) -> None:
        (commands / "sinfo").write_text(f"#!/bin/sh\necho 'slurm {version}'\n")
        for command in commands.iterdir():
            command.chmod(0o755)

    be("25.11.4")
    return be


def cluster(reader: str = "auto") -> SlurmCluster:
    return SlurmCluster(SlurmSettings.model_validate({"reader": reader}))


def read(from_cluster: SlurmCluster) -> tuple[list[Node], list[Busy], list[TaskStatus]]:
    return *from_cluster.nodes(), from_cluster.poll("ce-t")


@pytest.mark.parametrize("reader", ["auto", "pyslurm"])
def test_pyslurm_says_what_the_commands_say(
    pyslurm: Says, reader: str, capfd: pytest.CaptureFixture[str]
) -> None:
    answer = read_fields((TESTS / "fixtures" / "slurm" / "nodes-22.05.txt").read_text())
    asked = cluster(reader)
    assert read(asked) == (
        *read_nodes(answer, Wanted(frozenset({"low"}))),
        read_tasks(SQUEUE, "ce-t"),
    )
    assert asked.client.calls == {"sinfo": 1, "scontrol": 2, "pyslurm": 2}
    assert asked.about()["reader"] == "pyslurm 25.11.2"
    assert capfd.readouterr().err == ""
    assert "pyslurm" not in sys.modules  # it would change this process


@pytest.mark.parametrize(
    ("gres", "layout", "free"),
    [
        ({"gpu": 8}, {"gpu": {"count": 2, "indexes": "0-1"}}, 6),
        ({"gpu": 8}, {"gpu": 2, "shard": 7}, 6),
        ({"gpu:h200": 4, "gpu:a100": 4}, {"gpu:a100": {"count": 4, "indexes": "0-3"}}, 4),
    ],
)
@pytest.mark.parametrize("state", ["RUNNING", "COMPLETING", "CONFIGURING", "SUSPENDED"])
def test_gpus_that_jobs_have(
    pyslurm: Says, gres: dict[str, int], layout: dict[str, Any], free: int, state: str
) -> None:
    job = JOB | on("n1", 1) | {"id": 1, "user_id": OTHER, "state": state}
    job["layout"] = {"n1": {"cpu_ids": "0", "gres": layout, "memory": None}}
    pyslurm(nodes=[NODE | {"name": "n1", "configured_gres": gres}], jobs=[job])
    (node,), _ = cluster().nodes()
    assert node.free_gpus == free


def test_a_node_that_another_user_has_alone(pyslurm: Says) -> None:
    pyslurm(nodes=[NODE | {"name": "n1", "owner": "somebody"}], jobs=[])
    assert cluster().nodes()[1][0].why == "in use by somebody alone (ExclusiveUser)"


@pytest.mark.parametrize(
    ("says", "why"),
    [
        ({"no configuration": True}, "configuration source"),
        ({"error": "Unable to contact slurm controller"}, "Unable to contact slurm controller"),
        ({"nodes": [NODE]}, "name"),
        ({"private": ["accounts", "jobs"]}, "PrivateData=jobs"),
    ],
)
@pytest.mark.parametrize("reader", ["auto", "pyslurm"])
def test_any_error_of_pyslurm_is_said_once_and_the_commands_are_used(
    pyslurm: Says,
    capfd: pytest.CaptureFixture[str],
    reader: str,
    says: dict[str, Any],
    why: str,
) -> None:
    pyslurm(**says)
    asked = cluster(reader)
    nodes, _, tasks = read(asked)
    assert read(asked) == (nodes, _, tasks) == read(cluster("commands"))
    assert ([node.name for node in nodes], [task.state for task in tasks]) == (
        ["a1"],
        [State.RUNNING],
    )
    assert asked.client.calls["pyslurm"] == 1
    assert asked.about()["reader"].startswith("Slurm's commands; not pyslurm: ")
    (said,) = capfd.readouterr().err.splitlines()
    assert why in said
    assert why in asked.about()["reader"]


def test_of_another_release_pyslurm_is_used_only_where_it_is_named(
    pyslurm: Says, slurm: Callable[[str], None], capfd: pytest.CaptureFixture[str]
) -> None:
    slurm("25.05.3")
    assert read(cluster("auto")) == read(cluster("commands"))
    assert capfd.readouterr().err == ""
    named = cluster("pyslurm")
    assert read(named) == read(cluster("commands"))
    (said,) = capfd.readouterr().err.splitlines()
    assert "pyslurm 25.11.2 is for another release of Slurm than slurm 25.05.3" in said
    assert "pyslurm" not in named.client.calls


def test_without_pyslurm_the_commands_are_used(capfd: pytest.CaptureFixture[str]) -> None:
    if importlib.util.find_spec("pyslurm"):
        pytest.skip("pyslurm is installed")
    assert read(cluster("auto")) == read(cluster("commands"))
    assert capfd.readouterr().err == ""
    named = cluster("pyslurm")
    assert read(named) == read(cluster("commands"))
    (said,) = capfd.readouterr().err.splitlines()
    assert "install coordinate-eval[pyslurm]" in said


DENIED = "slurm_load_node error: Access/permission denied"
SILENT = "slurm_load_node error: Unable to contact slurm controller (connect failure)"


@pytest.mark.parametrize(
    ("words", "kind", "message"),
    [
        (DENIED, UserError, r"shows you no nodes \(PrivateData=nodes\).*ask"),
        (SILENT, ClusterSilent, "Unable to contact"),
    ],
)
def test_nodes_that_slurm_does_not_tell(
    tmp_path: Path, words: str, kind: type[Exception], message: str
) -> None:
    script = tmp_path / "bin" / "scontrol"
    told = script.read_text()
    script.write_text(
        told.replace("exec", f'case "$*" in *nodes) echo "{words}" >&2; exit 1;; esac; exec')
    )
    for _ in range(2):
        with pytest.raises(kind, match=message) as caught:
            cluster("commands").nodes()
        assert "\n" not in str(caught.value)
    script.write_text(told)
    assert [node.name for node in cluster("commands").nodes()[0]] == ["a1"]


def test_a_cluster_describes_itself(tmp_path: Path) -> None:
    (tmp_path / "bin" / "sinfo").write_text("#!/bin/sh\necho 'slurm-wlm 24.11.5'\n")
    script = tmp_path / "bin" / "scontrol"
    script.write_text(
        script.read_text().replace("] ||", "] && echo 'Slurmctld(primary) at a is UP' ||")
    )
    assert cluster("commands").about() == {
        "controller": "Slurm 24.11.5: Slurmctld(primary) at a is UP",
        "reader": "Slurm's commands",
        "partition low (default)": "state UP, jobs of any length",
    }
