"""Checkpoints of Megatron are put together of all ranks' files, under Hugging Face's names."""

import argparse
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from tests import checkpoints, rank_checkpoints, trainers
from tests.checkpoints import refused

from coordinate_eval.coordinator.inputs.checkpoints.checkpoint import inspect
from coordinate_eval.coordinator.inputs.checkpoints.formats import megatron
from coordinate_eval.coordinator.inputs.checkpoints.reading import source
from coordinate_eval.records import CheckpointFormat

torch = pytest.importorskip("torch")
distributed = pytest.importorskip("torch.distributed.checkpoint")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with the config and tokenizer of a small Llama."""
    return sides(tmp_path / "run", "llama")


def sides(folder: Path, kind: str) -> Path:
    folder.mkdir()
    config = {"model_type": kind, "architectures": ["X"], **trainers.CONFIGS[kind]}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "tokenizer.json").write_text('{"vocab": {}}')
    return folder


def configure(folder: Path, **config: object) -> None:
    """Set these of a folder's config."""
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | config))


def whole(kind: str = "llama", layout: str = "local") -> dict[str, Any]:
    """Weights as one rank of Megatron has them."""
    made = trainers.megatron(trainers.weights(kind), trainers.CONFIGS[kind], layout)
    return {name: tensor for name, tensor in made.items() if "_extra_state" not in name}


def same(place: Path, kind: str = "llama") -> None:
    """Check that a checkpoint has the tensors of Hugging Face's model, bit for bit."""
    assert inspect(place).format is CheckpointFormat.MEGATRON
    checkpoints.same(place, trainers.weights(kind))


@pytest.mark.parametrize(
    "ranks",
    [
        {},
        {"tensor": 2},
        {"pipeline": 3},
        {"tensor": 2, "pipeline": 2},
        {"pipeline": 1, "virtual": 3},
        {"tensor": 2, "pipeline": 2, "virtual": 2},
    ],
    ids=str,
)
@pytest.mark.parametrize("old", [False, True])
def test_files_of_ranks_are_put_together(folder: Path, ranks: dict[str, int], old: bool) -> None:
    step = rank_checkpoints.megatron(folder, whole(), old=old, **ranks)
    same(folder)
    same(step)


@pytest.mark.parametrize("ranks", [{"expert": 2}, {"tensor": 2, "pipeline": 3, "expert": 2}])
def test_experts_of_ranks_are_numbered_through(tmp_path: Path, ranks: dict[str, int]) -> None:
    folder = sides(tmp_path / "run", "mixtral")
    rank_checkpoints.megatron(folder, whole("mixtral"), num_experts=4, **ranks)  # type: ignore[arg-type]
    same(folder, "mixtral")


@pytest.mark.parametrize("kind", ["llama", "mixtral"])
@pytest.mark.parametrize(
    ("layout", "optimizer"),
    [("rank", "optimizer"), ("stacked", "chained_0.optimizer"), ("single", "optimizer")],
)
def test_distributed_checkpoints_are_read(
    tmp_path: Path, kind: str, layout: str, optimizer: str
) -> None:
    folder = sides(tmp_path / "run", kind)
    step = folder / "iter_0000100"
    content = whole(kind, layout)
    content |= {f"{optimizer}.state.exp_avg.{name}": t + 1 for name, t in content.items()}
    distributed.save(content, checkpoint_id=step, no_dist=True)
    torch.save({"args": argparse.Namespace(num_layers=3), "iteration": 100}, step / "common.pt")
    (step / "metadata.json").write_text('{"sharded_backend": "torch_dist"}')
    (folder / "latest_checkpointed_iteration.txt").write_text("100\n")
    same(folder, kind)
    same(step, kind)


def test_a_copy_of_the_embedding_on_the_last_rank_does_not_count(folder: Path) -> None:
    configure(folder, tie_word_embeddings=True)
    untied = "untie_embeddings_and_output_weights"
    rank_checkpoints.megatron(folder, whole(), pipeline=3, **{untied: False})
    assert "lm_head.weight" not in source(inspect(folder)).tensors


@pytest.mark.parametrize("missing", ["mp_rank_00_001", "mp_rank_01_000"])
def test_ranks_that_are_missing_are_counted(folder: Path, missing: str) -> None:
    step = rank_checkpoints.megatron(folder, whole(), tensor=2, pipeline=3)
    (step / missing / "model_optim_rng.pt").unlink()
    refused(folder, missing, "incomplete")
    shutil.rmtree(step / missing)
    refused(folder, "files of 5 ranks", "2 tensor × 3 pipeline × 1 expert")


