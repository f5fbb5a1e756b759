"""The language model's part of a config is found under the keys of many families."""

from pathlib import Path
from typing import Any

import pytest

from coordinate_eval._text_config import text_config
from coordinate_eval.coordinator.inputs.checkpoints.model.context import context
from coordinate_eval.coordinator.inputs.checkpoints.model.model_shape import model_shape
from coordinate_eval.coordinator.inputs.checkpoints.model.quantized import Quantized

FILE = Path("config.json")
INNER = {
    "max_position_embeddings": 999, "hidden_size": 64, "num_attention_heads": 4,
    "num_hidden_layers": 2, "num_key_value_heads": 2, "vocab_size": 300,
}  # fmt: skip
OTHER = {"hidden_size": 7, "num_hidden_layers": 99, "num_attention_heads": 7}

NESTED: dict[str, dict[str, Any]] = {
    "most": {"text_config": INNER, "vision_config": OTHER},
    "InternVL, Ovis": {"llm_config": INNER, "vision_config": OTHER},
    "DeepSeek-VL": {"language_config": INNER, "vision_config": OTHER},
    "Qwen-Omni": {
        "thinker_config": {"text_config": INNER, "audio_config": OTHER},
        "talker_config": {"text_config": OTHER},
        "token2wav_config": OTHER,
    },
    "an encoder and a decoder": {"encoder": OTHER, "decoder": INNER},
    "Moondream": {"text": INNER, "vision": OTHER},
    "a width above": {"hidden_size": 7, "text_config": INNER},
    "a part of it": {"model_type": "llama", **INNER, "text_config": {"vocab_size": 300}},
    "of a class above": {"model_type": "not known", "vlm_config": {"text_config": INNER}},
}


@pytest.mark.parametrize("family", NESTED)
def test_the_language_model_is_found(family: str) -> None:
    config = text_config(NESTED[family], FILE)
    shape = model_shape(config, "bfloat16", Quantized(), {})
    assert shape["max_length"] == shape["hf_length"] == 999
    assert (shape["attention_heads"], shape["kv_heads"], shape["vocabulary"]) == (4, 2, 300)
    assert shape["kv_bytes_per_token"] == 2 * 2 * 2 * 16 * 2


# As published: what is the default of its class is left out of a config in a config.
PUBLISHED: dict[str, tuple[dict[str, Any], tuple[int, int, int, int]]] = {
    "google/gemma-3-4b-it": (
        {
            "model_type": "gemma3",
            "text_config": {
                "hidden_size": 2560, "intermediate_size": 10240, "model_type": "gemma3_text",
                "num_hidden_layers": 34, "sliding_window": 1024,
                "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
            },
            "vision_config": {"hidden_size": 1152, "num_hidden_layers": 27},
        },
        (131072, 8, 4, 2 * 34 * 4 * 256 * 2),
    ),
    "llava-hf/llava-1.5-7b-hf": (
        {
            "model_type": "llava",
            "text_config": {
                "model_type": "llama", "max_position_embeddings": 4096, "vocab_size": 32064,
            },
            "vision_config": {"hidden_size": 1024, "num_hidden_layers": 24, "vocab_size": 32000},
        },
        (4096, 32, 32, 2 * 32 * 32 * 128 * 2),
    ),
    "a type that only the model above tells": (
        {"model_type": "llava", "text_config": {"max_position_embeddings": 4096}},
        (4096, 32, 32, 2 * 32 * 32 * 128 * 2),
    ),
    # All in one, as transformers 4 wrote it.
    "Qwen/Qwen2-VL-2B": (
        {
            "model_type": "qwen2_vl", "hidden_size": 1536, "max_position_embeddings": 32768,
            "num_attention_heads": 12, "num_hidden_layers": 28, "num_key_value_heads": 2,
            "vocab_size": 151936, "vision_config": {"depth": 32, "hidden_size": 1536},
        },
        (32768, 12, 2, 2 * 28 * 2 * 128 * 2),
    ),
    # Falcon 40B shares keys and values among groups, whatever multi_query says.
    "tiiuae/falcon-40b": (
        {
            "model_type": "falcon", "hidden_size": 8192, "multi_query": True,
            "new_decoder_architecture": True, "num_attention_heads": 128, "num_hidden_layers": 60,
            "num_kv_heads": 8, "vocab_size": 65024,
        },
        (2048, 128, 8, 2 * 60 * 8 * 64 * 2),
    ),
    "THUDM/glm-4-9b": (
        {
            "model_type": "chatglm", "hidden_size": 4096, "kv_channels": 128, "num_layers": 40,
            "multi_query_attention": True, "multi_query_group_num": 2, "num_attention_heads": 32,
            "padded_vocab_size": 151552, "seq_length": 8192,
        },
        (8192, 32, 2, 2 * 40 * 2 * 128 * 2),
    ),
}  # fmt: skip


@pytest.mark.parametrize("model", PUBLISHED)
def test_configs_as_they_are_published(model: str) -> None:
    config, (length, heads, kv_heads, kv_bytes) = PUBLISHED[model]
    shape = model_shape(text_config(config, FILE), "bfloat16", Quantized(), {})
    assert shape["max_length"] == length
    assert (shape["attention_heads"], shape["kv_heads"]) == (heads, kv_heads)
    assert shape["kv_bytes_per_token"] == kv_bytes


def test_a_default_counts_only_where_nothing_is_given() -> None:
    told = text_config({"model_type": "gpt2", "n_positions": 4096}, FILE)
    assert context(told).most == context(told).hf == 4096
    assert told.number("num_hidden_layers", "n_layer") == 12
    assert text_config({"model_type": ["gpt2"]}, FILE).number("num_hidden_layers") is None


def test_a_config_that_holds_itself_again_and_again_ends() -> None:
    config: dict[str, Any] = {"hidden_size": 5}
    for _ in range(50):
        config = {"text_config": config}
    assert text_config(config, FILE).number("hidden_size") is None
