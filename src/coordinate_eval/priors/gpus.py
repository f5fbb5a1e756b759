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

# A slice of a GPU that is divided with NVIDIA's MIG, in the name of its profile (`1g.10gb`): how
# many of seven parts of the arithmetic it has, and its memory.
_SLICE = re.compile(r"(?:^|[_.])(?P<profile>(?P<parts>[1-7])g\.(?P<gigabytes>\d{1,3})gb)")
_BANDWIDTH_EIGHTHS = {1: 1, 2: 2, 3: 4, 4: 4, 7: 8}
"""Eighths of the memory, and so of its bandwidth, by parts of the arithmetic: NVIDIA MIG User
Guide, table of profiles."""

UNKNOWN = _KNOWN["a100"]._replace(memory=0.0)
"""Rates assumed for a type that is not in the table: those of an A100. The first finished run on
the type replaces this guess."""


def lookup(gpu_type: str) -> Gpu:
    """Return the rates of a type as a cluster spells it, such as `nvidia_h100_80gb_hbm3`."""
    whole, _, profile = name(gpu_type).partition("/")
    gpu = _KNOWN.get(whole, UNKNOWN)
    sliced = _SLICE.match(profile)
    if sliced is None:
        return gpu
    parts = int(sliced["parts"])
    return gpu._replace(
        flops=gpu.flops * parts / 7,
        bandwidth=gpu.bandwidth * _BANDWIDTH_EIGHTHS.get(parts, parts) / 8,
        memory=float(sliced["gigabytes"]) * 1e9,
    )


def known(gpu_type: str) -> bool:
    """Return whether the table has this type; for others `lookup` assumes rates."""
    return name(gpu_type).partition("/")[0] in _KNOWN


def is_slice(gpu_type: str) -> bool:
    """Return whether a type is a part of a GPU (MIG). Such parts cannot share one model."""
    return _SLICE.search(_spelled(gpu_type)) is not None


def asked_for(gpu_type: str, wanted: str) -> bool:
    """Return whether a type is the wanted one, each in any of its spellings; '' wants any."""
    return not wanted or name(gpu_type) == name(wanted)


@cache
def name(gpu_type: str) -> str:
    """Return one name for all spellings of a type: the table's, else the type in lower case.

    A slice of a GPU has its profile behind a slash: `a100/1g.10gb`.
    """
    spelled = _spelled(gpu_type)
    if spelled.startswith("cpu"):  # the model name that follows may contain anything
        return "cpu"
    if sliced := _SLICE.search(spelled):
        return f"{name(spelled[: sliced.start()])}/{sliced['profile']}"
    found = (known for known in _KNOWN if re.search(rf"(?:^|_){known}(?![0-9])", spelled))
    return next(found, spelled)


def _spelled(gpu_type: str) -> str:
    return gpu_type.lower().replace("-", "_").replace(" ", "_")
