"""Checkpoints of DeepSpeed's ZeRO are put together of the parts that ranks saved."""

import os
from pathlib import Path
from typing import Any

import pytest
from tests import rank_checkpoints
from tests.checkpoints import refused, same, sides

from coordinate_eval.coordinator.inputs.checkpoints.checkpoint import inspect
from coordinate_eval.records import CheckpointFormat

torch = pytest.importorskip("torch")

SHAPES = {"a.weight": (7, 5), "b.weight": (3,), "c.weight": (4, 2, 3), "d.bias": (1,)}


def tensors() -> rank_checkpoints.Tensors:
    made = torch.Generator().manual_seed(0)
    return {name: torch.rand(shape, generator=made) for name, shape in SHAPES.items()}


@pytest.mark.parametrize("stage", [1, 2, 3])
@pytest.mark.parametrize("ranks", [1, 2, 4])
@pytest.mark.parametrize("groups", [1, 2])
def test_float32_weights_of_all_ranks_are_put_together(
    tmp_path: Path, stage: int, ranks: int, groups: int
) -> None:
    folder = sides(tmp_path / "run")
    frozen = {"f.weight": torch.rand(5, 3).bfloat16()}
    buffers = {"inv": torch.arange(4)}

    step = rank_checkpoints.deepspeed(
        folder, tensors(), stage=stage, ranks=ranks, groups=groups, frozen=frozen,
        buffers=buffers, shared={"head.weight": "a.weight"},
    )  # fmt: skip

    whole = {**tensors(), **frozen, **buffers, "head.weight": tensors()["a.weight"]}
    same(folder, whole)
    same(step, whole)  # with the config in the folder above
    found = inspect(folder)
    assert found.format is CheckpointFormat.DEEPSPEED
    assert found.path == str(folder)
    assert found.dtype == "float32"


def test_without_the_optimizer_the_weights_of_the_model_count(tmp_path: Path) -> None:
    folder = sides(tmp_path)
    step = rank_checkpoints.deepspeed(folder, tensors(), stage=2, ranks=2)
    for file in step.glob("*optim_states.pt"):
        file.unlink()

    same(folder, {name: tensor.bfloat16() for name, tensor in tensors().items()})


def test_layers_of_a_pipeline_are_numbered_by_their_files(tmp_path: Path) -> None:
    folder = sides(tmp_path)
    torch.save({"module": None}, folder / "mp_rank_00_model_states.pt")
    for layer in (2, 10):
        part = {"mlp.weight": torch.full((2,), float(layer))}
        torch.save(part, folder / f"layer_{layer:02}-model_00-model_states.pt")

    same(folder, {f"sequential.{n}.mlp.weight": torch.full((2,), float(n)) for n in (2, 10)})


def test_parts_of_ranks_are_read_instead_of_a_hull_beside_them(tmp_path: Path) -> None:
    folder = sides(tmp_path)
    rank_checkpoints.deepspeed(folder, tensors(), stage=3, ranks=2)
    torch.save({name: torch.empty(0) for name in SHAPES}, folder / "pytorch_model.bin")
    same(folder, tensors())

    torch.save(dict(tensors()), folder / "pytorch_model.bin")
    assert inspect(folder).weights == [str(folder / "pytorch_model.bin")]


def test_a_hull_without_the_parts_of_ranks_is_refused(tmp_path: Path) -> None:
    folder = sides(tmp_path)
    torch.save({name: torch.empty(0) for name in SHAPES} | {"x": torch.ones(3)}, folder / "x.bin")
    (folder / "latest").write_text("global_step100")
    refused(folder, "are empty", "ZeRO-3")


@pytest.mark.parametrize("stage", [2, 3])
@pytest.mark.parametrize("missing", [0, 1, 3])
def test_a_missing_rank_is_named(tmp_path: Path, stage: int, missing: int) -> None:
    folder = sides(tmp_path)
    step = rank_checkpoints.deepspeed(folder, tensors(), stage=stage, ranks=4)
    (step / f"zero_pp_rank_{missing}_mp_rank_00_optim_states.pt").unlink()
    refused(folder, str(step), "saved by 4 ranks", f"rank {missing} are missing")


def test_a_file_of_a_rank_that_is_torn_is_named(tmp_path: Path) -> None:
    folder = sides(tmp_path)
    step = rank_checkpoints.deepspeed(folder, tensors(), stage=3, ranks=2)
    torn = step / "zero_pp_rank_1_mp_rank_00_optim_states.pt"
    torn.write_bytes(torn.read_bytes()[:-200])
    refused(folder, str(torn), "incomplete")


@pytest.mark.parametrize("kind", ["optim", "model"])
def test_files_of_two_steps_are_told_apart(tmp_path: Path, kind: str) -> None:
    folder = sides(tmp_path / "one")
    step = rank_checkpoints.deepspeed(folder, tensors(), stage=3, ranks=2)
    later = rank_checkpoints.deepspeed(tmp_path / "two", tensors(), stage=3, ranks=2, steps=200)
    name = f"zero_pp_rank_1_mp_rank_00_{kind}_states.pt"
    (later / name).replace(step / name)
    refused(folder, "files of two steps", "is of 100", "of 200")


