"""The figures of a model in its config: its context, and what it keeps of each token."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from coordinate_eval import _format
from coordinate_eval.coordinator.inputs.checkpoints.context import MOST_TOKENS, context
from coordinate_eval.errors import UserError

# Above any model's, and small enough that no product of them overflows.
_MOST_WIDTH, _MOST_KV_BYTES = 10**7, 2**40


def model_shape(config: dict[str, Any], dtype: str, file: Path) -> dict[str, int]:
    """Return the fields of `Checkpoint` that a config gives; families use different names.

    Args:
        config: the content of `file`.
        dtype: of most weights.
        file: for messages.

    Raises:
        UserError: A number is larger than any model's.
    """

    def number(*names: str, most: int = _MOST_WIDTH) -> int | None:
        return _integer(merged, names, most, file)

    nested = config.get("text_config")
    merged = config | nested if isinstance(nested, dict) else config
    length = context(merged, lambda key: number(key, most=MOST_TOKENS))
    heads = number("num_attention_heads", "n_head", "n_heads", "num_heads") or 1
    layers = number("num_hidden_layers", "n_layer", "n_layers", "num_layers") or 0
    width = number("hidden_size", "n_embd", "d_model", "dim") or 0
    kv_heads = number("num_key_value_heads", "n_head_kv", "num_kv_heads")
    if kv_heads is None:
        kv_heads = 1 if merged.get("multi_query") is True else heads
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
            f"{file}: {_format.size(kv_bytes)} of keys and values a token, as no model has"
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


def _integer(config: dict[str, Any], names: Sequence[str], most: int, file: Path) -> int | None:
    """Return the first of these that is a positive number; the largest if layers differ.

    Raises:
        UserError: The number is more than `most`.
    """
    for name in names:
        value = config.get(name)
        values = value if isinstance(value, list) else [value]
        numbers = [each for each in values if type(each) is int and each > 0]
        if numbers:
            if max(numbers) > most:
                raise UserError(f"{file}: {name} is larger than {most:,}, which no model has")
            return max(numbers)
    return None
