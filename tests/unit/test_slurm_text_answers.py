"""What `scontrol` prints for people, read as its JSON would be.

The nodes in tests/fixtures/slurm are those of one test cluster at one moment, as
`scontrol --all --details show nodes` of 20.11 and 22.05 printed them, and `sinfo --all --json` of
22.05: node1 has a job with three GPUs, node2 is in a reservation for maintenance, node3 has failed
with a reason of two lines, node4 is drained.
"""

import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinate_eval.errors import ClusterError, ClusterSilent
from coordinate_eval.slurm.answers.nodes import Wanted, read_nodes
from coordinate_eval.slurm.answers.text_answers import read_nodes_text
from coordinate_eval.slurm.cluster import SlurmCluster
from coordinate_eval.slurm.settings import SlurmSettings

TESTS = Path(__file__).parents[1]
CAPTURED = TESTS / "fixtures" / "slurm"
SHARED = Path(__file__).parents[3] / "shared" / "slurm-fixtures"
LOW = Wanted(partitions=frozenset({"low"}))

STATES = (
    "CLOUD", "COMPLETING", "DRAIN", "FAIL", "MAINTENANCE", "NOT_RESPONDING", "PLANNED",
    "POWERED_DOWN", "POWERING_UP", "REBOOT_REQUESTED", "RESERVED",
)  # fmt: skip


def printed(node: dict[str, Any], state: str = "") -> str:
    """A node as scontrol prints it; `state` in another notation than that of later versions."""
    state = state or "+".join(node["state"])
    lines = [
        f"NodeName={node['name']} Arch=x86_64 CoresPerSocket=1 ",
        f"CPUAlloc={node['alloc_cpus']} CPUEfctv={node['effective_cpus']} "
        f"CPUTot={node['cpus']} CPULoad=1.22",
        f"AvailableFeatures={','.join(node['features']) or '(null)'}",
        f"ActiveFeatures={','.join(node['features']) or '(null)'}",
        f"Gres={node['gres'] or '(null)'}",
        "GresDrain=N/A",
        *([f"GresUsed={node['gres_used']}"] if node["gres_used"] else []),
        "NodeAddr=10.0.0.1 NodeHostName=login1 Port=17002 Version=22.05.8",
        "OS=Linux 6.1.0 #1 SMP State=DOWN",
        f"RealMemory={node['real_memory']} AllocMem={node['alloc_memory']} FreeMem=7 Sockets=2",
        *([f"MemSpecLimit={m}"] if (m := node["specialized_memory"]) else []),
        f"State={state} ThreadsPerCore=1 TmpDisk=0 Weight=1 Owner={node['owner']} MCS_label=N/A",
        *([f"Partitions={','.join(node['partitions'])} "] if node["partitions"] else []),
        "BootTime=2026-11-21T12:15:50 SlurmdStartTime=2026-11-21T12:22:59",
        *([f"Comment={node['comment']}"] if node["comment"] else []),
    ]
    first, *others = node["reason"].split("\n")
    if first:
        lines.append(f"Reason={first} [root@2026-11-21T12:29:44]")
        lines += ["       " + line for line in others]
    return "\n   ".join(lines) + "\n\n"


words = st.text(st.characters(exclude_characters="\n", exclude_categories=["Cs"]), max_size=20)
names = st.from_regex(r"[a-z0-9_.-]{1,12}", fullmatch=True)
used = st.sampled_from(
    [
        "",
        "gpu:h200:0(IDX:N/A)",
        "gpu:h200:3(IDX:0-1,7)",
        "gpu:h200:1(IDX:0),shard:h200:9(IDX:2-3)",
        "gpu:h200:0(IDX:N/A),shard:h200:9(8/8,1/8,0/8)",
    ]
)
nodes = st.fixed_dictionaries(
    {
        "name": names,
        "state": st.lists(st.sampled_from(STATES), max_size=3, unique=True).map(
            lambda flags: ["IDLE", *flags]
        ),
        "features": st.lists(names, max_size=2),
        "gres": st.sampled_from(["", "gpu:h200:8(S:0-1)", "gpu:8", "gpu:(null):8,shard:4"]),
        "gres_used": used,
        "cpus": st.integers(1, 256),
        "effective_cpus": st.integers(1, 256),
        "alloc_cpus": st.integers(0, 256),
        "real_memory": st.integers(1, 2_000_000),
        "specialized_memory": st.sampled_from([0, 1024]),
        "alloc_memory": st.integers(0, 2_000_000),
        "partitions": st.lists(st.sampled_from(["low", "high"]), unique=True),
        "owner": st.sampled_from(["N/A", f"me({os.getuid()})", f"nobody({os.getuid() + 1})"]),
        "comment": words,
        "reason": st.lists(words.filter(str.strip), max_size=3).map("\n".join),
    }
)