@pytest.mark.parametrize("stage", [2, 3])
@pytest.mark.parametrize(("skipped", "whole"), [(0, False), (9, False), (10, True)])
def test_optimizers_of_an_earlier_step_are_refused(
    tmp_path: Path, stage: int, skipped: int, whole: bool
) -> None:
    folder = sides(tmp_path)
    step = rank_checkpoints.deepspeed(folder, tensors(), stage=stage, ranks=2, steps=90)
    for file in step.glob("*model_states.pt"):
        content = torch.load(file, weights_only=True)
        torch.save(content | {"global_steps": 100, "skipped_steps": skipped}, file)
    if whole:
        same(folder, tensors())
    else:
        refused(folder, "is of step 100", "has made 90", "files of two saves are mixed")


@pytest.mark.parametrize(
    "hostile",
    [
        {"shared_params": {"x": ["a.weight"], 3: "a.weight"}},
        {"buffer_names": [["a"], 3], "shared_params": {3: "a.weight"}},
    ],
)
def test_names_that_are_no_texts_do_not_count(tmp_path: Path, hostile: dict[str, Any]) -> None:
    folder = sides(tmp_path)
    step = rank_checkpoints.deepspeed(folder, tensors(), stage=2, ranks=1)
    (file,) = step.glob("*model_states.pt")
    torch.save(torch.load(file, weights_only=True) | hostile, file)
    same(folder, tensors())


def test_a_parameter_without_a_name_is_refused(tmp_path: Path) -> None:
    folder = sides(tmp_path)
    step = rank_checkpoints.deepspeed(folder, tensors(), stage=2, ranks=1)
    (file,) = step.glob("*model_states.pt")
    torch.save(torch.load(file, weights_only=True) | {"param_shapes": [{3: (4,)}]}, file)
    refused(folder, "3 has no shape")


def test_a_backup_beside_the_states_is_no_weights(tmp_path: Path) -> None:
    folder = sides(tmp_path)
    step = rank_checkpoints.deepspeed(folder, tensors(), stage=2, ranks=1)
    torch.save({"x": torch.zeros(3)}, step / "backup.pt")
    torch.save({"x": torch.zeros(3)}, folder / "ema.pt")
    same(folder, tensors())


def test_a_tracker_names_no_folder_above(tmp_path: Path) -> None:
    folder = sides(tmp_path)
    (folder / "latest").write_text("..")
    refused(folder, "latest names no folder")


def test_parts_of_other_sizes_are_refused(tmp_path: Path) -> None:
    folder = sides(tmp_path / "one")
    step = rank_checkpoints.deepspeed(folder, tensors(), stage=2, ranks=2)
    other = {**tensors(), "e.weight": torch.ones(50)}
    later = rank_checkpoints.deepspeed(tmp_path / "two", other, stage=2, ranks=2)
    for file in later.glob("*optim*"):
        file.replace(step / file.name)
    refused(folder, "differ in the number of parameters")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("layer_1_expert_3_mp_rank_00_model_states.pt", "experts in files of their own"),
        ("mp_rank_01_model_states.pt", "tensor or pipeline ranks"),
        ("layer_03-model_01-model_states.pt", "tensor or pipeline ranks"),
    ],
)
def test_what_is_not_put_together_is_refused_in_words(
    tmp_path: Path, name: str, words: str
) -> None:
    folder = sides(tmp_path)
    step = rank_checkpoints.deepspeed(folder, tensors(), stage=2, ranks=1)
    (step / name).write_bytes(b"not read")
    refused(folder, words)


def test_a_step_that_is_not_there_is_named(tmp_path: Path) -> None:
    folder = sides(tmp_path)
    (folder / "latest").write_text("global_step7\n")
    refused(folder, "global_step7", "not there")
    (folder / "latest").write_text("../elsewhere")
    refused(folder, "names no folder")


class Runs:
    def __init__(self, file: Path) -> None:
        self.command = f"touch {file}"

    def __reduce__(self) -> Any:
        return os.system, (self.command,)


def test_what_an_optimizer_would_run_is_not_run(tmp_path: Path) -> None:
    folder = sides(tmp_path / "run")
    step = rank_checkpoints.deepspeed(folder, tensors(), stage=3, ranks=1)
    file = step / "zero_pp_rank_0_mp_rank_00_optim_states.pt"
    flat = torch.cat([tensor.flatten() for tensor in tensors().values()])
    hostile = {
        "partition_count": 1, "fp32_flat_groups": [flat], "x": Runs(tmp_path / "ran"),
        (1, 2): Runs(tmp_path / "ran"),
    }  # fmt: skip
    torch.save({"optimizer_state_dict": hostile}, file)

    same(folder, tensors())
    assert not (tmp_path / "ran").exists()


def test_a_number_of_ranks_that_runs_code_is_refused(tmp_path: Path) -> None:
    folder = sides(tmp_path / "run")
    step = rank_checkpoints.deepspeed(folder, tensors(), stage=3, ranks=1)
    hostile = {"partition_count": Runs(tmp_path / "ran"), "fp32_flat_groups": [torch.ones(3)]}
    file = step / "zero_pp_rank_0_mp_rank_00_optim_states.pt"
    torch.save({"optimizer_state_dict": hostile}, file)

    refused(folder, str(file), "does not tell how many ranks")
    assert not (tmp_path / "ran").exists()
