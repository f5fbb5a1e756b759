"""The figures of a model in its config: its context, and what it keeps of each token."""

from typing import Any

from coordinate_eval import _format
from coordinate_eval._text_config import HEADS, KV_HEADS, WIDTHS, TextConfig
from coordinate_eval.coordinator.inputs.checkpoints.context import MOST_TOKENS, context
from coordinate_eval.coordinator.inputs.checkpoints.fit import EXPERTS
from coordinate_eval.errors import UserError

_MOST_KV_BYTES = 2**40  # above any model's
_VOCABULARY_PADDING = 64  # `DEFAULT_VOCAB_PADDING_SIZE` of vLLM


def model_shape(config: TextConfig, dtype: str) -> dict[str, Any]:
    """Return the fields of `Checkpoint` that a config gives; families use different names.

    Args:
        config: of the language model.
        dtype: of most weights.

    Raises:
        UserError: A number is larger than any model's.
    """
    number = config.number
    length = context(config)
    heads = number(*HEADS) or 1
    layers = number("num_hidden_layers", "n_layer", "n_layers", "num_layers") or 0
    width = number(*WIDTHS) or 0
    kv_heads = _kv_heads(config) or heads
    head_size = number("head_dim", "kv_channels") or width // heads
    # Engines keep keys and values in 16 bits, or in 32 when the weights are.
    item = 4 if dtype in ("float32", "float64") else 2
    kv_bytes = 2 * layers * kv_heads * head_size * item
    if latent := number("kv_lora_rank"):
        # Multi-head latent attention keeps one compressed vector for all heads, and a rotated key
        # (DeepSeek-AI, "DeepSeek-V2", 2024, section 2.1).
        kv_heads = 1
        kv_bytes = layers * (latent + (number("qk_rope_head_dim") or 0)) * item
    if kv_bytes > _MOST_KV_BYTES:
        raise UserError(
            f"{config.file}: {_format.size(kv_bytes)} of keys and values a token, as no model has"
        )
    return {
        "max_length": length.most,
        "short_length": length.short,
        "hf_length": length.hf,
        # Engines take the nested one, too. Some models pad it, and name both.
        "vocabulary": number("padded_vocab_size", "vocab_size", most=MOST_TOKENS) or 0,
        "attention_heads": heads,
        "kv_bytes_per_token": kv_bytes,
        "kv_heads": kv_heads,
        "activation_bytes_per_token": layers * width * item,
        "stages": max(1, layers),
        **_degrees(config),
    }


def _degrees(config: TextConfig) -> dict[str, Any]:
    """Return what decides among how many GPUs a layer can be divided."""
    number = config.number
    vocabulary = number("padded_vocab_size", "vocab_size", most=MOST_TOKENS) or 0
    experts, each = number(*EXPERTS) or 0, number("moe_intermediate_size", "expert_ffn_hidden_size")
    dense = number("intermediate_size", "ffn_hidden_size", "n_inner", "ffn_dim")
    splits = {"vocabulary, padded": -(-vocabulary // _VOCABULARY_PADDING) * _VOCABULARY_PADDING}
    if dense and (each or not experts):
        splits["intermediate size"] = dense
    of_experts = {"intermediate size of experts": each or dense} if experts else {}
    return {
        "experts": experts,
        "splits": {name: value for name, value in splits.items() if value},
        "expert_splits": {name: value for name, value in of_experts.items() if value},
    }


def _kv_heads(config: TextConfig) -> int | None:
    """Return the heads of keys and values, None if there are as many as of queries."""
    many = config.given.get("new_decoder_architecture") is True  # Falcon 40B and later
    if config.given.get("multi_query") is True and not many:
        return 1
    attention = config.given.get("attn_config")  # DBRX
    if isinstance(attention, dict) and "kv_n_heads" in attention:
        return config._replace(given=attention).number("kv_n_heads")
    return config.number(*KV_HEADS)
