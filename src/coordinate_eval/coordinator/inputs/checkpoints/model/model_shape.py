"""Compute what a model costs an engine, from its config and the headers of its weights.

The config gives the layers, and so the cache and the degrees in which GPUs can share the model. It
also counts parameters, which the headers do better: they have what is there. Both are compared, and
where they differ much, the headers count and `doubt` says so.
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
from coordinate_eval.coordinator.inputs.checkpoints.model.quantized import (
    UNPACKED,
    Quantized,
    parameters_in,
)
from coordinate_eval.errors import UserError

ALIKE = 1.15
"""Multiple up to which the parameters in the headers are those that the config describes."""

_TOY = 10**7  # parameters: below, norms and biases count as much as what is described
_MOST_BYTES = 2**40  # of keys and values a token, or of a sequence's state: above any model's
_VOCABULARY_PADDING = 64  # `DEFAULT_VOCAB_PADDING_SIZE` of vLLM
_STATE_ITEM = 4  # bytes: engines keep states in 32 bits, or in 16
_UNGATED = (
    "gpt2", "gpt_neo", "gpt_neox", "gptj", "gpt_bigcode", "codegen", "opt", "bloom", "mpt",
    "falcon", "phi", "starcoder2", "persimmon", "nemotron", "nemotron_h", "xglm", "apertus",
    "biogpt", "ctrl", "cohere_compass_text", "arcee", "jais2", "nanochat",
)  # fmt: skip
"""Types whose MLP has two matrices; others have a third one as a gate."""

_TIED = (
    "gemma", "bloom", "gpt2", "gpt_neo", "gpt_bigcode", "opt", "mpt", "falcon", "cohere",
    "ernie4_5", "lfm2", "starcoder2", "smollm3", "mamba", "zamba", "jetmoe", "vaultgemma",
)  # fmt: skip
"""Beginnings of types whose output layer is their embedding, unless the config says otherwise."""

_OF_OTHERS = re.compile(r"(?:^|\.)(?:vision|visual|vit|audio|image|speech|mm_|multi_modal)")
"""Beginnings of the names of tensors that no text goes through."""

_LAYER = re.compile(r"(?:model\.|language_model\.|backbone\.)*layers\.(\d{1,6})\.")
_NO_PIPELINE = frozenset({"gemma3n_text", "mamba2", "zamba2", "hrm_text", "phi4_multimodal"})
"""Types that vLLM cannot cut between layers: their classes lack `SupportsPP`."""

_TEMPERATURE_FROM = 32768  # tokens: `Llama4ForCausalLM` of vLLM


class Counted(NamedTuple):
    """Parameters of a model, and the bytes of its weights."""

    parameters: int
    routed: int
    """Parameters of all experts that are chosen among."""
    bytes: int = 0
    routed_bytes: int = 0
    others: int = 0
    """Parameters for images and sounds, through which no text goes."""


def model_shape(
    config: TextConfig,
    dtype: str,
    packed: Quantized = UNPACKED,
    tensors: Mapping[str, Tensor] | None = None,
) -> dict[str, Any]:
    """Return the fields of `Checkpoint` that a model's config and headers give.

    Args:
        config: of the language model.
        packed: how they are quantized.
        tensors: of all files; None leaves the config alone to count.

    Raises:
        UserError: A number is larger than any model's.
    """
    config = flat(config)
    layers, length = layers_of(config), context(config)
    told = described(config, layers, packed)
    found = told if tensors is None else counted(tensors, layers, packed)
    if layers.experts and not found.routed and told.routed < found.parameters:
        share = told.routed / max(1, told.parameters)
        found = found._replace(routed=told.routed, routed_bytes=int(found.bytes * share))
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
        "doubt": _doubt(layers, told, found, tensors or {}),
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


def counted(tensors: Mapping[str, Tensor], layers: Layers, packed: Quantized) -> Counted:
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
    return Counted(parameters, routed, size, routed_size, others)


def described(config: TextConfig, layers: Layers, packed: Quantized) -> Counted:
    """Return the parameters that a config describes; norms and biases are left out.

    Bytes are those of weights with the bits that the config gives, and an embedding of 16.
    """
    number = config.number
    width, words = number(*WIDTHS) or 0, number("vocab_size", most=MOST_TOKENS) or 0
    tied = config.given.get("tie_word_embeddings")
    if not isinstance(tied, bool):
        tied = config.kind.startswith(_TIED)
    mlp = (2 if config.kind in _UNGATED else 3) * width
    mixing = {
        "full": _attention(config, width),
        "window": _attention(config, width),
        "state": _stateful(config, width),
        "none": 0,
    }
    mixers = sum(mixing[mixer] for mixer in layers.mixers)
    mixtures, shared = sum(layers.mixtures), mlp * _shared_width(config, layers)
    routed = mixtures * layers.experts * mlp * _expert_width(config)
    beside = mixtures * (shared + width * layers.experts)
    dense = sum(layers.dense) * mlp * _dense_width(config, width)
    embeddings = words * width * (1 if tied else 2)
    # Embeddings for each layer (Gemma 3n).
    own = number("vocab_size_per_layer_input", most=MOST_TOKENS) or 0
    embeddings += own * (number("hidden_size_per_layer_input") or 0) * len(layers.mixers)
    parameters = embeddings + mixers + dense + beside + routed
    bits = packed.bits + (0.25 if packed.method.startswith("mx") else 0)  # 8 for each 32 weights
    others = 16 if packed.method == "mxfp4" else bits  # gpt-oss: experts alone
    inner = parameters - routed - embeddings
    return Counted(
        parameters,
        routed,
        int(routed * bits + inner * others + embeddings * 16) // 8,
        int(routed * bits) // 8,
    )


def _attention(config: TextConfig, width: int) -> int:
    """Return the parameters of a layer's attention to earlier tokens."""
    number = config.number
    heads = number(*HEADS) or 1
    if latent := number("kv_lora_rank"):
        # Multi-head latent attention: DeepSeek-AI, "DeepSeek-V2", 2024, section 2.1.
        rotated, plain = number("qk_rope_head_dim") or 0, number("qk_nope_head_dim") or 0
        value = number("v_head_dim") or plain
        low = number("q_lora_rank")
        queries = heads * (rotated + plain)
        asking = low * (width + queries) if low else width * queries
        return (
            asking + width * (latent + rotated) + heads * (latent * (plain + value) + value * width)
        )
    size, value = _head_sizes(config)
    gate = 2 if config.given.get("attn_output_gate") is True or config.kind == "qwen3_next" else 1
    return width * (gate * heads * size + _kv_heads(config) * (size + value) + heads * value)


