"""Slurm's JSON of nodes to nodes and busy nodes, in the shapes of three versions."""

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.slurm_nodes import new, old

from coordinate_eval.errors import ClusterError
from coordinate_eval.slurm.answers.nodes import Wanted, read_nodes
from coordinate_eval.slurm.answers.partitions import MemoryLimits
from coordinate_eval.slurm.answers.reservations import name_of_user

FIXTURES = Path(__file__).parents[3] / "shared" / "slurm-fixtures"
LOW = Wanted(partitions=frozenset({"low"}))


def free(entry: dict[str, Any], wanted: Wanted = LOW) -> tuple[str, int, int]:
    (node,), busy = read_nodes({"nodes": [entry]}, wanted)
    assert not busy
    return node.gpu_type, node.free_gpus, node.gpus


def why(entry: dict[str, Any], wanted: Wanted = LOW) -> str:
    nodes, (busy,) = read_nodes({"nodes": [entry]}, wanted)
    assert not nodes
    assert busy.name == "n1"
    return busy.why


@pytest.mark.parametrize(
    ("gres", "used", "expected"),
    [
        ("gpu:h200:8(S:0-1)", "gpu:h200:3(IDX:0-1,7)", ("h200", 5, 8)),
        ("gpu:8", "gpu:2(IDX:0,3)", ("", 6, 8)),
        ("gpu:(null):8(S:0,1)", "gpu:(null):2(IDX:0-1)", ("", 6, 8)),
        ("gpu:8", "gpu:h200:2(IDX:0-1)", ("", 6, 8)),
        ("gpu:a100:4,gpu:h200:4", "gpu:a100:4(IDX:0-3),gpu:h200:0(IDX:N/A)", ("h200", 4, 4)),
        ("shard:h200:32(S:0),gpu:h200:8,mps:800", "shard:4,gpu:h200:1(IDX:0)", ("h200", 7, 8)),
        ("gpu:nvidia_h100_80gb_hbm3:4", "", ("nvidia_h100_80gb_hbm3", 4, 4)),
        ("gpu:h200:8", "gpu:h200:0(IDX:N/A),craynetwork:0", ("h200", 8, 8)),
        ("gpu", "gpu:0", ("", 1, 1)),
    ],
)
def test_free_gpus_are_counted_by_type(
    gres: str, used: str, expected: tuple[str, int, int]
) -> None:
    for shape in (old, new):
        assert free(shape(gres=gres, gres_used=used)) == expected


@pytest.mark.parametrize(
    ("gres", "used", "expected"),
    [
        # 22.05 lists the GPUs of which jobs have a part.
        ("gpu:h200:8,shard:h200:64", "gpu:h200:0(IDX:N/A),shard:h200:8(IDX:0-7)", 0),
        ("gpu:h200:8,shard:h200:64", "gpu:h200:2(IDX:0-1),shard:h200:8(IDX:2,5-6)", 3),
        ("gpu:h200:8,shard:h200:64", "gpu:h200:2(IDX:0-1),shard:h200:8(IDX:1-2)", 5),
        ("gpu:h200:8,shard:64", "gpu:h200:1(IDX:7),shard:3(IDX:0),shard:3(IDX:0-1)", 5),
        ("gpu:8,mps:800", "gpu:0(IDX:N/A),mps:h200:200(IDX:0,3)", 6),
        ("gpu:8,shard:64", "gpu:(null):2(IDX:0-1),shard:(null):8(IDX:2)", 5),
        # Later versions tell how much of each GPU is in use.
        (
            "gpu:h200:4(S:0-1),shard:h200:256(S:0-1)",
            "gpu:h200:1(IDX:0),shard:h200:32(0/64,32/64,0/64,1/64)",
            1,
        ),
        ("gpu:h200:2,shard:h200:128", "gpu:h200:0(IDX:N/A),shard:h200:0(0/64,0/64)", 2),
        ("gpu:h200:2,mps:200", "gpu:h200:0(IDX:N/A),mps:50(50/100,0/100)", 1),
        ("gpu:h200:2,shard:16", "gpu:h200:0(IDX:N/A),shard:0", 2),
        ("gpu:h200:2,shard:16", "shard:h200:1(IDX:0-99999999999999)", 2),
        ("gpu:h200:2,shard:16", "gpu:h200:1(IDX:0),shard:(", 1),
    ],
)
def test_gpus_of_which_jobs_have_a_part_are_not_free(gres: str, used: str, expected: int) -> None:
    for shape in (old, new):
        node = shape(gres=gres, gres_used=used)
        if expected:
            assert free(node)[1] == expected
        else:
            assert "GPUs in use" in why(node)


