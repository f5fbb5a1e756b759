"""The length of a model's context in its config: as vLLM takes it, and as the harness's `hf` does.

The rules are those of `_get_and_verify_max_len` in vllm/config/model.py, version 0.32, and of
`resolve_max_length` in lm_eval/models/utils.py, version 0.4.13.
"""

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any, Final, NamedTuple

from coordinate_eval._text_config import TextConfig

DEFAULT_LENGTH: Final = 2048
"""Tokens of context if the config gives none, as in older models without that entry."""

_OF_VLLM: Final = (
    "max_position_embeddings",
    "n_positions",
    "max_seq_len",
    "seq_length",
    "max_target_positions",
    "max_sequence_length",
    "max_seq_length",
    "seq_len",
)
_OF_HF: Final = ("n_positions", "max_position_embeddings")

_FACTOR_IS_IN_IT: Final = (
    "su",
    "longrope",
    "llama3",
    "yarn",
    "deepseek_yarn",
    "deepseek_llama_scaling",
)
"""Kinds of rotary embeddings with a context that is given as it is after their scaling."""

_LONG_ROPE: Final = ("longrope", "su")
_MOST_FACTOR: Final = 1e6

MOST_TOKENS: Final = 10**9
"""More than any model's, and so few that no product of them overflows."""


class Context(NamedTuple):
    """Lengths in tokens."""

    most: int
    """The longest that vLLM takes."""
    short: int
    """That of LongRoPE without its long factors, 0 for other models: vLLM takes it by itself. With
    a longer one it computes with other factors, texts of any length."""
    hf: int
    """The longest that the harness's `hf` takes."""


def context(text: TextConfig) -> Context:
    """Return the context that a language model's config gives.

    Raises:
        UserError: A number is larger than any model's.
    """
    config, number = text.given, partial(text.told, most=MOST_TOKENS)
    default = text.default(("max_position_embeddings", "n_positions"))
    given = [default, *map(number, _OF_VLLM)]
    most = number("model_max_length") or min(filter(None, given), default=DEFAULT_LENGTH)
    given = [*map(number, _OF_HF), default, number("n_ctx"), most]
    hf = next(filter(None, given))
    scaling = list(_rotary(config))
    kinds = [each.get("rope_type", each.get("type")) for each in scaling]
    if "gemma3" not in text.kind:
        for each, kind in zip(scaling, kinds, strict=True):
            factor = None if kind in _FACTOR_IS_IN_IT else each.get("factor")
            if isinstance(factor, int | float) and 0 < factor <= _MOST_FACTOR:
                most = max(1, min(MOST_TOKENS, int(most * factor)))
                break
    short = 0
    if any(kind in _LONG_ROPE for kind in kinds):
        inside = (each.get("original_max_position_embeddings") for each in scaling)
        there = (each for each in inside if type(each) is int and each > 0)
        short = number("original_max_position_embeddings") or next(there, 0)
    return Context(most=most, short=min(short, most), hf=hf)


def _rotary(config: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yield what a config says of its rotary embeddings, for each kind of layers if they differ."""
    for key in ("rope_parameters", "rope_scaling"):
        found = config.get(key)
        if isinstance(found, dict):
            nested = [each for each in found.values() if isinstance(each, dict)]
            yield from nested or [found]
            return
