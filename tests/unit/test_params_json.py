"""Meta's and Mistral's own files, which have a `params.json` and no `config.json`."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from tests import trainers
from transformers import AutoConfig

from coordinate_eval.coordinator.inputs.checkpoints import checkpoint as checkpoints
from coordinate_eval.coordinator.inputs.checkpoints import clean_files, reading
from coordinate_eval.errors import UserError

SHAPES = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
          "num_key_value_heads", "head_dim", "vocab_size", "rms_norm_eps", "rope_parameters",
          "tie_word_embeddings", "hidden_act", "attention_bias", "mlp_bias",
          "num_local_experts", "num_experts_per_tok")  # fmt: skip


def params_of(kind: str, **other: Any) -> dict[str, Any]:
    """What the trainer writes for the model of `tests.trainers` of a type."""
    config = trainers.CONFIGS[kind]
    params = {
        "dim": config["hidden_size"],
        "n_layers": config["num_hidden_layers"],
        "n_heads": config["num_attention_heads"],
        "n_kv_heads": config["num_key_value_heads"],
        "norm_eps": 1e-6 if kind == "llama" else 1e-5,
        "head_dim": config["head_dim"],
    }
    if kind == "llama":
        params |= {"multiple_of": config["intermediate_size"], "ffn_dim_multiplier": 0.1}
        params |= {"vocab_size": -1}
    else:
        theta = 10_000.0 if kind == "mistral" else 1e6
        params |= {"hidden_dim": config["intermediate_size"], "rope_theta": theta}
        params |= {"vocab_size": config["vocab_size"]}
    if kind == "mixtral":
        moe = {"num_experts": config["num_local_experts"]}
        params["moe"] = moe | {"num_experts_per_tok": 2}
    return params | other


def saved(folder: Path, kind: str, params: dict[str, Any], *, torch_file: bool = False) -> Path:
    state = trainers.meta(trainers.weights(kind), {**trainers.CONFIGS[kind], "model_type": kind})
    if torch_file:
        torch.save(state, folder / "consolidated.00.pth")
    else:
        contiguous = {name: tensor.contiguous() for name, tensor in state.items()}
        save_file(contiguous, folder / "consolidated.safetensors")
    (folder / "params.json").write_text(json.dumps(params))
    (folder / "tokenizer.model").write_bytes(b"words")
    return folder


@pytest.mark.parametrize(
    ("kind", "torch_file"), [("llama", True), ("mistral", False), ("mixtral", False)]
)
def test_it_is_the_model_of_hugging_face(tmp_path: Path, kind: str, torch_file: bool) -> None:
    folder = tmp_path / "step-100"
    folder.mkdir()
    found = checkpoints.inspect(saved(folder, kind, params_of(kind), torch_file=torch_file))
    source, wanted = reading.source(found), trainers.weights(kind)
    assert source.tensors.keys() == wanted.keys()
    assert all(torch.equal(source.read(name), tensor) for name, tensor in wanted.items())

    staged = tmp_path / "staged"
    staged.mkdir()
    clean_files.copy(found.files, staged)
    assert {file.name for file in staged.iterdir()} == {"config.json", "tokenizer.model"}
    made = AutoConfig.from_pretrained(staged)
    eps = {"rms_norm_eps": params_of(kind)["norm_eps"]}
    whole = AutoConfig.for_model(kind, **trainers.CONFIGS[kind] | eps)
    assert made.model_type == kind
    assert {n: getattr(made, n, None) for n in SHAPES} == {
        n: getattr(whole, n, None) for n in SHAPES
    }
    assert made.dtype == torch.float32


@pytest.mark.parametrize(
    ("params", "length", "theta", "factor"),
    [
        ({"norm_eps": 1e-6}, 2048, 1e4, None),
        ({"norm_eps": 1e-5}, 4096, 1e4, None),
        ({"norm_eps": 1e-5, "rope_theta": 1e6}, 16_384, 1e6, None),
        ({"norm_eps": 1e-5, "max_seq_len": 512}, 512, 1e4, None),
        ({"rope_theta": 5e5, "use_scaled_rope": True, "rope_scaling_factor": 32}, 131_072, 5e5, 32),
    ],
)
def test_generations_of_llama(
    tmp_path: Path, params: dict[str, Any], length: int, theta: float, factor: float | None
) -> None:
    whole, _ = reading.text_config_of(
        checkpoints.inspect(saved(tmp_path, "llama", params_of("llama", **params), torch_file=True))
    )
    assert (whole["max_position_embeddings"], whole["rope_theta"]) == (length, theta)
    assert whole.get("rope_scaling", {}).get("factor") == factor


@pytest.mark.parametrize(
    ("params", "named"),
    [
        ({"use_scaled_rope": True}, "rope_scaling_factor"),
        ({"hidden_dim": 96}, "rope_theta"),
        ({"q_lora_rank": 8}, "q_lora_rank"),
        ({"quantization": {"qformat_weight": "fp8_e4m3"}}, "quantization"),
        ({"activation": "gelu"}, "activation"),
        ({"norm_eps": None}, "norm_eps"),
        ({"dim": "64"}, "dim"),
        ({"multiple_of": None}, "hidden_dim"),
        ({"ffn_dim_multiplier": 1e308}, "ffn_dim_multiplier"),
        ({"model": 3}, "object"),
        ({"hidden_dim": 96, "sliding_window": [None, 32]}, "sliding windows"),
        ({"hidden_dim": 96, "rope_theta": 1e4, "moe": {"num_experts": 4}}, "moe"),
    ],
)
def test_what_it_leaves_open_is_refused(tmp_path: Path, params: dict[str, Any], named: str) -> None:
    folder = saved(tmp_path, "llama", params_of("llama", **params))
    with pytest.raises(
        UserError, match=rf"params\.json tells no config for sure.*{named}.*--config"
    ):
        checkpoints.inspect(folder)


def test_the_config_and_tokenizer_that_are_there_count(tmp_path: Path) -> None:
    folder = saved(tmp_path, "llama", params_of("llama", q_lora_rank=8))
    whole = {**trainers.CONFIGS["llama"], "model_type": "llama"}
    (folder / "config.json").write_text(json.dumps(whole))
    assert "config.json" in str(checkpoints.inspect(folder).files)
    (folder / "tokenizer.model").unlink()
    with pytest.raises(UserError, match=r"no tokenizer.*--tokenizer"):
        checkpoints.inspect(folder)


def test_params_of_another_trainer_are_not_read(tmp_path: Path) -> None:
    (tmp_path / "params.json").write_text("{}")
    (tmp_path / "tokenizer.json").write_text('{"vocab": {}}')
    save_file(trainers.weights("llama"), tmp_path / "model.safetensors")
    with pytest.raises(UserError, match=r"no config\.json"):
        checkpoints.inspect(tmp_path)