def _stateful(config: TextConfig, width: int) -> int:
    """Return the parameters of a layer that keeps a state: Mamba's, or linear attention's."""
    number = config.number
    kernel = number("mamba_d_conv", "conv_kernel", "d_conv", "linear_conv_kernel_dim") or 4
    if value_heads := number("linear_num_value_heads"):  # gated delta net
        keys = (number("linear_num_key_heads") or value_heads) * (
            number("linear_key_head_dim") or 128
        )
        values = value_heads * (number("linear_value_head_dim") or 128)
        wide = 2 * keys + values
        return width * (wide + 2 * values + 2 * value_heads) + wide * kernel
    if number("conv_L_cache"):  # LFM2
        return 4 * width * width
    heads, size, states = _ssm(config, width)
    if heads:  # Mamba 2
        inner = heads * size
        both = inner + 2 * (number("mamba_n_groups", "n_groups", "mamba_ngroups") or 1) * states
        return width * (inner + both + heads) + both * kernel + inner * width
    if states:  # Mamba
        inner = size
        rank = number("mamba_dt_rank", "time_step_rank") or -(-width // 16)
        return inner * (3 * width + kernel + 2 * rank + 3 * states)
    return width * 5 * (number(*HEADS) or 1) * _head_sizes(config)[0]  # lightning attention


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
    if any(layers.dense):
        splits[f"{name}intermediate size"] = parts(_dense_width(config, width))
    if packed.block > 1:
        splits[f"{name}attention"] = parts(heads * value)
    if "state" in layers.mixers:
        state_heads, inner, _ = _ssm(config, width)
        held = number("linear_num_value_heads") or state_heads or inner
        splits["parts of states"] = held or heads
    shared = _shared_width(config, layers)
    if any(layers.mixtures) and shared:
        splits[f"{name}shared experts"] = parts(shared)
    of_experts = {f"{name}experts": parts(_expert_width(config))} if any(layers.mixtures) else {}
    return {
        "splits": {name: size for name, size in splits.items() if size},
        "expert_splits": {name: size for name, size in of_experts.items() if size},
    }


def _doubt(layers: Layers, told: Counted, found: Counted, tensors: Mapping[str, Tensor]) -> str:
    """Return why figures of a model are less sure than usual, empty if nothing says so."""
    named = layers.experts or any(".experts." in name for name in tensors)
    if named and not layers.chosen:
        return "its config does not say through how many experts a token goes: all count"
    if found.parameters < _TOY:
        return ""
    own = found.parameters - found.others
    if told.parameters / ALIKE <= own <= told.parameters * ALIKE:
        return ""
    return (
        f"the layers in its config come to {told.parameters:,} parameters, and its files hold "
        f"{own:,}: the files count, and its cache is an estimate"
    )


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


def _dense_width(config: TextConfig, width: int) -> int:
    names = ("intermediate_size_mlp", "dense_intermediate_size", "intermediate_size")
    found = config.number(*names, "ffn_hidden_size", "n_inner", "ffn_dim", "n_inner", "d_ff")
    return found or (4 * width if config.kind in _UNGATED else 0)


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
