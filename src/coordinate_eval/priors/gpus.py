"""Peak rates and memory of GPUs, from their vendors' data sheets (dense, without sparsity)."""

import re
from functools import cache
from typing import NamedTuple


class Gpu(NamedTuple):
    """Peak rates of one GPU, and its memory."""

    flops: float
    """FLOP/s in 16-bit matrix work."""
    bandwidth: float
    """Bytes per second of its memory."""
    memory: float
    """Bytes of its memory; 0 if that is not known."""
    link: float
    """Bytes per second that it sends to other GPUs of its node."""


# NVIDIA data sheets of B200, H200, H100 SXM, GH200, A100 80 GB, L40S, L4, A40, A10, V100, T4; AMD
# data sheets of MI300X and MI250X (one module, with the memory of one of its two devices). Links
# are NVLink or Infinity Fabric in one direction, else PCIe. The first name that begins a part of a
# node's GPU type counts: `nvidia_h100_80gb` is an H100, and `rtx_a4000` is not an A40.
_KNOWN: dict[str, Gpu] = {
    "gb200": Gpu(2.50e15, 8.0e12, 186e9, 9.0e11),
    "b200": Gpu(2.25e15, 8.0e12, 180e9, 9.0e11),
    "gh200": Gpu(9.89e14, 4.0e12, 96e9, 4.5e11),
    "h200": Gpu(9.89e14, 4.8e12, 141e9, 4.5e11),
    "h100": Gpu(9.89e14, 3.35e12, 80e9, 4.5e11),
    "a100": Gpu(3.12e14, 2.04e12, 80e9, 3.0e11),
    "l40s": Gpu(3.62e14, 0.86e12, 48e9, 3.2e10),
    "a40": Gpu(1.50e14, 0.70e12, 48e9, 3.2e10),
    "a10": Gpu(1.25e14, 0.60e12, 24e9, 3.2e10),
    "l4": Gpu(1.21e14, 0.30e12, 24e9, 3.2e10),
    "v100": Gpu(1.25e14, 0.90e12, 32e9, 1.5e11),
    "t4": Gpu(6.5e13, 0.32e12, 16e9, 1.6e10),
    "mi300x": Gpu(1.31e15, 5.3e12, 192e9, 4.5e11),
    "mi250": Gpu(3.83e14, 3.2e12, 64e9, 4.0e11),
    "cpu": Gpu(1.0e11, 2.0e10, 0.0, 1.0e10),
}

UNKNOWN = _KNOWN["a100"]._replace(memory=0.0)
"""Rates assumed for a type that is not in the table: those of an A100. The first finished run on
the type replaces this guess."""


def lookup(gpu_type: str) -> Gpu:
    """Return the rates of a type as a cluster spells it, such as `nvidia_h100_80gb_hbm3`."""
    return _KNOWN.get(name(gpu_type), UNKNOWN)


def known(gpu_type: str) -> bool:
    """Return whether the table has this type; for others `lookup` assumes rates."""
    return name(gpu_type) in _KNOWN


@cache
def name(gpu_type: str) -> str:
    """Return one name for all spellings of a type: the table's, else the type in lower case."""
    spelled = gpu_type.lower().replace("-", "_").replace(" ", "_")
    if spelled.startswith("cpu"):  # the model name that follows may contain anything
        return "cpu"
    found = (known for known in _KNOWN if re.search(rf"(?:^|_){known}(?![0-9])", spelled))
    return next(found, spelled)
