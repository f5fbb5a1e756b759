"""What Slurm says of nodes, to nodes and busy nodes.

The nodes in tests/fixtures/slurm are those of a test cluster of each version, as
`scontrol --all --details show nodes` printed them: node1 has a job with three GPUs, node2 is in a
reservation for maintenance, node3 has failed with a reason of two lines, node4 is drained.
"""

import os
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.slurm_nodes import node as shown

from coordinate_eval.errors import ClusterError, ClusterSilent
from coordinate_eval.slurm.answers.nodes import Fields, Wanted, read_fields, read_nodes, read_places
from coordinate_eval.slurm.answers.partitions import MemoryLimits
from coordinate_eval.slurm.answers.reservations import name_of_user

CAPTURED = Path(__file__).parents[1] / "fixtures" / "slurm"
LOW = Wanted(partitions=frozenset({"low"}))


def of(fields: str) -> dict[str, str]:
    return dict(field.split("=") for field in fields.split())


def free(entry: Fields, wanted: Wanted = LOW) -> tuple[str, int, int]:
    (node,), busy = read_nodes([entry], wanted)
    assert not busy
    return node.gpu_type, node.free_gpus, node.gpus


def why(entry: Fields, wanted: Wanted = LOW) -> str:
    nodes, (busy,) = read_nodes([entry], wanted)
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
    assert free(shown(Gres=gres, GresUsed=used)) == expected


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
    node = shown(Gres=gres, GresUsed=used)
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
    entry = shown(Gres="gpu:a100:4,gpu:h200:4,shard:64", GresUsed=used)
    nodes, _ = read_nodes([entry], LOW)
    assert {node.gpu_type: node.free_gpus for node in nodes} == {"a100": a100, "h200": h200}


def test_a_node_with_two_types_is_listed_for_each_that_is_free() -> None:
    entry = shown(Gres="gpu:h100:8,gpu:1g.10gb:56", GresUsed="gpu:h100:3(IDX:0-2),gpu:1g.10gb:0")
    nodes, busy = read_nodes([entry], LOW)
    assert [(n.name, n.gpu_type, n.free_gpus) for n in nodes] == [
        ("n1", "h100", 5), ("n1", "1g.10gb", 56)
    ]  # fmt: skip
    assert not busy


def test_gpus_without_a_type_have_what_the_settings_say() -> None:
    wanted = Wanted(partitions=frozenset({"low"}), gpu_type="rubin", gpu_memory_gib=288.0)
    (node,), _ = read_nodes([shown(Gres="gpu:8", GresUsed="gpu:0")], wanted)
    assert (node.gpu_type, node.gpu_memory_gib) == ("rubin", 288)
    (node,), _ = read_nodes([shown()], wanted)
    assert (node.gpu_type, node.gpu_memory_gib) == ("h200", 141)


ME, MY_NUMBER = name_of_user(), os.getuid()


@pytest.mark.parametrize(
    "owner", ["", "N/A", ME, str(MY_NUMBER), f"{ME}({MY_NUMBER})", f"renamed({MY_NUMBER})"]
)
def test_a_node_that_is_nobody_elses_is_free(owner: str) -> None:
    assert free(shown(Owner=owner)) == ("h200", 8, 8)


@pytest.mark.parametrize(
    ("owner", "name"),
    [
        ("somebody", "somebody"),
        ("some-body.x", "some-body.x"),
        (f"somebody({MY_NUMBER + 1})", "somebody"),
        (str(MY_NUMBER + 1), str(MY_NUMBER + 1)),
    ],
)
def test_a_node_that_another_user_has_alone_is_busy(owner: str, name: str) -> None:
    assert why(shown(Owner=owner)) == f"in use by {name} alone (ExclusiveUser)"
    assert why(shown(Owner=owner, State="IDLE+DRAIN")) == "drained"


def test_a_node_without_known_memory_needs_jobs_that_ask_for_none() -> None:
    entry = shown(RealMemory=1)
    assert "[slurm] memory = false" in why(entry)
    none = Wanted(partitions=frozenset({"low"}), memory=False)
    (node,), _ = read_nodes([entry], none)
    assert node.memory_gib > 1e5
    (node,), _ = read_nodes([shown(AllocMem=24576)], none)
    assert node.memory_gib == 976


def test_excluded_nodes_take_no_job() -> None:
    wanted = Wanted(partitions=frozenset({"low"}), excluded=frozenset({"n1", "n3"}))
    assert why(shown(), wanted) == "in --exclude of [slurm] extra_args"
    assert free(shown("n2"), wanted) == ("h200", 8, 8)


