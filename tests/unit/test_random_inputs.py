"""Whatever an input holds, it is read or refused in one message: no traceback, hang or growth."""

import io
import json
import math
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from tests.mutations import mutated_bytes, mutated_tree, within
from tests.plans import CHECKPOINT, capacity, costs
from tests.random_examples import examples

from coordinate_eval._gpus import memory_gib
from coordinate_eval.coordinator.inputs import cluster_file
from coordinate_eval.coordinator.inputs.checkpoints import checkpoint
from coordinate_eval.coordinator.inputs.checkpoints.formats import safetensors_file, torch_file
from coordinate_eval.coordinator.inputs.settings import Settings
from coordinate_eval.coordinator.inputs.suites import suite
from coordinate_eval.coordinator.planning import planner, reviewed_plan
from coordinate_eval.coordinator.planning.offer import offer_of_file
from coordinate_eval.coordinator.planning.places.degree import Demand, tensor_parallel
from coordinate_eval.coordinator.planning.plan import PlanEngine, PlanSuite
from coordinate_eval.errors import CoordinateError
from coordinate_eval.priors import gpus
from coordinate_eval.priors.conditions import model_of
from coordinate_eval.records import EngineSettings
from coordinate_eval.slurm.answers.nodes import Wanted, read_fields, read_nodes
from coordinate_eval.slurm.answers.partitions import read_partitions
from coordinate_eval.slurm.answers.queue import SQUEUE_FORMAT, read_job_id, read_tasks

randoms = st.randoms(use_true_random=False)

MOST_BYTES = 100 << 20
"""Of Python's memory for one input. Each of them is small."""


def judged(read: Callable[[], object]) -> None:
    """Read an input; it may be refused, in a message that a person can read."""
    with within(MOST_BYTES):
        try:
            read()
        except CoordinateError as error:
            assert str(error).strip()
            assert len(str(error)) < 20_000


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for one input at a time."""
    return tmp_path_factory.mktemp("inputs")


# -- checkpoints ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def saved() -> bytes:
    torch = pytest.importorskip("torch")
    made = io.BytesIO()
    state = {"a": torch.zeros(3, 4), "b": torch.ones(2, dtype=torch.bfloat16)}
    torch.save({"model": state, "step": 3, "optimizer": {"state": {0: torch.zeros(2)}}}, made)
    return made.getvalue()


@examples(80)
@given(random=randoms)
def test_state_dicts(folder: Path, saved: bytes, random: Random) -> None:
    file = folder / "model.pt"
    file.write_bytes(mutated_bytes(random, saved))
    judged(lambda: torch_file.open_source([file], []))


@examples(150)
@given(random=randoms)
def test_pickles_in_state_dicts(folder: Path, saved: bytes, random: Random) -> None:
    file = folder / "model.pt"
    with zipfile.ZipFile(io.BytesIO(saved)) as archive, zipfile.ZipFile(file, "w") as made:
        for name in archive.namelist():
            content = archive.read(name)
            if name.endswith("data.pkl"):
                content = mutated_bytes(random, content)
            made.writestr(name, content)
    judged(lambda: torch_file.open_source([file], []))


@examples(100)
@given(program=st.lists(st.sampled_from([c.code for c in __import__("pickletools").opcodes])))
def test_programs_of_a_pickle(folder: Path, program: list[str]) -> None:
    file = folder / "model.pt"
    arguments = b"0\nos\nsystem\n\x00\x00\x00\x00"
    with zipfile.ZipFile(file, "w") as made:
        made.writestr("x/data.pkl", b"".join(c.encode("latin-1") + arguments for c in program))
    judged(lambda: torch_file.open_source([file], []))


HEADER = {
    "__metadata__": {"format": "pt"},
    "a": {"dtype": "F32", "shape": [2, 2], "data_offsets": [0, 16]},
    "b": {"dtype": "BF16", "shape": [4], "data_offsets": [16, 24]},
}


@examples(80)
@given(random=randoms)
def test_headers_of_safetensors(folder: Path, random: Random) -> None:
    header = json.dumps(mutated_tree(random, HEADER)).encode()
    if random.randrange(3) == 0:
        header = mutated_bytes(random, json.dumps(HEADER).encode())
    length = random.choice((len(header), len(header), len(header), 0, 1, 2**40, 2**64 - 1))
    file = folder / "model.safetensors"
    file.write_bytes(struct.pack("<Q", length) + header + bytes(random.choice((24, 24, 23, 0))))
    judged(lambda: safetensors_file.read(file))


CONFIG = {
    "architectures": ["LlamaForCausalLM"], "hidden_size": 64, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": [2, 1], "head_dim": 16,
    "max_position_embeddings": 512, "text_config": {"n_layer": 3, "dim": 8, "multi_query": True},
}  # fmt: skip


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint whose configuration is changed."""
    made = tmp_path_factory.mktemp("checkpoint")
    header = json.dumps(HEADER).encode()
    (made / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + bytes(24))
    (made / "tokenizer.json").write_text('{"vocab": {}}')
    return made