@pytest.mark.parametrize(
    ("used", "a100", "h200"),
    [
        ("gpu:a100:1(IDX:0),gpu:h200:0(IDX:N/A),shard:h200:9(IDX:4-6)", 3, 1),
        ("gpu:a100:1(IDX:0),shard:a100:9(IDX:0-1),shard:h200:0(IDX:N/A)", 2, 4),
        ("gpu:a100:1(IDX:0),shard:9(IDX:0-1)", 2, 3),  # which type, nothing tells
    ],
)
def test_gpus_of_two_types_of_which_jobs_have_a_part(used: str, a100: int, h200: int) -> None:
    entry = new(gres="gpu:a100:4,gpu:h200:4,shard:64", gres_used=used)
    nodes, _ = read_nodes({"nodes": [entry]}, LOW)
    assert {node.gpu_type: node.free_gpus for node in nodes} == {"a100": a100, "h200": h200}


def test_a_node_with_two_types_is_listed_for_each_that_is_free() -> None:
    entry = new(gres="gpu:h100:8,gpu:1g.10gb:56", gres_used="gpu:h100:3(IDX:0-2),gpu:1g.10gb:0")
    nodes, busy = read_nodes({"nodes": [entry]}, LOW)
    assert [(n.name, n.gpu_type, n.free_gpus) for n in nodes] == [
        ("n1", "h100", 5), ("n1", "1g.10gb", 56)
    ]  # fmt: skip
    assert not busy


def test_gpus_without_a_type_have_what_the_settings_say() -> None:
    wanted = Wanted(partitions=frozenset({"low"}), gpu_type="rubin", gpu_memory_gib=288.0)
    (node,), _ = read_nodes({"nodes": [old(gres="gpu:8", gres_used="gpu:0")]}, wanted)
    assert (node.gpu_type, node.gpu_memory_gib) == ("rubin", 288)
    (node,), _ = read_nodes({"nodes": [old()]}, wanted)
    assert (node.gpu_type, node.gpu_memory_gib) == ("h200", 141)


ME, MY_NUMBER = name_of_user(), os.getuid()


@pytest.mark.parametrize(
    "owner",
    [
        None,
        "",
        "N/A",
        ME,
        str(MY_NUMBER),
        MY_NUMBER,
        f"{ME}({MY_NUMBER})",
        {"set": True, "infinite": False, "number": MY_NUMBER},
        {"set": False, "infinite": True, "number": 0},
        {"set": True, "infinite": True, "number": 4294967294},
        4294967294,
        4294967295,
        "4294967294",
    ],
)
def test_a_node_that_is_nobody_elses_is_free(owner: object) -> None:
    for shape in (old, new):
        assert free(shape(owner=owner)) == ("h200", 8, 8)


@pytest.mark.parametrize(
    ("owner", "name"),
    [
        ("somebody", "somebody"),
        ("some-body.x", "some-body.x"),
        (f"somebody({MY_NUMBER + 1})", "somebody"),
        (MY_NUMBER + 1, str(MY_NUMBER + 1)),
        (str(MY_NUMBER + 1), str(MY_NUMBER + 1)),
        ({"set": True, "infinite": False, "number": MY_NUMBER + 1}, str(MY_NUMBER + 1)),
    ],
)
def test_a_node_that_another_user_has_alone_is_busy(owner: object, name: str) -> None:
    for shape in (old, new):
        assert why(shape(owner=owner)) == f"in use by {name} alone (ExclusiveUser)"
    assert why(new(owner=owner, state=["IDLE", "DRAIN"])) == "drained"


def test_powered_down_nodes_come_last_where_they_may_be_woken() -> None:
    asleep = [
        new(name="n0", state=["IDLE", "CLOUD", "POWERED_DOWN"]),
        old(name="n1", state_flags=["POWERING_UP"]),
    ]
    wanted = Wanted(partitions=frozenset({"low"}), wake=True)
    nodes, busy = read_nodes({"nodes": [*asleep, new(name="n2")]}, wanted)
    assert [node.name for node in nodes] == ["n2", "n0", "n1"]
    assert not busy
    assert why(old(state_flags=["POWERED_DOWN", "DRAIN"]), wanted) == "drained"


def test_a_node_without_known_memory_needs_jobs_that_ask_for_none() -> None:
    entry = new(real_memory=1)
    assert "[slurm] memory = false" in why(entry)
    none = Wanted(partitions=frozenset({"low"}), memory=False)
    (node,), _ = read_nodes({"nodes": [entry]}, none)
    assert node.memory_gib > 1e5
    (node,), _ = read_nodes({"nodes": [new(alloc_memory=24576)]}, none)
    assert node.memory_gib == 976


def test_excluded_nodes_take_no_job() -> None:
    wanted = Wanted(partitions=frozenset({"low"}), excluded=frozenset({"n1", "n3"}))
    assert why(old(), wanted) == "in [slurm] exclude"
    assert free(old(name="n2"), wanted) == ("h200", 8, 8)


