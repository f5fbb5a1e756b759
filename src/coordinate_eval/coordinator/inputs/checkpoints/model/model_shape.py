"""Compute what a model costs an engine, from its config and the headers of its weights.

The headers tell parameters and bytes. The config gives the layers, and so the cache and the degrees
in which GPUs can share the model.
"""

import math
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from coordinate_eval import _format
from coordinate_eval._text_config import HEADS, KV_HEADS, WIDTHS, TextConfig
from coordinate_eval.coordinator.inputs.checkpoints.formats.layouts import ITEM_BYTES, Tensor
from coordinate_eval.coordinator.inputs.checkpoints.model.context import MOST_TOKENS, context
from coordinate_eval.coordinator.inputs.checkpoints.model.layers import Layers, flat, layers_of
from coordinate_eval.coordinator.inputs.checkpoints.model.quantized import Quantized, parameters_in
from coordinate_eval.errors import UserError

_MOST_BYTES = 2**40  # of keys and values a token, or of a sequence's state: above any model's
_VOCABULARY_PADDING = 64  # `DEFAULT_VOCAB_PADDING_SIZE` of vLLM
_STATE_ITEM = 4  # bytes: engines keep states in 32 bits, or in 16

_OF_OTHERS = re.compile(r"(?:^|\.)(?:vision|visual|vit|audio|image|speech|mm_|multi_modal)")
"""Beginnings of the names of tensors that no text goes through."""

_LAYER = re.compile(r"(?:model\.|language_model\.|backbone\.)*layers\.(\d{1,6})\.")
_NO_PIPELINE = frozenset({"gemma3n_text", "mamba2", "zamba2", "hrm_text", "phi4_multimodal"})
"""Types that vLLM cannot cut between layers: their classes lack `SupportsPP`."""

_TEMPERATURE_FROM = 32768  # tokens: `Llama4ForCausalLM` of vLLM


class _Counted(NamedTuple):
    """Parameters of a model, and the bytes of its weights."""

    parameters: int
    routed: int
    """Parameters of all experts that are chosen among."""
    bytes: int = 0
    routed_bytes: int = 0
    others: int = 0
    """Parameters for images and sounds, through which no text goes."""


def model_shape(
    config: TextConfig, dtype: str, packed: Quantized, tensors: Mapping[str, Tensor]
) -> dict[str, Any]:
    """Return the fields of `Checkpoint` that a model's config and headers give.

    Args:
        config: of the language model.
        packed: how they are quantized.
        tensors: of all files.

    Raises:
        UserError: A number is larger than any model's.
    """
    config = flat(config)
    layers, length = layers_of(config), context(config)
    found = _count(tensors, layers, packed)
    chosen = layers.chosen or layers.experts
    idle = 1 - chosen / layers.experts if layers.experts else 0.0
    # Engines keep keys and values in 16 bits, or in 32 when the weights are.
    item = 4 if dtype in ("float32", "float64") else packed.cache_bits // 8
    cache = _cache(config, layers, item)
    if max(cache.values()) > _MOST_BYTES:
        raise UserError(
            f"{config.file}: {_format.size(max(cache.values()))} of keys and values a token, as no "
            "model has"
        )
    return {
        "parameters": found.parameters,
        "active_parameters": found.parameters - found.others - int(found.routed * idle),
        "loaded_bytes": found.bytes,
        "routed_bytes": found.routed_bytes,
        "experts": layers.experts,
        "experts_per_token": chosen,
        "multiplied_bits": packed.multiplied_bits,
        "quantization": packed.method,
        "doubt": _doubt(config, layers, tensors),
        "max_length": length.most,
        "short_length": length.short,
        "hf_length": length.hf,
        "same_from": _TEMPERATURE_FROM if config.kind == "llama4_text" else length.short,
        # Engines take the nested one, too. Some models pad it, and name both.
        "vocabulary": config.number("padded_vocab_size", "vocab_size", most=MOST_TOKENS) or 0,
        "attention_heads": config.number(*HEADS) or 1,
        **cache,
        "kv_heads": 1 if config.number("kv_lora_rank") else _kv_heads(config),
        "activation_bytes_per_token": len(layers.mixers)
        * (config.number(*WIDTHS) or 0)
        * max(2, item),
        "stages": 1 if config.kind in _NO_PIPELINE else max(1, len(layers.mixers)),
        **_splits(config, layers, packed),
    }


