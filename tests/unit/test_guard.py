"""Tensors that are not an architecture's are told, and numbers that are not finite counted."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from tests import trainers

from coordinate_eval.coordinator.inputs.checkpoints import guard, safetensors_file
from coordinate_eval.coordinator.inputs.checkpoints.guard import Architecture
from coordinate_eval.coordinator.inputs.checkpoints.sources import Stored, Tensor
from coordinate_eval.errors import WeightsRefused


def architecture(folder: Path, kind: str, **other: Any) -> Architecture | None:
    file = folder / "config.json"
    file.write_text(json.dumps({**trainers.CONFIGS[kind], "model_type": kind, **other}))
    return guard.architecture(file)


def described(state: Mapping[str, torch.Tensor]) -> dict[str, Tensor]:
    return {name: Tensor("float32", tuple(tensor.shape)) for name, tensor in state.items()}


def stored(state: Mapping[str, torch.Tensor], folder: Path) -> Stored:
    file = folder / "model.safetensors"
    save_file(dict(state), file)
    return safetensors_file.open_source([file], [])


@pytest.mark.parametrize("kind", trainers.CONFIGS)
def test_what_transformers_saves_is_the_architecture(kind: str, tmp_path: Path) -> None:
    wanted = architecture(tmp_path, kind)
    assert wanted is not None
    assert not guard.compare(described(trainers.weights(kind)), wanted, mapped=True).words()


def test_a_missing_an_unknown_and_a_larger_tensor_are_told(tmp_path: Path) -> None:
    wanted = architecture(tmp_path, "llama")
    assert wanted is not None
    tensors = described(trainers.weights("llama"))
    tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = Tensor("float32", (4,))
    assert not guard.compare(tensors, wanted, mapped=True).words()
    del tensors["model.layers.1.mlp.up_proj.weight"]
    tensors["model.layers.1.mlp.gate_proj.weight"] = Tensor("float32", (40, 32))
    tensors["model.layers.3.mlp.up_proj.weight"] = Tensor("float32", (48, 32))

    words = guard.compare(tensors, wanted, mapped=True).words()

    assert "1 tensor of the model are missing: model.layers.1.mlp.up_proj.weight" in words
    assert "the model has no tensor model.layers.3.mlp.up_proj.weight" in words
    assert "model.layers.1.mlp.gate_proj.weight: [40, 32], and [48, 32] by the config" in words


def test_a_tied_output_layer_may_lack_and_may_be_there(tmp_path: Path) -> None:
    wanted = architecture(tmp_path, "llama", tie_word_embeddings=True)
    assert wanted is not None
    tensors = described(trainers.weights("llama"))
    assert not guard.compare(tensors, wanted, mapped=True).words()
    del tensors["lm_head.weight"]
    assert not guard.compare(tensors, wanted, mapped=True).words()


@pytest.mark.parametrize(
    "other",
    [
        {"model_type": "of-nobody"},
        {"auto_map": {"AutoConfig": "x.X"}, "model_type": "of-nobody"},
        {"quantization_config": {"quant_method": "fp8"}},
        {"num_attention_heads": "four"},
        {"num_hidden_layers": -1, "layer_types": 3},
    ],
)
def test_of_a_config_that_transformers_cannot_take_nothing_is_known(
    other: dict[str, Any], tmp_path: Path
) -> None:
    assert architecture(tmp_path, "llama", **other) is None


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64])
def test_numbers_that_are_not_finite_are_counted(dtype: torch.dtype, tmp_path: Path) -> None:
    bad = torch.ones(3, 4, dtype=dtype)
    bad[0, 0], bad[1, 1], bad[2, 2] = torch.nan, torch.inf, -torch.inf
    source = stored(
        {"bad": bad, "good": torch.ones(5, dtype=dtype), "none": torch.ones(0, dtype=dtype),
         "whole": torch.ones(3, dtype=torch.int64)}, tmp_path,
    )  # fmt: skip

    (found,) = guard.not_finite(source)

    assert found == ("bad", 1, 2)
    with pytest.raises(WeightsRefused, match=r"in 1 tensor: bad: 1 NaN, 2 infinite"):
        guard.check_finite("step", source)