@examples(100)
@given(random=randoms)
def test_configurations(whole: Path, random: Random) -> None:
    text = json.dumps(mutated_tree(random, CONFIG, times=4)).encode()
    if random.randrange(3) == 0:
        text = mutated_bytes(random, json.dumps(CONFIG).encode())
    (whole / "config.json").write_bytes(text)

    def read() -> None:
        found = checkpoint.inspect(whole)
        model_of(found, EngineSettings(), 1, whole / "config.json")
        demand = Demand(found, Settings(), found.max_length, [])
        tensor_parallel(demand, gpus.lookup("h100"), 256, 8)

    judged(read)


INDEX = {
    "metadata": {"total_size": 24},
    "weight_map": {"a": "one.safetensors", "b": "two.safetensors"},
}


@examples(50)
@given(random=randoms)
def test_indices(tmp_path_factory: pytest.TempPathFactory, random: Random) -> None:
    place = tmp_path_factory.mktemp("indexed")
    for name in ("one", "two"):
        header = json.dumps(HEADER).encode()
        content = struct.pack("<Q", len(header)) + header + bytes(24)
        (place / f"{name}.safetensors").write_bytes(content)
    for name in ("config.json", "tokenizer.json"):
        (place / name).write_text("{}")
    (place / "model.safetensors.index.json").write_text(json.dumps(mutated_tree(random, INDEX)))
    judged(lambda: checkpoint.inspect(place))


# -- what a user writes --------------------------------------------------------------------------

SUITE: dict[str, Any] = {
    "name": "mine", "extends": "quick", "include_path": ["."], "skip": ["arc_*"],
    "defaults": {"limit": 10, "num_fewshot": 5, "gen_kwargs": {"temperature": 0.5}},
    "datasets": [
        "gsm8k",
        {"name": "a", "task": "b", "group": "g", "items": 7, "repeats": 2, "metadata": {"x": [1]},
         "prior": {"gpu_seconds": 3.5, "cpu_seconds": 1}, "splittable": False,
         "system_instruction": "x", "chat_template": True, "think_end_token": "</t>"},
    ],
}  # fmt: skip


def written(random: Random, tree: Any) -> bytes:
    """A tree as YAML, wrong as a tree or as a text."""
    if random.randrange(2):
        return mutated_bytes(random, yaml.safe_dump(tree).encode())
    changed = mutated_tree(random, tree)
    try:
        return yaml.safe_dump(changed, allow_unicode=True).encode("utf-8", "surrogatepass")
    except (yaml.YAMLError, ValueError):
        return json.dumps(changed).encode()


