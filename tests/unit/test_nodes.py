"""The choice of nodes."""

from collections.abc import Sequence

import pytest
from tests.plans import CHECKPOINT

from coordinate_eval.clusters.protocol import Busy, Node
from coordinate_eval.coordinator.inputs.settings import Settings
from coordinate_eval.coordinator.planning.places import asked_nodes
from coordinate_eval.coordinator.planning.places import nodes as select
from coordinate_eval.coordinator.planning.places.degree import Demand
from coordinate_eval.coordinator.planning.places.nodes import NoFreeGpu
from coordinate_eval.errors import UserError
from coordinate_eval.priors.roofline import Work
from coordinate_eval.records import Checkpoint


def node(name: str, **values: object) -> Node:
    default = {
        "gpus": 8,
        "free_gpus": 8,
        "gpu_type": "h200",
        "cpus": 128,
        "memory_gib": 1000.0,
    }
    return Node.model_validate({"name": name, **default, **values}, extra="forbid")


def chosen(among: list[Node], **settings: object) -> dict[str, int]:
    found = select.nodes_with_room(
        among, [], Settings.model_validate(settings, extra="forbid"), 1, 20
    )
    return {n.name: n.trials for n in found}


def test_the_least_of_gpus_cores_and_memory_counts() -> None:
    nodes = [
        node("gpus", free_gpus=3),
        node("cores", cpus=9),
        node("memory", memory_gib=20 + 5 * 16 + 1),
        node("none", memory_gib=30),
    ]
    assert chosen(nodes) == {"memory": 5, "gpus": 3, "cores": 2}


def test_a_trial_on_several_gpus_takes_cores_and_memory_for_each() -> None:
    nodes = [
        node("gpus", free_gpus=7),
        node("cores", cpus=17),
        node("memory", memory_gib=20 + 3 * 16),
        node("keeper", cpus=34),
    ]
    found = {n.name: n for n in select.nodes_with_room(nodes, [], Settings(), 2, 20)}
    assert {name: n.trials for name, n in found.items()} == {
        "keeper": 4, "gpus": 3, "cores": 2, "memory": 1
    }  # fmt: skip
    assert found["keeper"].keeper_cpus == 2


@pytest.mark.parametrize(
    ("cpus", "gib", "fields", "taken"),
    [
        (8, 32, {}, 8),
        (8, 32, {"gib_per_cpu": 4000 / 1024}, 9),
        (8, 32, {"gib_per_cpu": 4000 / 1024, "cpus_per_core": 2}, 10),
        (8, 32, {"gib_per_cpu": 4}, 8),
        (1, 0.1, {"cpus_per_core": 2}, 2),
        (3, 0, {"cpus_per_core": 4}, 4),
        (4, 14, {"gib_per_cpu": 4000 / 1024, "cpus_per_core": 2}, 4),
    ],
)
def test_memory_costs_cpus_and_cores_are_given_whole(
    cpus: int, gib: float, fields: dict[str, float], taken: int
) -> None:
    assert node("n", **fields).cpus_of(cpus, gib) == taken


def test_trials_are_counted_with_the_cpus_that_they_get() -> None:
    limited = {"cpus": 64, "gib_per_cpu": 4000 / 1024, "cpus_per_core": 2}
    trial = {"cpus": 8, "memory_gib": 32}
    settings = Settings.model_validate({"trial": trial})
    (found,) = select.nodes_with_room([node("n", **limited)], [], settings, 1, 14)
    assert (found.trials, found.keeper_cpus) == (6, 4)
    with pytest.raises(UserError, match=r"it takes 10 cores \(8 asked for.* and 6 cores on each"):
        chosen([node("n", **limited | {"cpus": 12})], trial=trial)


