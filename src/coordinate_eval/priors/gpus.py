"""Peak rates of GPUs, from their vendors' data sheets (dense, without sparsity)."""

import re
from typing import NamedTuple

from coordinate_eval import _gpus


class Gpu(NamedTuple):
    """Peak rates of one GPU, and its memory."""

    flops: float
    """FLOP/s in 16-bit matrix work."""
    bandwidth: float
    """Bytes per second of its memory."""
    link: float
    """Bytes per second that it sends to other GPUs of its node."""
    memory: float = 0.0
    """Bytes of its memory; 0 if that is not known."""
    least_bits: int = 16
    """Least bits of the floating numbers that it multiplies: with half of them twice as fast."""
    capability: int = 0
    """NVIDIA's compute capability times ten, by which vLLM refuses; 0 if it has none."""


# NVIDIA data sheets of B200, H200, H100 SXM, GH200, A100 80 GB, L40S, L4, A40, A10, V100, T4; AMD
# data sheets of MI300X and MI250X (one module). Links are NVLink or Infinity Fabric in one
# direction, else PCIe. The memory of a GPU follows from its name (`_gpus.py`). Capabilities are in
# NVIDIA's CUDA C++ Programming Guide.
_KNOWN: dict[str, Gpu] = {
    "gb200": Gpu(2.50e15, 8.0e12, 9.0e11, least_bits=4, capability=100),
    "b200": Gpu(2.25e15, 8.0e12, 9.0e11, least_bits=4, capability=100),
    "gh200": Gpu(9.89e14, 4.0e12, 4.5e11, least_bits=8, capability=90),
    "h200": Gpu(9.89e14, 4.8e12, 4.5e11, least_bits=8, capability=90),
    "h100": Gpu(9.89e14, 3.35e12, 4.5e11, least_bits=8, capability=90),
    "a100": Gpu(3.12e14, 2.04e12, 3.0e11, capability=80),
    "l40s": Gpu(3.62e14, 0.86e12, 3.2e10, least_bits=8, capability=89),
    "a40": Gpu(1.50e14, 0.70e12, 3.2e10, capability=86),
    "a10": Gpu(1.25e14, 0.60e12, 3.2e10, capability=86),
    "l4": Gpu(1.21e14, 0.30e12, 3.2e10, least_bits=8, capability=89),
    "v100": Gpu(1.25e14, 0.90e12, 1.5e11, capability=70),
    "t4": Gpu(6.5e13, 0.32e12, 1.6e10, capability=75),
    "mi300x": Gpu(1.31e15, 5.3e12, 4.5e11, least_bits=8),
    "mi250": Gpu(3.83e14, 3.2e12, 4.0e11),
    "cpu": Gpu(1.0e11, 2.0e10, 1.0e10),
}

_SLICE = re.compile(r"(?P<parts>[1-7])g\.\d+gb")
"""A profile of NVIDIA's MIG: how many of seven parts of the arithmetic a slice of a GPU has."""
_BANDWIDTH_EIGHTHS = {1: 1, 2: 2, 3: 4, 4: 4, 7: 8}
"""Eighths of the memory, and so of its bandwidth, by parts of the arithmetic: NVIDIA MIG User
Guide, table of profiles."""

UNKNOWN = _KNOWN["a100"]._replace(capability=0)
"""Rates assumed for a type that is not in the table: those of an A100. The first finished run on
the type replaces this guess."""


def lookup(gpu_type: str) -> Gpu:
    """Return the rates of a type as a cluster spells it, such as `nvidia_h100_80gb_hbm3`."""
    card, part, gib, _ = _gpus.read(gpu_type)
    gpu = _KNOWN.get(name(gpu_type).partition("/")[0], UNKNOWN)._replace(memory=gib * 1e9)
    if not part:
        return gpu
    sliced = _SLICE.fullmatch(part)
    if sliced is None:
        of_card = gib / (_gpus.memory_gib(card) or gib or 1)
        return gpu._replace(flops=gpu.flops * of_card, bandwidth=gpu.bandwidth * of_card)
    parts = int(sliced["parts"])
    return gpu._replace(
        flops=gpu.flops * parts / 7,
        bandwidth=gpu.bandwidth * _BANDWIDTH_EIGHTHS.get(parts, parts) / 8,
    )


def known(gpu_type: str) -> bool:
    """Return whether the table has this type; for others `lookup` assumes rates."""
    return name(gpu_type).partition("/")[0] in _KNOWN


def is_slice(gpu_type: str) -> bool:
    """Return whether a type is a part of a GPU, such as one of MIG. Parts cannot share a model."""
    return bool(_gpus.read(gpu_type).part)


def asked_for(gpu_type: str, wanted: str) -> bool:
    """Return whether a type is the wanted one, each in any of its spellings; '' wants any."""
    return not wanted or name(gpu_type) == name(wanted)


def name(gpu_type: str) -> str:
    """Return one name for all spellings of a type: the card's, else the type in lower case.

    A slice of a GPU has its profile behind a slash: `a100/1g.10gb`.
    """
    spelled = gpu_type.lower().replace("-", "_").replace(" ", "_")
    if spelled.startswith("cpu"):  # the model name that follows may contain anything
        return "cpu"
    card, part, _, _ = _gpus.read(gpu_type)
    if part:
        return f"{card}/{part}"
    return card or spelled