def test_a_layer_of_a_number_beyond_all_layers_is_no_layer(folder: Path) -> None:
    (file,) = rank_checkpoints.megatron(folder, whole()).glob("*/model_optim_rng.pt")
    content = torch.load(file, weights_only=False)
    name = f"decoder.layers.{'9' * 5000}.weight"
    content["model"][name] = torch.zeros(2)
    torch.save(content, file)
    assert name in megatron.open_source([file], []).tensors


def test_files_of_two_steps_are_told_apart(folder: Path, tmp_path: Path) -> None:
    step = rank_checkpoints.megatron(folder, whole(), tensor=2)
    later = rank_checkpoints.megatron(tmp_path, whole(), tensor=2, steps=200)
    shutil.copytree(later / "mp_rank_01", step / "mp_rank_01", dirs_exist_ok=True)
    refused(folder, "files of two steps", "is of 100", "of 200")


def test_a_tensor_that_ranks_divide_in_an_unknown_way_is_named(folder: Path) -> None:
    tensors = {**whole(), "decoder.layers.0.mixer.in_proj.weight": torch.ones(4, 4)}
    rank_checkpoints.megatron(folder, tensors, tensor=2)
    refused(folder, "cannot be told how tensor ranks divide", "mixer.in_proj.weight")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"apply_layernorm_1p": True}, "apply_layernorm_1p"),
        ({"layernorm_zero_centered_gamma": True}, "layernorm_zero_centered_gamma"),
        ({"num_attention_heads": 8, "num_query_groups": 4}, "num_attention_heads 8"),
        ({"num_attention_heads": 4, "group_query_attention": False}, "num_query_groups 4"),
        ({"position_embedding_type": "rope", "rotary_base": 500_000}, "rotary_base 500000"),
        ({"rotary_interleaved": True}, "rotary_interleaved"),
        ({"num_experts": 4, "expert_tensor_parallel_size": 1}, "--ckpt-format torch_dist"),
    ],
)
def test_weights_that_mean_something_else_are_refused(
    folder: Path, arguments: dict[str, Any], words: str
) -> None:
    rank_checkpoints.megatron(folder, whole(), tensor=2, **arguments)
    configure(folder, rope_theta=10_000.0)
    refused(folder, words)


def test_what_a_converter_has_written_need_not_tell_the_rotary_base(folder: Path) -> None:
    rotary: dict[str, Any] = {"position_embedding_type": "rope", "rotary_base": 500_000}
    step = rank_checkpoints.megatron(folder, whole(), tensor=2, **rotary)
    configure(folder, rope_theta=10_000.0)
    step.rename(folder / "release")
    (folder / "latest_checkpointed_iteration.txt").write_text("release")
    same(folder)


def test_stages_of_a_pipeline_may_have_no_layer(folder: Path) -> None:
    rank_checkpoints.megatron(folder, whole(), pipeline=2, virtual=4)
    same(folder)


def test_layers_that_predict_further_tokens_are_left_out(folder: Path) -> None:
    further = {"mtp.layers.0.eh_proj.weight": torch.ones(32, 64)}
    rank_checkpoints.megatron(folder, {**whole(), **further}, tensor=2, pipeline=2)
    same(folder)


@pytest.mark.parametrize("way", ["common_state", "torch_dcp", "run_config"])
def test_settings_of_training_count_wherever_they_are(folder: Path, way: str) -> None:
    step = folder / "iter_0000100"
    refused_setting = {"layernorm_zero_centered_gamma": True}
    told = argparse.Namespace(**refused_setting)
    objects: dict[str, Any] = {}
    if way == "common_state":
        objects["common_state/shard_0_1"] = [{"args": told, "iteration": 100}]
    elif way == "torch_dcp":
        objects["args"] = told
    planner = distributed.DefaultSavePlanner(flatten_state_dict=False)
    distributed.save({**whole(), **objects}, checkpoint_id=step, planner=planner, no_dist=True)
    if way == "run_config":
        (step / "run_config.yaml").write_text(json.dumps({"model": refused_setting}))
    refused(step, "layernorm_zero_centered_gamma")

    told.layernorm_zero_centered_gamma = False
    (step / "run_config.yaml").unlink(missing_ok=True)
    distributed.save({**whole(), **objects}, checkpoint_id=step, planner=planner, no_dist=True)
    same(step)


def test_the_tracker_names_a_step_that_must_be_there(folder: Path) -> None:
    rank_checkpoints.megatron(folder, whole())
    (folder / "latest_checkpointed_iteration.txt").write_text("200")
    refused(folder, "iter_0000200", "not there")


def test_the_file_of_one_rank_points_to_the_folder_above(folder: Path) -> None:
    step = rank_checkpoints.megatron(folder, whole())
    refused(step / "mp_rank_00", "a file of a rank", "Give the folder above")