def _count(tensors: Mapping[str, Tensor], layers: Layers, packed: Quantized) -> _Counted:
    """Return what the headers say of the weights that an engine loads.

    Layers by which a model was trained to predict further tokens stay out.
    """
    parameters = routed = size = routed_size = others = 0
    for name, (dtype, shape) in tensors.items():
        layer = _LAYER.match(name)
        if layer and int(layer[1]) in layers.beyond:
            continue
        count = math.prod(shape)
        own = parameters_in(name, dtype, count, packed.bits) if packed.method else count
        held = count * ITEM_BYTES.get(dtype, 1)
        parameters, size = parameters + own, size + held
        stacked = len(shape) > 2 and shape[0] == layers.experts
        if _OF_OTHERS.search(name):
            others += own
        elif layers.experts and (".experts." in name or stacked):
            routed, routed_size = routed + own, routed_size + held
    return _Counted(parameters, routed, size, routed_size, others)


def _ssm(config: TextConfig, width: int) -> tuple[int, int, int]:
    """Return heads, their size and the states of Mamba 2; 0, the inner width, states of Mamba."""
    number = config.number
    states = number("mamba_d_state", "ssm_state_size", "state_size", "d_state") or 0
    if not states:
        return 0, 0, 0
    heads = number("mamba_n_heads", "mamba_num_heads", "n_mamba_heads")
    if heads is None and config.kind == "mamba2":
        heads = number("num_heads")
    inner = (number("mamba_expand", "expand") or 2) * width
    if heads is None:
        own = number("intermediate_size") if config.kind == "mamba" else None
        return 0, own or inner, states
    return heads, number("mamba_d_head", "mamba_head_dim") or inner // heads, states


def _cache(config: TextConfig, layers: Layers, item: int) -> dict[str, int]:
    """Return the bytes that an engine keeps of a token, and of a sequence however long."""
    number = config.number
    heads, (size, value) = _kv_heads(config), _head_sizes(config)
    full = window = heads * (size + value)
    if number("global_head_dim"):  # Gemma 4
        full = (
            (number("num_global_key_value_heads") or heads) * 2 * (number("global_head_dim") or 0)
        )
    if number("swa_head_dim", "swa_num_key_value_heads"):  # MiMo
        small = (number("swa_head_dim") or size) + (number("swa_v_head_dim") or value)
        window = (number("swa_num_key_value_heads") or heads) * small
    if latent := number("kv_lora_rank"):
        # One compressed vector for all heads, and a rotated key.
        full = window = latent + (number("qk_rope_head_dim") or 0)
    # Last layers that read the cache of earlier ones have none (Gemma 3n).
    shared = config.given.get("num_kv_shared_layers")
    last = shared if type(shared) is int and 0 < shared < len(layers.mixers) else 0
    own = layers.mixers[: len(layers.mixers) - last]
    indexed = own.count("full") * ((number("index_head_dim") or -4) + 4)  # DeepSeek V3.2, 8 bits
    windowed = own.count("window") * window * item
    states = layers.mixers.count("state") or len(layers.mixers) * (config.kind == "falcon_h1")
    return {
        "kv_bytes_per_token": own.count("full") * full * item + indexed + windowed,
        "windowed_bytes_per_token": windowed,
        "window": layers.window if windowed else 0,
        "state_bytes": states * _state(config) * _STATE_ITEM,
    }


def _state(config: TextConfig) -> int:
    """Return the numbers in the state that a layer keeps of a sequence."""
    number = config.number
    width = number(*WIDTHS) or 0
    kernel = number("mamba_d_conv", "conv_kernel", "d_conv", "linear_conv_kernel_dim") or 4
    if value_heads := number("linear_num_value_heads"):
        key, value = number("linear_key_head_dim") or 128, number("linear_value_head_dim") or 128
        wide = 2 * (number("linear_num_key_heads") or value_heads) * key + value_heads * value
        return value_heads * key * value + wide * (kernel - 1)
    if short := number("conv_L_cache"):
        return width * short
    heads, size, states = _ssm(config, width)
    if states:
        return max(1, heads) * size * (states + kernel - 1)
    return (number(*HEADS) or 1) * _head_sizes(config)[0] ** 2