@pytest.mark.parametrize(("cores", "keeper"), [(128, 4), (35, 3), (33, 1), (32, 4), (9, 1)])
def test_a_keeper_gets_the_cores_of_the_settings_unless_trials_need_them(
    cores: int, keeper: int
) -> None:
    (found,) = select.nodes_with_room([node("n", cpus=cores)], [], Settings(), 1, 20)
    assert found.keeper_cpus == keeper
    assert found.trials == min(8, (cores - 1) // 4)


def demand(works: Sequence[Work], /, **settings: object) -> Demand:
    return Demand(CHECKPOINT, Settings.model_validate(settings, extra="forbid"), 2048, works)


def picked(*nodes: Node, **settings: object) -> tuple[dict[str, int], int]:
    works = [
        Work(items=9, requests=9000, prompt_tokens=9e6, output_tokens=2e6, longest_output_tokens=99)
    ]
    found = select.choose_nodes(demand(works, **settings), nodes, [])
    return {f"{n.name}:{n.gpu_type}": n.trials for n in found.nodes}, found.gpus_per_trial


def test_the_type_whose_free_gpus_are_fastest_together() -> None:
    small = node("s", gpu_type="t4", free_gpus=8, gpus=8)
    (two,) = picked(small, node("h", gpu_type="h100", free_gpus=2))[0]
    assert two == "h:h100"
    slices = node("m", gpus=56, free_gpus=56, gpu_type="1g.20gb", gpu_memory_gib=20, cpus=400)
    whole = node("h", gpu_type="nvidia_h100_80gb_hbm3", gpu_memory_gib=80)
    assert list(picked(slices, whole)[0]) == ["h:nvidia_h100_80gb_hbm3"]
    assert picked(slices, whole, gpu_type="1g.20gb") == ({"m:1g.20gb": 56}, 1)
    assert list(picked(small, whole, gpu_type="h100")[0]) == ["h:nvidia_h100_80gb_hbm3"]


def test_a_type_that_is_not_there_is_named() -> None:
    with pytest.raises(UserError, match="free are GPUs t4") as caught:
        picked(node("s", gpu_type="t4"), gpu_type="h100")
    assert not isinstance(caught.value, NoFreeGpu)


def test_slices_of_gpus_share_no_model() -> None:
    with pytest.raises(UserError, match="cannot share a model"):
        picked(node("m", gpu_type="3g.40gb"), trial={"tensor_parallel": 2})


SEVENTY = CHECKPOINT.model_copy(update={"bytes": 140 * 10**9, "parameters": 70 * 10**9})


def degree(checkpoint: Checkpoint, **of: object) -> int:
    wanted = Demand(checkpoint, Settings(), 2048, [])
    return select.choose_nodes(wanted, [node("n", **of)], []).gpus_per_trial


def test_a_large_model_gets_several_gpus() -> None:
    assert degree(SEVENTY, gpu_type="h100") > 1
    assert degree(SEVENTY, gpu_memory_gib=80) > 1


def test_a_model_is_planned_on_gpus_of_unknown_memory_only_if_it_fits_any() -> None:
    small = CHECKPOINT.model_copy(update={"bytes": 2 * 10**9, "parameters": 10**9})
    for kind, said in (("", "They have no type"), ("tesla", "Their type, tesla, does not tell it")):
        assert degree(small, gpu_type=kind) == 1
        with pytest.raises(UserError, match="the memory of the GPUs is not known") as caught:
            degree(SEVENTY, gpu_type=kind)
        assert f"{said}: set gpu_memory_gib" in str(caught.value)


def test_no_large_model_is_planned_on_a_slice_of_a_large_gpu() -> None:
    with pytest.raises(UserError, match="1 GPUs of 10 GiB"):
        degree(CHECKPOINT, gpu_type="nvidia_a100-sxm4-80gb_1g.10gb")


def test_a_run_takes_no_more_gpus_or_nodes_than_are_asked_for() -> None:
    nodes = [node(f"n{i}") for i in range(1, 5)]
    assert chosen(nodes, max_gpus=11) == {"n1": 8, "n2": 3}
    assert chosen(nodes, nodes="2") == {"n1": 8, "n2": 8}
    assert chosen(nodes, nodes="n[3-4]") == {"n3": 8, "n4": 8}


def test_nothing_free_says_what_is_busy() -> None:
    busy = [Busy(name="n1", why="8 of 8 GPUs in use")]
    with pytest.raises(NoFreeGpu) as caught:
        select.nodes_with_room([], busy, Settings(), 1, 20)
    assert "n1: 8 of 8 GPUs in use" in str(caught.value)
    assert "--queue" in str(caught.value)


def test_equal_reasons_share_a_line_and_excluded_nodes_come_last() -> None:
    busy = [
        Busy(name="cpu1", why="not in partition gpu", excluded=True),
        *(Busy(name=f"n{i}", why="8 of 8 GPUs in use") for i in range(1, 11)),
    ]
    with pytest.raises(NoFreeGpu) as caught:
        select.nodes_with_room([], busy, Settings(), 1, 20)
    assert str(caught.value).splitlines()[:3] == [
        "no node has 1 free GPU now",
        "  n1, n2, n3, n4, n5, n6, n7, n8 and 2 more: 8 of 8 GPUs in use",
        "  cpu1: not in partition gpu",
    ]


def test_nothing_waits_for_nodes_that_the_settings_exclude() -> None:
    busy = [
        Busy(name="n1", why="without the features h100", excluded=True),
        Busy(name="n2", why="8 of 8 GPUs in use"),
    ]
    with pytest.raises(UserError, match="now or later") as caught:
        choose_nodes(busy, nodes="n1")
    assert not isinstance(caught.value, NoFreeGpu)
    assert "n2" not in str(caught.value)
    with pytest.raises(NoFreeGpu):
        choose_nodes(busy)
    with pytest.raises(UserError, match="has no node with GPUs"):
        choose_nodes([])


def choose_nodes(busy: list[Busy], **settings: object) -> None:
    select.choose_nodes(demand([], **settings), [], busy)


def test_a_named_node_is_not_called_busy_for_others_of_another_type() -> None:
    nodes = [
        node("a1", gpu_type="a100", gpu_memory_gib=40.0),
        node("h1", memory_gib=5.0, gpu_memory_gib=141.0),
    ]
    with pytest.raises(UserError, match="h1") as caught:
        select.choose_nodes(demand([], nodes="h1"), nodes, [])
    assert not isinstance(caught.value, NoFreeGpu)


def test_too_little_memory_is_not_called_busy() -> None:
    with pytest.raises(UserError, match="room") as caught:
        select.nodes_with_room([node("n1", memory_gib=8)], [], Settings(), 1, 20)
    assert not isinstance(caught.value, NoFreeGpu)
    assert "n1" in str(caught.value)


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("n1", ["n1"]),
        ("n1,n2", ["n1", "n2"]),
        ("gpu[1-3,7]", ["gpu1", "gpu2", "gpu3", "gpu7"]),
        ("r[01-02]n[1-2]", ["r01n1", "r01n2", "r02n1", "r02n2"]),
        ("a,b[8-10]", ["a", "b8", "b9", "b10"]),
    ],
)
def test_lists_of_nodes_are_expanded(text: str, names: list[str]) -> None:
    assert asked_nodes.expand(text) == names