@pytest.mark.parametrize(
    ("fields", "per_core", "cpus"),
    [
        ("CPUTot=64 Sockets=2 CoresPerSocket=16 ThreadsPerCore=2", 2, 52),
        ("CPUTot=32 Sockets=2 CoresPerSocket=16 ThreadsPerCore=2", 1, 21),
        ("CPUTot=64 Sockets=64 CoresPerSocket=1 ThreadsPerCore=1", 1, 53),
        ("CPUTot=64 ThreadsPerCore=2", 1, 53),
    ],
)
def test_a_core_goes_to_one_job_with_all_of_its_cpus(fields: str, per_core: int, cpus: int) -> None:
    (node,), _ = read_nodes([shown(**of(fields), CPUAlloc=11)], LOW)
    assert (node.cpus_per_core, node.cpus) == (per_core, cpus)


def test_a_partition_limits_the_cpus_of_a_node_and_what_memory_costs() -> None:
    memory = MemoryLimits(most_per_cpu=4000, default_per_cpu=3000)
    (node,), _ = read_nodes([shown()], replace(LOW, most_cpus=40, jobs_memory=memory))
    assert (node.cpus, node.gib_per_cpu) == (40, 4000 / 1024)
    # Who asks for no memory gets some with each CPU.
    few = shown(RealMemory=60_000)
    (node,), _ = read_nodes([few], replace(LOW, memory=False, jobs_memory=memory))
    assert (node.cpus, node.gib_per_cpu) == (20, 0)


def test_free_cpus_and_memory_are_what_is_not_allocated() -> None:
    entry = shown(CPUAlloc=28, AllocMem=24576)
    (node,), _ = read_nodes([entry], LOW)
    assert (node.cpus, node.memory_gib) == (100, 976)
    reserved = shown(CPUEfctv=120, MemSpecLimit=10240)
    (node,), _ = read_nodes([reserved], LOW)
    assert (node.cpus, node.memory_gib) == (120, 990)


@pytest.mark.parametrize(
    ("fields", "cpus"),
    [
        ("CoreSpecCount=2", 126),  # 20.11
        ("CoreSpecCount=2 ThreadsPerCore=2", 124),
        ("CoreSpecCount=2 ThreadsPerCore=2 CPUEfctv=122", 122),
        ("ThreadsPerCore=2", 128),
    ],
)
def test_cores_for_the_system_are_not_free(fields: str, cpus: int) -> None:
    (node,), _ = read_nodes([shown(**of(fields))], LOW)
    assert node.cpus == cpus


@pytest.mark.parametrize(
    ("state", "reason", "words"),
    [
        ("IDLE+DRAIN", "hw check", "drained: hw check"),
        ("DOWN+NOT_RESPONDING", "Not responding", "down: Not responding"),
        ("DOWN", "", "down"),
        ("IDLE+RESERVED", "an old reason", "reserved"),
    ],
)
def test_nodes_that_take_no_jobs_say_why(state: str, reason: str, words: str) -> None:
    assert why(shown(State=state, Reason=reason)) == words


def test_a_reason_of_the_past_keeps_no_node_away() -> None:
    assert free(shown(Reason="hw check")) == ("h200", 8, 8)
    assert free(shown(State="IDLE+CLOUD")) == ("h200", 8, 8)


def test_a_busy_node_says_what_has_run_out() -> None:
    in_use = shown(GresUsed="gpu:h200:8(IDX:0-7)", State="MIXED")
    assert not read_nodes([in_use], LOW)[1][0].away
    assert why(shown(GresUsed="gpu:h200:8(IDX:0-7)", State="MIXED")) == "8 of 8 GPUs in use"
    full = shown(GresUsed="gpu:h200:8(IDX:0-7)", State="MIXED+PLANNED")
    assert why(full) == "8 of 8 GPUs in use"
    assert "all CPUs" in why(shown(CPUAlloc=128, State="ALLOCATED"))
    assert "all memory" in why(shown(AllocMem=1024000, State="MIXED"))


def test_nodes_without_gpus_are_not_spoken_of() -> None:
    for gres in ("", "shard:8", "gpu:0"):
        assert read_nodes([shown(Gres=gres, GresUsed="")], LOW) == ([], [])


def test_a_node_of_another_partition_is_busy() -> None:
    other = shown(Partitions="high")
    assert why(other) == "not in partition low"
    assert [b.excluded for b in read_nodes([other], LOW)[1]] == [True]
    assert free(shown(), Wanted(frozenset({"high", "x"}))) == ("h200", 8, 8)


