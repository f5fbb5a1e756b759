"""Models larger than a node: nodes that share an engine, and what follows for jobs and copies."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.decisions import DIR, all_submits, facts, make_run, stage, submits, submitted, tasks
from tests.incidents import incident, judge, trial
from tests.plans import CHECKPOINT, costs

from coordinate_eval import _files
from coordinate_eval.clusters.protocol import Busy, End, Node, State
from coordinate_eval.coordinator.incidents.incident import keeper_id
from coordinate_eval.coordinator.inputs.checkpoints import checkpoint as checkpoints
from coordinate_eval.coordinator.inputs.checkpoints import pipeline
from coordinate_eval.coordinator.inputs.settings import Settings
from coordinate_eval.coordinator.inputs.suites import suite
from coordinate_eval.coordinator.planning import planner
from coordinate_eval.coordinator.planning.costs import expected_works
from coordinate_eval.coordinator.planning.places import nodes as select
from coordinate_eval.coordinator.planning.places.degree import Demand
from coordinate_eval.coordinator.planning.places.nodes import NoFreeGpu
from coordinate_eval.coordinator.planning.plan import (
    Capacity,
    ChosenNodes,
    PlanEngine,
    PlanSuite,
)
from coordinate_eval.coordinator.run import jobs
from coordinate_eval.coordinator.run.paths import RunDir
from coordinate_eval.coordinator.run.records import Round, RoundNode
from coordinate_eval.coordinator.supervisor.decide import decide
from coordinate_eval.coordinator.supervisor.decide_rounds import last_round_recurs
from coordinate_eval.coordinator.workers.on_node.staging import StagedWeights
from coordinate_eval.errors import UserError
from coordinate_eval.records import Checkpoint, CheckpointFormat, EngineSettings


def large(
    gigabytes: float, parameters: float, layers: int, kv_bytes: int, kv_heads: int
) -> Checkpoint:
    return Checkpoint(
        path="/c", identity="", format=CheckpointFormat.SAFETENSORS, weights=[], files=[],
        bytes=int(gigabytes * 1e9), parameters=int(parameters * 1e9), dtype="bfloat16",
        max_length=8192, attention_heads=128, kv_bytes_per_token=kv_bytes, kv_heads=kv_heads,
        stages=layers,
    )  # fmt: skip


LLAMA_405B = large(811.7, 405.9, 126, 516_096, 8)
V3_FP8 = large(688.6, 671, 61, 70_272, 1)
V3_BF16 = large(1342, 671, 61, 70_272, 1)


def nodes(count: int, gpus: int, gib: float, kind: str) -> list[Node]:
    return [
        Node(
            name=f"n{number}", gpus=gpus, free_gpus=gpus, gpu_type=kind, gpu_memory_gib=gib,
            cpus=128, memory_gib=2000,
        )
        for number in range(1, count + 1)
    ]  # fmt: skip


def chosen(
    checkpoint: Checkpoint, there: Sequence[Node], busy: Sequence[Busy] = (), **settings: Any
) -> ChosenNodes:
    wanted = Settings.model_validate(settings, extra="forbid")
    works = expected_works(suite.load("base"))
    return select.choose_nodes(Demand(checkpoint, wanted, 8192, works, True), there, busy)


@pytest.mark.parametrize(
    ("checkpoint", "gpus", "gib", "kind", "on"),
    [
        (LLAMA_405B, 8, 80, "h100", 2), (LLAMA_405B, 8, 141, "h200", 1),
        (LLAMA_405B, 4, 192, "b200", 2),
        (V3_FP8, 8, 80, "h100", 2), (V3_FP8, 8, 141, "h200", 1), (V3_FP8, 4, 192, "b200", 1),
        (V3_BF16, 8, 80, "h100", 3), (V3_BF16, 8, 141, "h200", 2), (V3_BF16, 4, 192, "b200", 3),
    ],
)  # fmt: skip
def test_an_engine_gets_the_fewest_nodes_that_are_fast(
    checkpoint: Checkpoint, gpus: int, gib: float, kind: str, on: int
) -> None:
    found = chosen(checkpoint, nodes(6, gpus, gib, kind))
    assert (found.nodes_per_trial, found.gpus_per_trial) == (on, on * gpus)
    assert [len(each.others) for each in found.nodes] == [on - 1] * (6 // on)
    everywhere = [name for each in found.nodes for name in (each.name, *each.others)]
    assert len(set(everywhere)) == len(everywhere)


def test_what_the_settings_allow_counts() -> None:
    there = nodes(6, 8, 80, "h100")
    assert len(chosen(LLAMA_405B, there, max_gpus=40).nodes) == 2
    assert len(chosen(LLAMA_405B, there, nodes="3").nodes) == 1
    four = chosen(LLAMA_405B, nodes(6, 8, 80, "h100"), trial={"tensor_parallel": 4})
    assert (four.gpus_per_trial, four.nodes_per_trial) == (12 + 4, 4)
    with pytest.raises(UserError, match="--max-gpus 8: one trial of this model needs 16"):
        chosen(LLAMA_405B, there, max_gpus=8)
    with pytest.raises(UserError, match=r"allow 1 node, which is too few"):
        chosen(LLAMA_405B, there, nodes="1")


def test_an_adapter_that_is_served_has_one_node() -> None:
    there = nodes(6, 8, 80, "h100")
    with pytest.raises(UserError, match=r"takes 2 nodes, .* leave engine argument enable_lora out"):
        chosen(LLAMA_405B, there, engine={"args": {"enable_lora": True}})


def test_nodes_of_unequal_numbers_of_gpus_are_named() -> None:
    eight, four = nodes(2, 8, 80, "h100")
    four = four.model_copy(update={"gpus": 4, "free_gpus": 4})
    with pytest.raises(UserError, match=r"2 nodes with unequal numbers of GPUs \(4, 8\)"):
        chosen(LLAMA_405B, [eight, four])


def test_a_run_waits_for_nodes_that_are_busy() -> None:
    one, two = nodes(2, 8, 80, "h100")
    half = two.model_copy(update={"free_gpus": 4})
    with pytest.raises(NoFreeGpu, match="takes 2 nodes, with 8 free GPUs on each, and 1 of them"):
        chosen(LLAMA_405B, [one, half])
    taken = Busy(name="n2", why="all GPUs are in use", gpus=8, gpu_type="h100", gpu_memory_gib=80)
    with pytest.raises(NoFreeGpu, match="n2: all GPUs are in use"):
        chosen(LLAMA_405B, [one], [taken])
    with pytest.raises(UserError, match="Nor can 1 node share it") as caught:
        chosen(LLAMA_405B, [one])
    assert not isinstance(caught.value, NoFreeGpu)


@pytest.mark.parametrize("settings", [{}, {"engine": EngineSettings(name="transformers")}])
def test_elsewhere_a_model_has_one_node(settings: dict[str, Any]) -> None:
    wanted = Demand(LLAMA_405B, Settings(**settings), 8192, [])
    with pytest.raises(UserError, match="Only vLLM on Slurm shares a model between nodes"):
        select.choose_nodes(wanted, nodes(6, 8, 80, "h100"), [])


def test_a_plan_stages_a_part_on_each_node() -> None:
    found = chosen(LLAMA_405B, nodes(4, 8, 80, "h100"))
    capacity = Capacity(
        nodes=found.nodes, gpus_per_trial=16, nodes_per_trial=2, node_bytes=41 * 10**10,
        engine_start_seconds=60, storage_gigabits_per_node=25, metric_cpus=8,
    )  # fmt: skip
    engine = PlanEngine(name="vllm", args={})
    plan = planner.plan_on_capacity(
        LLAMA_405B, PlanSuite(name="s", digest=""), engine, costs(4), capacity
    )
    made = json.loads(plan.model_dump_json(by_alias=True))
    assert (made["gpus_per_trial"], made["nodes_per_trial"]) == (16, 2)
    assert [node["name"] for node in made["nodes"]] == ["n1", "n2", "n3", "n4"]
    assert [(s["node"], s["bytes"]) for s in made["stages"]] == [
        (f"n{number}", 41 * 10**10) for number in range(1, 5)
    ]
    assert made["stages"][0]["seconds"] == pytest.approx(41e10 * 8 / 25e9)
    assert [(t["node"], t["nodes"], t["gpus"]) for t in made["trials"]] == [
        ("n1", ["n1", "n2"], 16), ("n3", ["n3", "n4"], 16),
    ]  # fmt: skip


PAIR = RoundNode(name="n1", gpu_type="h200", trials=1, others=["n2"])
WIDE = make_run(
    tensor_parallel=8, nodes_per_trial=2, node_bytes=10**9, staged_bytes=CHECKPOINT.bytes
)
ROUND = Round(number=0, created=0, nodes=[PAIR], minutes=30)
KEEPERS = ["ce-r.0-keep0-n1", "ce-r.0-keep0-n2"]
TRIAL = "ce-r.0-trial0-n1"


def test_the_job_of_a_trial_has_all_of_its_nodes() -> None:
    job = jobs.trials_job(WIDE, DIR, ROUND, PAIR)
    assert (job.node, job.nodes, job.gpus, job.count) == ("n1,n2", 2, 8, 1)
    alone = jobs.node_job(WIDE, DIR, ROUND, PAIR)
    assert alone.argv[-2:] == ("--keeps", "1")
    assert alone.memory_mib > job.memory_mib
    queued = RoundNode(name="queued", gpu_type="h200", trials=3)
    job = jobs.trials_job(WIDE, DIR, ROUND, queued)
    assert (job.node, job.nodes, job.count) == (None, 2, 3)


def test_each_node_has_a_keeper_and_trials_follow_when_all_have_copied() -> None:
    run = WIDE.model_copy(update={"copy_seconds": 1000.0})
    new = facts(rounds=[ROUND])
    assert submits(decide(run, DIR, new)) == KEEPERS
    keeping = facts(
        rounds=[ROUND], submitted=submitted(*KEEPERS, count=1),
        tasks=[*tasks(KEEPERS[0], State.RUNNING), *tasks(KEEPERS[1], State.RUNNING)],
        stages={(0, "n1"): stage(9, 9, 5, "ready"), (0, "n2"): stage(1, 100, 50)},
    )  # fmt: skip
    assert submits(decide(run, DIR, keeping)) == []
    keeping.stages[0, "n2"] = stage(9, 9, 5, "ready")  # type: ignore[index]
    assert submits(decide(run, DIR, keeping)) == [TRIAL]
    exclusive = WIDE.model_copy(update={"exclusive": True})
    (job,) = all_submits(decide(exclusive, DIR, new))
    assert (job.name, job.nodes, job.argv[-2:]) == (TRIAL, 2, ("--keeps", "1"))


def test_a_keeper_that_dies_without_a_word_is_seen_on_each_node(tmp_path: Path) -> None:
    made = RunDir(tmp_path)
    _files.write_record(made.run, WIDE)
    _files.write_record(made.round(0), ROUND)
    dead = [
        task.model_copy(update={"end": End.FAILED})
        for keeper in KEEPERS
        for task in tasks(keeper, State.ENDED)
    ]
    found = judge(made, dead)
    assert [(each.job, each.node) for each in found] == [
        (keeper_id(0, "n1"), "n1"), (keeper_id(0, "n2"), "n2"),
    ]  # fmt: skip


def test_keepers_that_a_trial_followed_do_not_tell_of_its_round() -> None:
    keeper = incident(keeper_id(0, "n2"), "n2", reason="Permission Error")
    last = ROUND, [trial("n1-0", "n1", others=["n2"])]
    found = last_round_recurs(facts(last=last, incidents=[incident("n1-0"), keeper]))
    assert found is not None
    assert found.last.reason == "Import Error"


@pytest.mark.parametrize(
    ("layers", "stages", "counts"),
    [
        (126, 2, [63, 63]), (61, 2, [31, 30]), (61, 3, [20, 21, 20]), (61, 4, [15, 15, 16, 15]),
        (62, 4, [15, 16, 16, 15]), (63, 4, [16, 16, 16, 15]), (7, 5, [1, 1, 2, 2, 1]), (5, 1, [5]),
    ],
)  # fmt: skip
def test_layers_are_divided_as_vllm_divides_them(
    layers: int, stages: int, counts: list[int]
) -> None:
    assert pipeline.layers_of_stages(layers, stages) == counts


def indexed(folder: Path, weight_map: dict[str, str], layers: int) -> Checkpoint:
    """A checkpoint of files with their own names in them."""
    folder.mkdir(exist_ok=True)
    names = sorted(set(weight_map.values()))
    for name in names:
        (folder / name).write_bytes(name.encode() * 1000)
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": weight_map}))
    weights = [folder / name for name in names]
    return LLAMA_405B.model_copy(
        update={
            "path": str(folder), "weights": list(map(str, weights)), "files": [str(index)],
            "bytes": sum(path.stat().st_size for path in weights), "stages": layers,
            "identity": checkpoints._identity(weights, [index]),
        }
    )  # fmt: skip


LAYERS = {f"model.layers.{n}.w": f"l{n}.safetensors" for n in range(5)}
REST = {"model.embed_tokens.w": "rest.safetensors", "lm_head.w": "rest.safetensors"}


def names(checkpoint: Checkpoint, place: int, count: int) -> list[str]:
    files = pipeline.files_of_node(checkpoint, place, count)
    return [Path(name).name.removesuffix(".safetensors") for name in files]


def test_a_node_needs_the_files_with_its_layers(tmp_path: Path) -> None:
    found = indexed(tmp_path, {**LAYERS, **REST}, 5)
    assert names(found, 0, 2) == ["l0", "l1", "l2", "rest"]
    assert names(found, 1, 2) == ["l3", "l4", "rest"]
    assert names(found, 0, 1) == ["l0", "l1", "l2", "l3", "l4", "rest"]
    each, rest = len("l0.safetensors"), len("rest.safetensors")
    sizes = [1000 * (3 * each + rest), 1000 * (2 * each + rest)]
    assert pipeline.bytes_of_nodes(found, 2) == sizes
    # A layer that predicts further tokens belongs to the last; a file may have layers of both.
    more = {**LAYERS, "model.layers.5.eh_proj": "mtp.safetensors"}
    assert names(indexed(tmp_path, more, 5), 1, 2) == ["l3", "l4", "mtp"]
    shared = {**LAYERS, "model.layers.2.v": "l3.safetensors"}
    assert names(indexed(tmp_path, shared, 5), 0, 2) == ["l0", "l1", "l2", "l3"]


def test_layers_that_are_not_recognized_go_everywhere(tmp_path: Path) -> None:
    towers = {f"vision.layers.{n}.w": f"v{n}.safetensors" for n in range(9)}
    both = indexed(tmp_path / "a", {**LAYERS, **towers}, 5)
    assert len(names(both, 0, 2)) == len(names(both, 1, 2)) == 14
    few = {f"vision.layers.{n}.w": f"v{n}.safetensors" for n in range(3)}
    assert names(indexed(tmp_path / "b", {**LAYERS, **few}, 5), 1, 2) == [
        "l3", "l4", "v0", "v1", "v2",
    ]  # fmt: skip


def test_a_node_copies_its_part_alone_and_an_index_of_it(tmp_path: Path) -> None:
    found = indexed(tmp_path / "c", {**LAYERS, **REST}, 5)
    weights = StagedWeights(str(tmp_path), "run", "n2", (1, 2))
    with weights.hold():
        assert weights.copy(found)
        there = {path.name: path for path in weights.folder.glob("*.safetensors")}
        assert sorted(there) == ["l3.safetensors", "l4.safetensors", "rest.safetensors"]
        assert not any(path.is_symlink() for path in there.values())
        index = json.loads((weights.folder / "model.safetensors.index.json").read_text())
        assert set(index["weight_map"].values()) == set(there)
        assert weights.ready(found.identity)
        first = StagedWeights(str(tmp_path), "run", "n2", (0, 2))
        assert not first.ready(found.identity), "at another place, other layers are needed"
        with first.hold():
            assert first.copy(found)
            assert (first.folder / "l0.safetensors").exists()
            assert weights.ready(found.identity)
        # A keeper there removes what a killed trial at another place left.
        left = first.folder
        left.mkdir()
        (left.parent / f"{left.name}.lock").touch()
        assert weights.remove_abandoned() == [left]
        assert weights.ready(found.identity)
    with weights.hold():
        assert weights.copy(found, most_bytes=100.0)
        linked = list(weights.folder.glob("*.safetensors"))
        assert len(linked) == 3
        assert all(path.is_symlink() for path in linked)
