"""The figures of a model in its config: its context, and what it keeps of each token."""

from coordinate_eval import _format
from coordinate_eval._text_config import HEADS, KV_HEADS, WIDTHS, TextConfig
from coordinate_eval.coordinator.inputs.checkpoints.context import MOST_TOKENS, context
from coordinate_eval.errors import UserError

_MOST_KV_BYTES = 2**40  # above any model's


def model_shape(config: TextConfig, dtype: str) -> dict[str, int]:
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