@examples(60)
@given(random=randoms)
def test_suites(folder: Path, random: Random) -> None:
    tree = SUITE | {"extends": "base"} if random.randrange(3) == 0 else SUITE
    if random.randrange(2):
        tree = {key: value for key, value in tree.items() if key not in ("extends", "skip")}
    file = folder / "suite.yaml"
    file.write_bytes(written(random, tree))

    def read() -> None:
        found = suite.load(str(file))
        suite.narrow(found, skip=["nothing-*", "a"], limit=5)

    judged(read)


CLUSTER = {
    "storage_gigabits_per_node": 25.0, "engine_start_seconds": 20, "metric_cpus": 64,
    "nodes": [
        {"name": "n1", "gpus": 8, "free_gpus": 4, "gpu_type": "h200", "gpu_memory_gib": 141,
         "cpus": 64, "memory_gib": 1000.5},
        {"name": "n2", "gpus": 0},
    ],
}  # fmt: skip


@examples(100)
@given(random=randoms)
def test_cluster_files(folder: Path, random: Random) -> None:
    file = folder / "cluster.yaml"
    file.write_bytes(written(random, CLUSTER))
    judged(lambda: offer_of_file("slurm", cluster_file.load(file), 0))


@pytest.fixture(scope="module")
def plan() -> Any:
    made = planner.plan_on_capacity(
        CHECKPOINT,
        PlanSuite(name="s", digest="d"),
        PlanEngine(name="vllm", args={"max_num_seqs": 4}),
        costs(4),
        capacity(2, 2),
    )
    printed = reviewed_plan.sealed(made)
    return json.loads(printed.model_dump_json(by_alias=True))


@examples(100)
@given(random=randoms)
def test_plans(folder: Path, plan: Any, random: Random) -> None:
    text = json.dumps(mutated_tree(random, plan)).encode()
    if random.randrange(4) == 0:
        text = mutated_bytes(random, json.dumps(plan).encode())
    file = folder / "plan.json"
    file.write_bytes(text)
    judged(lambda: reviewed_plan.read(file))


# -- what Slurm answers --------------------------------------------------------------------------

TESTS = Path(__file__).parents[1]


RECORD = SQUEUE_FORMAT[0]
QUEUE = f"{RECORD}12_3|RUNNING|None|n1|ce-a-trials-0\n{RECORD}13|PENDING|Resources||ce-a|b\nc\n"
PARTITIONS = (
    "PartitionName=low Default=YES OverSubscribe=EXCLUSIVE:1 State=UP MaxTime=1-00:00:00\n"
    "PartitionName=x Default=NO MaxTime=UNLIMITED\n"
)


@examples(100)
@given(random=randoms)
def test_texts_of_slurm(random: Random) -> None:
    for text in (QUEUE, PARTITIONS, "123;cluster\n"):
        changed = mutated_bytes(random, text.encode()).decode(errors="replace")
        judged(lambda changed=changed: read_tasks(changed, "ce-"))  # type: ignore[misc]
        judged(lambda changed=changed: read_partitions(changed))  # type: ignore[misc]
        judged(lambda changed=changed: read_job_id(changed))  # type: ignore[misc]


@examples(100)
@given(random=randoms)
def test_texts_of_nodes(random: Random) -> None:
    text = random.choice(list((TESTS / "fixtures" / "slurm").glob("nodes-*.txt"))).read_bytes()
    changed = mutated_bytes(random, text).decode(errors="replace")
    wanted = Wanted(frozenset({"low"}), constraint=random.choice(("", "h200&ib", "a|b", "[a*2]")))
    judged(lambda: read_nodes(read_fields(changed), wanted))


@pytest.mark.parametrize("digits", [400, 5000])
def test_numbers_that_no_time_or_size_has(digits: int) -> None:
    number = "9" * digits
    found = read_partitions(f"PartitionName=x MaxTime={number}-0:{number}:0")["x"]
    assert found.minutes == math.inf
    assert memory_gib(f"h100_{number}gb") == 80