@given(st.lists(nodes, min_size=1, max_size=3), st.sampled_from(["", "ib"]))
def test_text_says_what_json_says(entries: list[dict[str, Any]], constraint: str) -> None:
    wanted = Wanted(partitions=frozenset({"low"}), constraint=constraint)
    text = "".join(map(printed, entries))
    assert read_nodes(read_nodes_text(text), wanted) == read_nodes({"nodes": entries}, wanted)


@pytest.mark.parametrize("version", ["20.11", "22.05"])
def test_captured_text_says_what_captured_json_says(version: str) -> None:
    text = read_nodes_text((CAPTURED / f"nodes-{version}.txt").read_text())
    answer = json.loads((CAPTURED / "nodes-22.05.json").read_text())
    (node1,), busy = read_nodes(text, LOW)
    assert ([node1], busy) == read_nodes(answer, LOW)
    assert (node1.free_gpus, node1.cpus, node1.memory_gib) == (5, 124, 966.5625)
    assert {node.name: node.why for node in busy} == {
        "node2": "in maintenance",
        "node3": "failed: fan\nState=IDLE CPUTot=9",
        "node4": "drained: hw check, a=b: see [ticket 7] at x@y",
    }


def test_cores_for_the_system_in_a_made_up_text_of_20_11() -> None:
    """Later versions print `CPUEfctv` besides."""
    text = (CAPTURED / "nodes-20.11.txt").read_text()
    memory = "   RealMemory=1000000 AllocMem=10240"
    made_up = text.replace(memory, f"   CoreSpecCount=2 CPUSpecList=126-127 \n{memory}")
    made_up = made_up.replace("ThreadsPerCore=1", "ThreadsPerCore=2")
    (node1,), _ = read_nodes(read_nodes_text(made_up), LOW)
    assert node1.cpus == 120


@pytest.mark.skipif(not SHARED.is_dir(), reason=f"no captured answers in {SHARED}")
@pytest.mark.parametrize("file", ["22.05.8/sinfo", "24.11.5/nodes", "26.05.5/nodes"])
def test_captured_answers_of_other_versions(file: str) -> None:
    text = (SHARED / file).with_name("node_running.txt").read_text()
    answer = json.loads((SHARED / f"{file}_running.json").read_text())
    (entry,) = [node for node in answer["nodes"] if node["name"] == "node2"]
    without_details = entry | {"gres_used": ""}
    assert read_nodes(read_nodes_text(text), LOW) == read_nodes({"nodes": [without_details]}, LOW)


NODE = json.loads((CAPTURED / "nodes-22.05.json").read_text())["nodes"][0] | {
    "effective_cpus": 128, "specialized_memory": 0, "features": [], "owner": "N/A", "comment": "",
    "reason": "",
}  # fmt: skip


@pytest.mark.parametrize(
    ("state", "flags"),
    [
        ("IDLE", []),
        ("IDLE*", ["NOT_RESPONDING"]),
        ("IDLE*+DRAIN", ["NOT_RESPONDING", "DRAIN"]),
        ("IDLE~+CLOUD", ["POWERED_DOWN", "CLOUD"]),
        ("IDLE+CLOUD+POWER", ["CLOUD", "POWERED_DOWN"]),
        ("MIXED#", ["POWERING_UP"]),
        ("IDLE%", ["POWERING_DOWN"]),
        ("IDLE!", ["POWER_DOWN"]),
        ("ALLOCATED$", ["MAINTENANCE"]),
        ("IDLE@", ["REBOOT_REQUESTED"]),
        ("IDLE^*", ["REBOOT_ISSUED", "NOT_RESPONDING"]),
        ("IDLE-", ["PLANNED"]),
        ("MAINT*", ["NOT_RESPONDING"]),
        ("ALLOCATED+", ["COMPLETING"]),
    ],
)
def test_signs_after_a_state(state: str, flags: list[str]) -> None:
    """As 20.11 has them, and sinfo of every version."""
    words = [state.partition("+")[0].rstrip("*~#!%$@^-"), *flags]
    text = read_nodes_text(printed(NODE, state))
    for wake in (False, True):
        wanted = Wanted(partitions=frozenset({"low"}), wake=wake)
        assert read_nodes(text, wanted) == read_nodes({"nodes": [NODE | {"state": words}]}, wanted)


