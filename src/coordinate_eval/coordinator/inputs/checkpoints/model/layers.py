"""The layers of a language model by its config: how each attends, and whether it has experts.

Families name the same thing in many ways. The names are those of the configs in transformers 5.19
and in vllm/model_executor/models, version 0.32.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple

from coordinate_eval._text_config import TextConfig

Mixer = Literal["full", "window", "state", "none"]
"""A layer's view of earlier tokens: all of them, the last ones, a state, or none."""

EXPERTS: Final = (
    "num_experts", "moe_num_experts", "n_routed_experts", "num_local_experts",
    "num_routed_experts",
)  # fmt: skip
"""Names of the number of experts in a layer."""

_CHOSEN = (
    "num_experts_per_tok", "num_experts_per_token", "experts_per_token", "moe_k", "moe_topk",
    "moe_top_k", "top_k_experts", "num_selected_experts",
)  # fmt: skip
LAYERS: Final = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
"""Names of the number of layers."""

_MOST_LAYERS = 10_000  # above any model's, and counted one by one
_WINDOWS = ("sliding_window", "sliding_window_size", "attention_window_size", "window_size")
"""Names of the tokens that layers with a window keep. Of chunks (Llama 4), vLLM keeps all of them:
`VLLM_ALLOW_CHUNKED_LOCAL_ATTN_WITH_HYBRID_KV_CACHE` is off."""

_INNER = ("attn_config", "ffn_config", "linear_attn_config", "ssm_cfg")
"""Parts of some configs in which entries of the whole model lie."""

_PATTERN: Final[Mapping[str, Mixer]] = {"M": "state", "*": "full", "-": "none", "E": "none"}
"""Letters of Nemotron-H's `hybrid_override_pattern`."""

_STATEFUL = ("linear", "mamba", "conv", "recurrent", "lightning", "delta", "kda", "ssm", "rwkv")
_WINDOWED = ("sliding", "window", "local")
_STATE_ONLY = ("mamba", "mamba2", "falcon_mamba", "rwkv", "xlstm")
_EVERY_OTHER_FULL = {"gemma2": 2, "gpt_oss": 2, "cohere2": 4, "gemma3_text": 6}
"""By type of model, the number of layers of which the last attends to all tokens, by default."""


class Layers(NamedTuple):
    """The layers, in order, and what the kinds have in common."""

    mixers: Sequence[Mixer]
    experts: int
    """Experts of one layer; 0 if the model is no mixture of experts."""
    chosen: int
    """Experts that a token goes through, of one layer; 0 if the config does not say."""
    window: int
    """Tokens that layers with a window attend to; 0 if there is none."""
    beyond: range = range(0)
    """Numbers of further layers in the files, which no engine loads."""


def flat(config: TextConfig) -> TextConfig:
    """Return a config with the entries of its inner parts beside its own."""
    inner = {
        key: value
        for part in _INNER
        if isinstance(found := config.given.get(part), dict)
        for key, value in found.items()
    }
    return config._replace(given={**inner, **config.given})


def layers_of(config: TextConfig) -> Layers:
    """Return the layers of a model; its config is flat.

    Raises:
        UserError: A number is larger than any model's.
    """
    count = config.number(*LAYERS, most=_MOST_LAYERS) or 0
    pattern = config.given.get("hybrid_override_pattern")
    pattern = pattern if isinstance(pattern, str) and len(pattern) == count else ""
    experts = config.number(*EXPERTS) or 0
    window = 0 if config.given.get("use_sliding_window") is False else config.number(*_WINDOWS) or 0
    mixers = [_PATTERN.get(letter, "full") for letter in pattern] or _mixers(config, count, window)
    if pattern and "E" not in pattern:
        experts = 0
    most = config.number(*_CHOSEN) or (1 if config.kind == "llama4_text" else 0)
    # Of the experts that LongCat chooses among, some do nothing.
    idle = config.number("zero_expert_num") or 0
    most = -(-most * experts // (experts + idle)) if idle else most
    if config.kind == "longcat_flash":  # each of its layers attends twice
        mixers = mixers * 2
    further = config.number("num_nextn_predict_layers", most=_MOST_LAYERS) or 0
    beyond = range(count, count + further)
    return Layers(mixers, experts, min(most, experts), window, beyond)


def _words(config: TextConfig, name: str, count: int) -> list[str]:
    """Return a list of the config that has a word for each layer, else an empty one."""
    found = config.given.get(name)
    if isinstance(found, list) and len(found) >= count:
        return [str(each).lower() if isinstance(each, str | int) else "" for each in found[:count]]
    return []


def _mixers(config: TextConfig, count: int, window: int) -> list[Mixer]:
    """Return how each layer attends."""
    if config.kind in _STATE_ONLY:
        return ["state"] * count
    for name in ("layer_types", "layers_block_type", "attention_layers"):
        if words := _words(config, name, count):
            return [_mixer(word, window) for word in words]
    if words := _words(config, "attn_type_list", count):  # MiniMax
        return ["full" if word == "1" else "state" for word in words]
    full = _numbers(config, "attn_layer_indices", "full_attn_idxs")
    if (listed := _numbers(config, "full_attn_layers")) is not None:  # Kimi Linear counts from 1
        full = {index - 1 for index in listed}
    if full is not None:
        return ["full" if index in full else "state" for index in range(count)]
    if period := config.number("attn_layer_period"):  # Jamba
        offset = config.number("attn_layer_offset") or 0
        return ["full" if i % period == offset else "state" for i in range(count)]
    if period := config.number("full_attention_interval"):  # Qwen3-Next
        return ["full" if (i + 1) % period == 0 else "state" for i in range(count)]
    return _windowed(config, count) if window else ["full"] * count


def _mixer(word: str, window: int) -> Mixer:
    if any(part in word for part in _STATEFUL):
        return "state"
    if any(part in word for part in _WINDOWED):
        return "window" if window else "full"
    return "none" if word in ("moe", "mlp") else "full"


def _windowed(config: TextConfig, count: int) -> list[Mixer]:
    """Return how each layer of a model attends that has a window, and no list of its layers."""
    pattern = config.given.get("sliding_window_pattern")
    if isinstance(pattern, str) and pattern:  # EXAONE
        return ["window" if pattern[i % len(pattern)] == "L" else "full" for i in range(count)]
    if config.given.get("use_sliding_window") is True:  # Qwen
        first = config.number("max_window_layers") or 0
        return ["window" if i >= first else "full" for i in range(count)]
    names = ("sliding_window_pattern", "_sliding_window_pattern")
    period = config.number(*names) or _EVERY_OTHER_FULL.get(config.kind)
    if period is None:
        return ["window"] * count
    return ["full" if (i + 1) % period == 0 else "window" for i in range(count)]


def _numbers(config: TextConfig, *names: str) -> set[int] | None:
    """Return the first of these lists as a set of its whole numbers, None if there is none."""
    for name in names:
        found: Any = config.given.get(name)
        if isinstance(found, list) and len(found) <= _MOST_LAYERS:
            return {each for each in found if type(each) is int}
    return None
