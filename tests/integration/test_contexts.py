"""The length of a model's context is the one that vLLM, and the harness's `hf`, find for it."""

import json
from pathlib import Path
from typing import Any

import pytest
from lm_eval.models.utils import resolve_max_length
from safetensors.numpy import save_file
from tests.tiny import tiny_model
from transformers import AutoConfig

from coordinate_eval.coordinator.inputs.checkpoints.checkpoint import inspect
from coordinate_eval.coordinator.inputs.settings import Settings, TrialSettings
from coordinate_eval.coordinator.planning.new_run import Inputs
from coordinate_eval.records import EngineSettings, Suite

vllm_config = pytest.importorskip("vllm.config")
numpy = pytest.importorskip("numpy")

LLAMA = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 64,
    "intermediate_size": 64, "num_attention_heads": 4, "num_hidden_layers": 2,
    "num_key_value_heads": 2, "vocab_size": 100, "max_position_embeddings": 4096,
}  # fmt: skip
FACTORS = {"short_factor": [1.0] * 8, "long_factor": [2.0] * 8}
PHI = LLAMA | {
    "architectures": ["Phi3ForCausalLM"], "model_type": "phi3", "pad_token_id": 0,
    "max_position_embeddings": 8192, "original_max_position_embeddings": 1024,
    "rope_scaling": {"type": "longrope", **FACTORS},
}  # fmt: skip
LLAMA3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 1024}

CONFIGS: dict[str, dict[str, Any]] = {
    "as it is": LLAMA,
    "of two, the smaller": LLAMA | {"seq_length": 1000},
    "of two, the one that decides": LLAMA | {"seq_length": 1000, "model_max_length": 3000},
    "a larger one that decides": LLAMA | {"model_max_length": 9000},
    "none": {key: value for key, value in LLAMA.items() if key != "max_position_embeddings"},
    "a key of other models": LLAMA | {"n_ctx": 77},
    "linear": LLAMA | {"rope_scaling": {"type": "linear", "factor": 4.0}},
    "dynamic": LLAMA | {"rope_scaling": {"rope_type": "dynamic", "factor": 2.5}},
    "parameters": LLAMA | {"rope_parameters": {"rope_type": "linear", "factor": 2.0}},
    "yarn": LLAMA
    | {"rope_scaling": {"rope_type": "yarn", "factor": 4.0} | LLAMA3},
    "llama3": LLAMA | {"rope_scaling": {"rope_type": "llama3", "factor": 8.0} | LLAMA3},
    "gemma3": LLAMA
    | {
        "architectures": ["Gemma3ForCausalLM"], "model_type": "gemma3_text", "head_dim": 16,
        "rope_scaling": {"rope_type": "linear", "factor": 8.0},
    },
    "longrope": PHI,
    "gpt2": {
        "architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "n_embd": 64, "n_head": 4,
        "n_layer": 2, "n_positions": 512, "n_ctx": 256, "vocab_size": 100,
    },
}  # fmt: skip


@pytest.mark.parametrize("name", CONFIGS)
def test_a_context_is_the_engine_s_own(name: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIGS[name]))
    (tmp_path / "tokenizer.json").write_bytes((tiny_model() / "tokenizer.json").read_bytes())
    save_file({"a": numpy.zeros(1, numpy.float32)}, tmp_path / "model.safetensors")
    checkpoint = inspect(tmp_path)

    def length(engine: EngineSettings, asked: int | None = None) -> int:
        settings = Settings(engine=engine, trial=TrialSettings(max_length=asked))
        return Inputs(checkpoint, Suite(name="", digest="", datasets=[]), settings).max_length

    model = vllm_config.ModelConfig(
        model=str(tmp_path), tokenizer=str(tmp_path), skip_tokenizer_init=True, dtype="float32"
    )
    assert length(EngineSettings()) == model.max_model_len
    # More than it takes it refuses to start with.
    most = length(EngineSettings(), asked=10**8)
    vllm_config.ModelConfig(
        model=str(tmp_path), tokenizer=str(tmp_path), skip_tokenizer_init=True, dtype="float32",
        max_model_len=most,
    )  # fmt: skip
    assert most == (8192 if name == "longrope" else model.max_model_len)
    harness = resolve_max_length(AutoConfig.from_pretrained(tmp_path))
    assert length(EngineSettings(name="transformers")) == harness