@pytest.mark.parametrize(
    ("fields", "per_core", "cpus"),
    [
        ({"cpus": 64, "sockets": 2, "cores": 16, "threads": 2, "alloc_cpus": 11}, 2, 52),
        ({"cpus": 32, "sockets": 2, "cores": 16, "threads": 2, "alloc_cpus": 11}, 1, 21),
        ({"cpus": 64, "sockets": 64, "cores": 1, "threads": 1, "alloc_cpus": 11}, 1, 53),
        ({"cpus": 64, "threads": 2, "alloc_cpus": 11}, 1, 53),
    ],
)
def test_a_core_goes_to_one_job_with_all_of_its_cpus(
    fields: dict[str, Any], per_core: int, cpus: int
) -> None:
    (node,), _ = read_nodes({"nodes": [old(**fields)]}, LOW)
    assert (node.cpus_per_core, node.cpus) == (per_core, cpus)


def test_a_partition_limits_the_cpus_of_a_node_and_what_memory_costs() -> None:
    memory = MemoryLimits(most_per_cpu=4000, default_per_cpu=3000)
    (node,), _ = read_nodes({"nodes": [old()]}, replace(LOW, most_cpus=40, jobs_memory=memory))
    assert (node.cpus, node.gib_per_cpu) == (40, 4000 / 1024)
    # Who asks for no memory gets some with each CPU.
    few = old(real_memory=60_000)
    (node,), _ = read_nodes({"nodes": [few]}, replace(LOW, memory=False, jobs_memory=memory))
    assert (node.cpus, node.gib_per_cpu) == (20, 0)


def test_free_cpus_and_memory_are_what_is_not_allocated() -> None:
    entry = new(alloc_cpus=28, alloc_memory={"set": True, "infinite": False, "number": 24576})
    (node,), _ = read_nodes({"nodes": [entry]}, LOW)
    assert (node.cpus, node.memory_gib) == (100, 976)
    reserved = new(effective_cpus=120, specialized_memory=10240)
    (node,), _ = read_nodes({"nodes": [reserved]}, LOW)
    assert (node.cpus, node.memory_gib) == (120, 990)


@pytest.mark.parametrize(
    ("fields", "cpus"),
    [
        ({"specialized_cores": 2}, 126),
        ({"specialized_cores": 2, "threads": 2}, 124),
        ({"specialized_cores": 2, "threads": 2, "effective_cpus": 122}, 122),
        ({"specialized_cores": 0, "threads": 2}, 128),
        ({"specialized_cores": None}, 128),
    ],
)
def test_cores_for_the_system_in_a_made_up_answer_are_not_free(
    fields: dict[str, Any], cpus: int
) -> None:
    """No captured answer has such cores without `effective_cpus`."""
    (node,), _ = read_nodes({"nodes": [old(**fields)]}, LOW)
    assert node.cpus == cpus


@pytest.mark.parametrize(
    ("states", "reason", "words"),
    [
        (["idle", "DRAIN"], "hw check", "drained: hw check"),
        (["mixed", "DRAIN", "PLANNED"], "hw", "drained: hw"),
        (["down", "NOT_RESPONDING"], "Not responding", "down: Not responding"),
        (["down"], "", "down"),
        (["idle", "RESERVED"], "an old reason", "reserved"),
        (["idle", "PLANNED"], "an old reason", "promised to a waiting job"),
        (["idle", "MAINTENANCE"], "", "in maintenance"),
        (["idle", "MAINT"], "", "in maintenance"),
        (["mixed", "COMPLETING"], "", "a job on it is ending"),
        (["idle", "FAIL"], "", "failed"),
        (["idle", "POWERED_DOWN"], "", "powered down; [slurm] wake_nodes uses such nodes"),
        (["idle", "POWERING_UP"], "", "powering up; [slurm] wake_nodes uses such nodes"),
        (["idle", "REBOOT_REQUESTED"], "", "to be rebooted"),
        (["unknown"], "", "unknown"),
    ],
)
def test_nodes_that_take_no_jobs_say_why(states: list[str], reason: str, words: str) -> None:
    assert why(old(state=states[0], state_flags=states[1:], reason=reason)) == words
    assert why(new(state=[state.upper() for state in states], reason=reason)) == words


def test_a_reason_of_the_past_keeps_no_node_away() -> None:
    assert free(new(reason="hw check")) == ("h200", 8, 8)
    assert free(new(state=["IDLE", "CLOUD"])) == ("h200", 8, 8)