def test_naming_nodes_is_not_counting_them() -> None:
    assert asked_nodes.names_nodes(Settings(nodes="n[1-4],m"))
    assert not asked_nodes.names_nodes(Settings(nodes="4"))
    assert not asked_nodes.names_nodes(Settings())


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("n[3-1]", "3-1 counts backwards"),
        ("n[1,-2]", "cannot read '-2'"),
        ("gpu[1-99999999999]", "'1-99999999999' has too many digits"),
        ("gpu[1-999999999]", "more than 100,000 nodes"),
        ("a[1-99999],b[1-2]", "more than 100,000 nodes"),
        ("r[1-99999]n[1-99999]", "more than 100,000 nodes"),
        ("[0-9]" * 1000, "more than 100,000 nodes"),
        ("n[" + "9" * 5000 + "]", "too many digits"),
    ],
)
def test_node_lists_that_are_refused(text: str, words: str) -> None:
    with pytest.raises(UserError) as caught:
        asked_nodes.expand(text)
    assert words in str(caught.value)
    assert len(str(caught.value)) < 300


def test_long_lists_are_read_at_once() -> None:
    assert len(asked_nodes.expand(",".join(f"n{i}" for i in range(90_000)))) == 90_000
    assert asked_nodes.expand("n" + "[1]" * 2000) == ["n" + "1" * 2000]
    assert asked_nodes.expand("[" * 50_000) == ["[" * 50_000]


def test_a_number_of_nodes_that_no_cluster_has() -> None:
    with pytest.raises(UserError, match="more than any cluster has"):
        chosen([node("n1")], nodes="9" * 5000)


def test_of_many_names_that_are_not_there_some_are_said() -> None:
    with pytest.raises(UserError, match=r"is named n00, n01, .*, n19 or 78 others"):
        asked_nodes.check_names("n[00-99]", [node("n98"), node("n99")], [])