def _splits(config: TextConfig, layers: Layers, packed: Quantized) -> dict[str, Any]:
    """Return the numbers that a tensor-parallel degree has to divide.

    Quantized matrices are cut between blocks of weights that share a scale.
    """
    number = config.number
    width = number(*WIDTHS) or 0
    words = number("padded_vocab_size", "vocab_size", most=MOST_TOKENS) or 0
    heads, value = number(*HEADS) or 1, number("v_head_dim") or _head_sizes(config)[1]
    name = f"blocks of {packed.block} in " if packed.block > 1 else ""

    def parts(count: int) -> int:
        return count // packed.block if count % packed.block == 0 else 1

    splits = {"vocabulary, padded": -(-words // _VOCABULARY_PADDING) * _VOCABULARY_PADDING}
    if _has_mlp(config, layers):
        splits[f"{name}intermediate size"] = parts(_dense_width(config, width))
    if packed.block > 1:
        splits[f"{name}attention"] = parts(heads * value)
    if "state" in layers.mixers:
        state_heads, inner, _ = _ssm(config, width)
        held = number("linear_num_value_heads") or state_heads or inner
        splits["parts of states"] = held or heads
    shared = _shared_width(config, layers)
    if layers.experts and shared:
        splits[f"{name}shared experts"] = parts(shared)
    of_experts = {f"{name}experts": parts(_expert_width(config))} if layers.experts else {}
    return {
        "splits": {name: size for name, size in splits.items() if size},
        "expert_splits": {name: size for name, size in of_experts.items() if size},
    }


def _doubt(config: TextConfig, layers: Layers, tensors: Mapping[str, Tensor]) -> str:
    """Return why figures of a model are less sure than usual, empty if nothing says so."""
    named = layers.experts or any(".experts." in name for name in tensors)
    if named and not layers.chosen:
        return "its config does not say through how many experts a token goes: all count"
    if not config.known:
        return "its type of model is not known here: its cache is an estimate"
    return ""


def _head_sizes(config: TextConfig) -> tuple[int, int]:
    """Return the dimensions of a head's keys, and of its values."""
    number = config.number
    size = number("head_dim", "kv_channels", "hidden_size_per_head")
    size = size or (number(*WIDTHS) or 0) // (number(*HEADS) or 1)
    own = number("v_head_dim") if number("head_dim") else None
    return size, own or size


def _expert_width(config: TextConfig) -> int:
    names = ("moe_intermediate_size", "expert_ffn_hidden_size", "ffn_hidden_size")
    return config.number(*names, "intermediate_size") or 0


def _has_mlp(config: TextConfig, layers: Layers) -> bool:
    """Return whether layers may have an MLP without experts: its width is none of theirs."""
    if not layers.experts:
        return set(layers.mixers) != {"state"}
    if config.number("decoder_sparse_step") == 1 and not config.given.get("mlp_only_layers"):
        return False  # of Qwen
    return _dense_width(config, config.number(*WIDTHS) or 0) != _expert_width(config)


def _dense_width(config: TextConfig, width: int) -> int:
    names = ("intermediate_size_mlp", "dense_intermediate_size", "intermediate_size")
    found = config.number(*names, "ffn_hidden_size", "n_inner", "ffn_dim", "n_inner", "d_ff")
    return found or 4 * width


def _shared_width(config: TextConfig, layers: Layers) -> int:
    """Return the width of a layer's experts that every token goes through."""
    number = config.number
    names = ("moe_shared_expert_intermediate_size", "shared_expert_intermediate_size")
    given = number(*names, "shared_intermediate_size", "share_expert_dim")
    shared = number(
        "n_shared_experts", "num_shared_experts", "moe_num_shared_experts", "num_shared_expert"
    )
    if given:
        return given * (shared or 1)
    if config.kind == "llama4_text" and layers.experts:
        return _expert_width(config)
    return (shared or 0) * _expert_width(config)


def _kv_heads(config: TextConfig) -> int:
    """Return the heads of keys and values: as many as of queries, unless the config says."""
    many = config.given.get("new_decoder_architecture") is True  # Falcon 40B and later
    if config.given.get("multi_query") is True and not many:
        return 1
    found = config.number(*KV_HEADS, "kv_n_heads")  # the last is DBRX's
    return found or config.number(*HEADS) or 1