def test_a_busy_node_says_what_has_run_out() -> None:
    in_use = new(gres_used="gpu:h200:8(IDX:0-7)", state=["MIXED"])
    assert not read_nodes({"nodes": [in_use]}, LOW)[1][0].away
    assert why(old(gres_used="gpu:h200:8(IDX:0-7)", state="mixed")) == "8 of 8 GPUs in use"
    assert "all CPUs" in why(old(alloc_cpus=128, state="allocated"))
    assert "all memory" in why(old(alloc_memory=1024000, state="mixed"))


def test_nodes_without_gpus_are_not_spoken_of() -> None:
    for gres in ("", None, "shard:8", "gpu:0"):
        assert read_nodes({"nodes": [old(gres=gres, gres_used="")]}, LOW) == ([], [])


def test_a_node_of_another_partition_is_busy() -> None:
    other = old(partitions=["high"])
    assert why(other) == "not in partition low"
    assert [b.excluded for b in read_nodes({"nodes": [other]}, LOW)[1]] == [True]
    assert free(old(), Wanted(frozenset({"high", "x"}))) == ("h200", 8, 8)


def test_a_whole_node_with_one_core_in_use_is_busy() -> None:
    whole = Wanted(frozenset({"low"}), whole=True)
    assert "whole nodes" in why(old(alloc_cpus=1, state="mixed"), whole)
    assert free(old(), whole) == ("h200", 8, 8)


@pytest.mark.parametrize(
    ("constraint", "fits"),
    [
        ("", True),
        ("h200", True),
        ("h200&ib", True),
        ("h200 & eth", False),
        ("eth|ib", True),
        ("eth|roce", False),
        ("h20", False),
        ("[rack1|rack2]", True),
        ("h200*4", True),
        ("eth&(a|b)", True),
    ],
)
def test_a_node_is_left_out_without_the_features_that_are_asked_for(
    constraint: str, fits: bool
) -> None:
    wanted = Wanted(frozenset({"low"}), constraint=constraint)
    for entry in (old(features="h200,ib"), new(features=["h200", "ib"])):
        if fits:
            assert free(entry, wanted)
        else:
            assert why(entry, wanted) == f"without the features {constraint}"


@pytest.mark.parametrize(
    "answer", [{}, {"nodes": [{}]}, {"nodes": [1]}, {"nodes": None}, {"nodes": [{"gres": 3}]}]
)
def test_an_answer_of_another_shape_is_an_error(answer: dict[str, Any]) -> None:
    with pytest.raises(ClusterError, match="unknown form"):
        read_nodes(answer, LOW)


@pytest.mark.skipif(not FIXTURES.is_dir(), reason=f"no captured answers in {FIXTURES}")
@pytest.mark.parametrize("version", ["22.05.8/sinfo", "24.11.5/nodes", "26.05.5/nodes"])
@pytest.mark.parametrize(
    ("case", "free_gpus", "reasons"),
    [
        ("idle", {"node1": 8, "node2": 8, "node3": 8, "node4": 8}, {}),
        ("nodefail", {"node1": 8, "node2": 8, "node4": 8}, {"node3": "down: Not responding"}),
    ],
)
def test_answers_of_real_controllers_are_understood(
    version: str, case: str, free_gpus: dict[str, int], reasons: dict[str, str]
) -> None:
    nodes, busy = read_nodes(json.loads((FIXTURES / f"{version}_{case}.json").read_text()), LOW)
    assert {node.name: node.free_gpus for node in nodes} == free_gpus
    assert {node.name: node.why for node in busy} == reasons


@pytest.mark.skipif(not FIXTURES.is_dir(), reason=f"no captured answers in {FIXTURES}")
@pytest.mark.parametrize(
    ("file", "free_gpus", "busy_nodes"),
    [
        ("22.05.8/sinfo_busy", {"node1": 6, "node4": 8}, {"node2", "node3"}),
        ("22.05.8/sinfo_drain", {"node1": 8}, {"node2", "node3", "node4"}),
        ("22.05.8/sinfo_reserved", {"node1": 8, "node2": 8, "node3": 8}, {"node4"}),
        ("24.11.5/nodes_running", {"node1": 6, "node2": 4, "node4": 8}, {"node3"}),
        ("24.11.5/nodes_reserved", {"node1": 8, "node2": 8, "node3": 8}, {"node4"}),
        ("26.05.5/nodes_drain", {"node1": 8}, {"node2", "node3", "node4"}),
        ("26.05.5/nodes_planned", {"node1": 8, "node4": 8}, {"node2", "node3"}),
    ],
)
def test_captured_answers_of_busy_clusters(
    file: str, free_gpus: dict[str, int], busy_nodes: set[str]
) -> None:
    nodes, busy = read_nodes(json.loads((FIXTURES / f"{file}.json").read_text()), LOW)
    assert {node.name: node.free_gpus for node in nodes} == free_gpus
    assert {node.name for node in busy} == busy_nodes
