"""The assumed shape of a model if only its number of parameters is known.

A decoder has about 12 · layers · width² parameters without its embeddings (Kaplan et al.,
"Scaling Laws for Neural Language Models", 2020, section 2.1). Its width is about 128 times its
number of layers: 4,096 and 32 in Llama 2 7B, 16,384 and 126 in Llama 3 405B. Keys and values have
eight heads of 128 dimensions, as in every model of "The Llama 3 Herd of Models" (2024), table 3.
"""

import re

from coordinate_eval.errors import UserError
from coordinate_eval.records import Checkpoint, CheckpointFormat

DEFAULT_SIZE = "7b"
"""Model size to predict for if neither a model nor a checkpoint is named."""

WIDTH_PER_LAYER = 128
"""Width divided by layers."""

KV_WIDTH = 1024
"""Dimensions of all key heads of one layer; the width if that is less."""

BYTES_PER_NUMBER = 2
"""Size of a number in weights, keys and values: bfloat16."""

MAX_LENGTH = 131_072
"""Tokens of context; no prediction depends on it."""

_UNITS = {"": 1, "k": 10**3, "m": 10**6, "b": 10**9, "t": 10**12}
_COUNT = re.compile(r"(\d{1,18}(?:\.\d{1,18})?)([kmbt]?)")


def parameter_count(text: str) -> int:
    """Parse a number of parameters such as 7b, 1.5B or 350m.

    Raises:
        UserError: The text is not a number of parameters, or one above 10¹⁵.
    """
    found = _COUNT.fullmatch(text.strip().lower())
    count = round(float(found[1]) * _UNITS[found[2]]) if found else 0
    if not 0 < count <= 10**15:
        raise UserError(f"{text!r} is not a number of parameters: write it like 350m, 7b or 1.5t")
    return count


def llama_like(parameters: int) -> Checkpoint:
    """Return a bfloat16 checkpoint with this many parameters. It exists nowhere."""
    layers = max(1, round((parameters / (12 * WIDTH_PER_LAYER**2)) ** (1 / 3)))
    width = max(1, round((parameters / (12 * layers)) ** 0.5))
    return Checkpoint(
        path="",
        identity="",
        format=CheckpointFormat.SAFETENSORS,
        weights=[],
        files=[],
        bytes=parameters * BYTES_PER_NUMBER,
        parameters=parameters,
        dtype="bfloat16",
        max_length=MAX_LENGTH,
        attention_heads=max(1, width // 128),
        kv_bytes_per_token=2 * layers * min(width, KV_WIDTH) * BYTES_PER_NUMBER,
    )
