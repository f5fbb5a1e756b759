"""Tensors that are not an architecture's are told, and numbers that are not finite counted."""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from tests import trainers

from coordinate_eval.coordinator.inputs.checkpoints import guard
from coordinate_eval.coordinator.inputs.checkpoints.formats import safetensors_file
from coordinate_eval.coordinator.inputs.checkpoints.formats.layouts import Tensor
from coordinate_eval.coordinator.inputs.checkpoints.formats.sources import Stored
from coordinate_eval.coordinator.inputs.checkpoints.guard import Architecture
from coordinate_eval.errors import WeightsRefused


def architecture(kind: str, **other: Any) -> Architecture | None:
    return guard.architecture({**trainers.CONFIGS[kind], "model_type": kind, **other})


def described(state: Mapping[str, torch.Tensor]) -> dict[str, Tensor]:
    return {name: Tensor("float32", tuple(tensor.shape)) for name, tensor in state.items()}


def stored(state: Mapping[str, torch.Tensor], folder: Path) -> Stored:
    file = folder / "model.safetensors"
    save_file(dict(state), file)
    return safetensors_file.open_source([file], [])


@pytest.mark.parametrize("kind", trainers.CONFIGS)
def test_what_transformers_saves_is_the_architecture(kind: str) -> None:
    wanted = architecture(kind)
    assert wanted is not None
    assert not guard.compare(described(trainers.weights(kind)), wanted, mapped=True).words()


def test_infinite_numbers_of_a_config_are_read_as_transformers_writes_them() -> None:
    config = {
        "model_type": "mamba2", "hidden_size": 32, "num_hidden_layers": 2, "num_heads": 8,
        "head_dim": 8, "time_step_limit": [0.0, {"__float__": "Infinity"}],
    }  # fmt: skip
    assert guard.architecture(config) is not None


def test_what_a_config_was_found_to_have_is_kept(tmp_path: Path) -> None:
    config = {**trainers.CONFIGS["llama"], "model_type": "llama"}
    found = guard.architecture(config, tmp_path)
    assert found == architecture("llama") == guard.architecture(config, tmp_path)
    assert guard.architecture({**config, "model_type": "of-nobody"}, tmp_path) is None

    known, _ = tmp_path.glob("architectures-*/*")
    known.write_text("{")
    assert guard.architecture(config, tmp_path) == found


def test_what_cannot_be_found_out_is_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = {**trainers.CONFIGS["llama"], "model_type": "llama"}
    wrong = {**config, "hidden_size": "many"}
    assert guard.architecture(wrong, tmp_path) is None
    with monkeypatch.context() as without:
        without.setitem(sys.modules, "torch", None)
        assert guard.architecture(config, tmp_path) is None
    assert guard.architecture(config, tmp_path) is not None


def test_a_missing_an_unknown_and_a_larger_tensor_are_told() -> None:
    wanted = architecture("llama")
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


def test_a_tied_output_layer_may_lack_and_may_be_there() -> None:
    wanted = architecture("llama", tie_word_embeddings=True)
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
    other: dict[str, Any],
) -> None:
    assert architecture("llama", **other) is None


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
        guard.check_finite("step", [found])


def test_unknown_names_of_no_mapping_hide_neither_a_bias_nor_a_layer_nor_scales() -> None:
    wanted = architecture("qwen2")
    assert wanted is not None
    tensors = described(trainers.weights("qwen2"))
    tensors["value_head.weight"] = Tensor("float32", (1, 32))
    assert not guard.compare(tensors, wanted, mapped=False).words()

    bias = {k: v for k, v in tensors.items() if not k.endswith("0.self_attn.q_proj.bias")}
    assert "are missing: model.layers.0" in guard.compare(bias, wanted, mapped=False).words()
    more = {**tensors, "model.layers.9.mlp.up_proj.weight": Tensor("float32", (48, 32))}
    assert "no tensor model.layers.9" in guard.compare(more, wanted, mapped=False).words()
    name = "model.layers.0.mlp.up_proj.weight"
    for quantized in (
        {**tensors, name: Tensor("float8_e4m3fn", tensors[name].shape)},
        {**tensors, f"{name}_scale": Tensor("float32", ())},
    ):
        words = guard.compare(quantized, wanted, mapped=False).words()
        assert "tells no quantization" in words


def test_names_of_another_model_are_no_older_names() -> None:
    wanted = architecture("qwen2")
    assert wanted is not None
    tensors = described(trainers.weights("qwen2"))
    without_head = {name.removeprefix("model."): tensor for name, tensor in tensors.items()}
    assert not guard.compare(without_head, wanted, mapped=False).words()

    of_a_student = {f"student.{name}": tensor for name, tensor in tensors.items()}
    assert "are missing" in guard.compare(of_a_student, wanted, mapped=False).words()


def test_a_layer_that_predicts_further_tokens_is_not_beyond() -> None:
    layers = trainers.CONFIGS["llama"]["num_hidden_layers"]
    wanted = architecture("llama", num_nextn_predict_layers=1)
    assert wanted is not None
    tensors = described(trainers.weights("llama"))
    tensors[f"model.layers.{layers}.mlp.up_proj.weight"] = Tensor("float32", (48, 32))
    assert not guard.compare(tensors, wanted, mapped=False).words()