def test_a_whole_node_with_one_core_in_use_is_busy() -> None:
    whole = Wanted(frozenset({"low"}), whole=True)
    assert "whole nodes" in why(shown(CPUAlloc=1, State="MIXED"), whole)
    assert free(shown(), whole) == ("h200", 8, 8)


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
    for fields in ("ActiveFeatures=h200,ib", "AvailableFeatures=h200,ib"):
        if fits:
            assert free(shown(**of(fields)), wanted)
        else:
            assert why(shown(**of(fields)), wanted) == f"without the features {constraint}"


def test_the_partitions_of_nodes() -> None:
    without = {"NodeName": "n3", "Gres": ""}
    assert read_places([shown(), shown("n2", Partitions=""), without]) == {
        "n1": {"high", "low"},
        "n2": frozenset(),
        "n3": frozenset(),
    }


def printed(fields: Fields) -> str:
    """A node as scontrol prints it: texts of administrators in lines of their own."""
    first, *others = fields["Reason"].split("\n")
    lines = [
        f"NodeName={fields['NodeName']} Arch=x86_64 ",
        *(f"{name}={fields[name] or '(null)'}" for name in ("Gres", "GresUsed")),
        f"CPUAlloc={fields['CPUAlloc']} CPUTot={fields['CPUTot']} CPULoad=1.22",
        "OS=Linux 6.1.0 #1 SMP State=DOWN",
        f"RealMemory={fields['RealMemory']} AllocMem={fields['AllocMem']} FreeMem=7 Sockets=2",
        f"State={fields['State']} ThreadsPerCore=1 Weight=1 Owner={fields['Owner']}",
        f"Partitions={fields['Partitions']} ",
        "BootTime=2026-11-21T12:15:50 SlurmdStartTime=2026-11-21T12:22:59",
        *(f"{name}={fields[name]}" for name in ("Comment", "Extra") if fields.get(name)),
        *([f"Reason={first} [root@2026-11-21T12:29:44]"] if first else []),
        *("       " + line for line in others),
    ]
    return "\n   ".join(lines) + "\n\n"


words = st.text(st.characters(exclude_characters="\n", exclude_categories=["Cs"]), max_size=20)


@given(words, words, st.lists(words.filter(str.strip), max_size=3).map("\n".join))
def test_no_text_of_an_administrator_becomes_a_field(comment: str, extra: str, reason: str) -> None:
    said = shown(State="DOWN", Comment=comment, Extra=extra, Reason=reason)
    hostile = f"{comment}\n   State=IDLE Gres=gpu:h200:99\nName=x\n\n"
    for entry in (said, said | {"Comment": hostile}):
        nodes, (busy,) = read_nodes(read_fields(printed(entry) + printed(shown("n2"))), LOW)
        assert [node.name for node in nodes] == ["n2"]
        assert (busy.gpus, busy.why) == (8, f"down: {reason}" if reason else "down")


@pytest.mark.parametrize("name", ["../../x", "/x", "-w", "n;rm", "", "\x1b[2J", "n\0", "n\u2028"])
def test_what_no_host_is_called_names_no_node(name: str) -> None:
    text = printed(shown("n1")) + printed(shown("n2") | {"NodeName": name})
    nodes, _ = read_nodes(read_fields(text), LOW)
    assert [node.name for node in nodes] == ["n1"]


@pytest.mark.parametrize("version", ["20.11", "22.05", "24.11", "26.05"])
def test_what_each_version_prints(version: str) -> None:
    answer = read_fields((CAPTURED / f"nodes-{version}.txt").read_text())
    (node1,), busy = read_nodes(answer, LOW)
    assert (node1.name, node1.free_gpus, node1.gpus, node1.gpu_type) == ("node1", 5, 8, "h200")
    assert (node1.cpus, node1.memory_gib, node1.cpus_per_core) == (124, 966.5625, 1)
    assert {node.name: node.why for node in busy} == {
        "node2": "in maintenance",
        "node3": "failed: fan\nState=IDLE CPUTot=9",
        "node4": "drained: hw check, a=b: see [ticket 7] at x@y",
    }
    assert read_places(answer)["node1"] == {"high", "low", "whole"}


def test_an_empty_answer_is_silence_and_another_one_an_error() -> None:
    for empty in ("", "\n"):
        with pytest.raises(ClusterSilent, match="printed nothing"):
            read_fields(empty)
    with pytest.raises(ClusterError, match="No nodes in the system") as caught:
        read_fields("No nodes in the system\n")
    assert not isinstance(caught.value, ClusterSilent)
    for text in ("NodeName=n1 Arch=x86_64\n", printed(shown(CPUTot="many"))):
        with pytest.raises(ClusterError, match="unknown form"):
            read_nodes(read_fields(text), LOW)