def test_no_text_of_an_administrator_becomes_a_field() -> None:
    hostile = NODE | {
        "state": ["DOWN"],
        "comment": "State=IDLE Gres=gpu:h200:99\n   State=IDLE\nName=x\n\n",
        "reason": "State=IDLE\n   State=IDLE",
    }
    nodes, (busy,) = read_nodes(read_nodes_text(printed(hostile)), LOW)
    assert not nodes
    assert (busy.gpus, busy.why) == (8, "down: State=IDLE\n   State=IDLE")


def test_an_empty_answer_is_silence_and_another_one_an_error() -> None:
    for empty in ("", "\n"):
        with pytest.raises(ClusterSilent, match="printed nothing"):
            read_nodes_text(empty)
    with pytest.raises(ClusterError, match="No nodes in the system") as caught:
        read_nodes_text("No nodes in the system\n")
    assert not isinstance(caught.value, ClusterSilent)
    with pytest.raises(ClusterError, match="unknown form"):
        read_nodes(read_nodes_text("NodeName=n1 Arch=x86_64\n"), LOW)


def test_where_slurm_has_no_json_it_is_asked_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SLURM_CONF", raising=False)
    monkeypatch.setenv("PATH", str(TESTS / "fakes" / "slurm-20.11"), prepend=os.pathsep)
    cluster = SlurmCluster(SlurmSettings())
    nodes, busy = cluster.nodes()
    assert ([node.name for node in nodes], len(busy)) == (["node1"], 3)
    calls = cluster.client.calls.copy()
    assert calls == {"sinfo": 2, "scontrol": 3}
    assert cluster.nodes() == (nodes, busy)
    assert cluster.client.calls - calls == {"scontrol": 1}


@pytest.mark.parametrize("signal", ["SEGV", "ABRT", "KILL"])
def test_a_command_that_crashes_instead_of_printing_json_is_asked_for_text_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, signal: str
) -> None:
    """As scontrol of 24.11 and later does where the plugin that writes JSON is not installed."""
    monkeypatch.delenv("SLURM_CONF", raising=False)
    fakes = TESTS / "fakes"
    scontrol = tmp_path / "scontrol"
    scontrol.write_text(
        "#!/bin/sh\n"
        f'case "$*" in *--json) kill -{signal} $$ ;; ping) exit 0 ;; esac\n'
        f'exec {fakes}/slurm-20.11/scontrol "$@"\n'
    )
    scontrol.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{fakes}/slurm-24.11", prepend=os.pathsep)
    cluster = SlurmCluster(SlurmSettings())
    nodes, busy = cluster.nodes()
    assert ([node.name for node in nodes], len(busy)) == (["node1"], 3)
    calls = cluster.client.calls.copy()
    assert cluster.nodes() == (nodes, busy)
    assert cluster.client.calls - calls == {"scontrol": 1}
    reader = cluster.about()["reader"]
    assert "as text without JSON: scontrol" in reader
    assert "was ended by signal" in reader


def test_silence_does_not_mean_that_there_is_no_json(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What one failed question tells of a controller that is away holds for no other."""
    monkeypatch.delenv("SLURM_CONF", raising=False)
    fakes = TESTS / "fakes" / "slurm-24.11"
    scontrol = tmp_path / "scontrol"
    scontrol.write_text(
        "#!/bin/sh\n"
        f'[ -e {tmp_path}/up ] && exec {fakes}/scontrol "$@"\n'
        f'case "$*" in *partition) exec {fakes}/scontrol "$@" ;; esac\n'
        "echo 'slurm_load_node error: Unable to contact slurm controller' >&2; exit 1\n"
    )
    scontrol.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{fakes}", prepend=os.pathsep)
    cluster = SlurmCluster(SlurmSettings())
    with pytest.raises(ClusterSilent):
        cluster.nodes()
    (tmp_path / "up").touch()
    assert [node.name for node in cluster.nodes()[0]] == ["a1"]  # which fakes know as JSON alone
