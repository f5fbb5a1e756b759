"""Quantized weights: how a config tells them, and how many parameters lie in a tensor's numbers."""

import re
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from coordinate_eval._text_config import TextConfig

KEYS: Final = ("quantization_config", "compression_config", "quantization")
"""Names of the part of a config that describes quantized weights."""

_METHODS: Final = {
    "compressed_tensors": "compressed-tensors",
    "awq_marlin": "awq",
    "gptq_marlin": "gptq",
}
_BITS: Final = {
    "fp8": 8,
    "fbgemm_fp8": 8,
    "mxfp8": 8,
    "mxfp4": 4,
    "awq": 4,
    "gptq": 4,
    "experts_int8": 8,
}
"""Bits of a weight by method, where the config does not say."""

_FOUR = ("load_in_4bit", "_load_in_4bit")  # bitsandbytes

_BESIDE = re.compile(
    r"scale|zero|g_idx|absmax|quant_map|quant_state|bitsandbytes|(?:^|\.)SCB$|weight_shape|"
    r"weight_format|(?:^|_)perm$",
    re.IGNORECASE,
)
"""Names of tensors that belong to quantized weights and are none."""

_PACKS: Final = {"int32": 32, "uint32": 32, "int64": 64, "uint8": 8, "int8": 8}
"""Bits of a number into which weights are packed, by type."""


class Quantized(NamedTuple):
    """Quantized weights, as a config describes them; without any, `method` is empty."""

    method: str = ""
    """As vLLM names it, such as `fp8`; empty if the config does not say, as vLLM takes it."""
    bits: int = 16
    """Bits of a weight."""
    multiplied_bits: int = 16
    """Bits of the numbers that are multiplied: 8 or 4 if activations are quantized and GPUs can."""
    block: int = 1
    """Weights of one scale: parts of a divided matrix are a multiple of it."""
    cache_bits: int = 16
    """Bits of a number in the cache of keys and values."""


def quantized(whole: Mapping[str, Any], config: TextConfig, beside: Mapping[str, Any]) -> Quantized:
    """Return how weights are quantized.

    Args:
        config: that of its language model.
        beside: the content of `hf_quant_config.json`, empty if there is none.
    """
    found = next(
        (
            each[key]
            for each in (whole, config.given, beside)
            for key in KEYS
            if isinstance(each.get(key), dict) and each[key]
        ),
        None,
    )
    if found is None:
        return Quantized()
    inner = found.get("quantization")
    said = {**(inner if isinstance(inner, dict) else {}), **_scheme(found), **found}
    method = str(said.get("quant_method") or "").lower()
    method = _METHODS.get(method, method)
    algorithm = str(said.get("quant_algo") or "").upper()
    if not method and algorithm:
        method = "modelopt"
    four = "FP4" in algorithm or any(said.get(key) is True for key in _FOUR)
    bits = _number(said, "bits", "w_bit", "num_bits") or (4 if four else _BITS.get(method, 8))
    floating = method in ("fp8", "fbgemm_fp8", "mxfp4", "mxfp8", "modelopt")
    multiplied = bits if floating else _number(said, "activation_bits") or 16
    if said.get("activation_scheme") is None and method == "mxfp4":
        multiplied = 16  # activations keep 16 bits
    block = _number(said, "group_size", "q_group_size") or 1
    sizes = said.get("weight_block_size")
    if isinstance(sizes, list) and all(type(each) is int and 0 < each < 10**4 for each in sizes):
        block = max(sizes, default=1)
    cache = said.get("kv_cache_quant_algo") or said.get("kv_cache_scheme")
    return Quantized(
        method=method[:40],
        bits=bits,
        multiplied_bits=next((each for each in (4, 8) if multiplied <= each), 16),
        block=block,
        cache_bits=8 if cache else 16,
    )


def _scheme(found: Mapping[str, Any]) -> dict[str, Any]:
    """Return what compressed-tensors says of its first group of layers, flat."""
    groups = found.get("config_groups")
    group = next(iter(groups.values()), None) if isinstance(groups, dict) else None
    if not isinstance(group, dict):
        return {}
    weights, inputs = group.get("weights"), group.get("input_activations")
    said = dict(weights) if isinstance(weights, dict) else {}
    if isinstance(inputs, dict) and inputs.get("type") == "float":
        said["activation_bits"] = inputs.get("num_bits")
    return said


def _number(said: Mapping[str, Any], *names: str) -> int:
    """Return the first of these that is a small positive number, else 0."""
    found = (said.get(name) for name in names)
    return next((each for each in found if type(each) is int and 0 < each <= 10**4), 0)


def parameters_in(name: str, dtype: str, count: int, bits: int) -> int:
    """Return how many parameters a tensor of `count` numbers has in quantized weights."""
    if _BESIDE.search(name.rpartition("weight")[2] or name.rpartition(".")[2]):
        return 0
    return count * max(1, _PACKS.get(dtype, bits) // bits)
