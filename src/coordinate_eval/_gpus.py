"""Read the name of a GPU type: the card, whether it is a part of one, and the memory.

One parser for every place that names GPUs: Slurm's `gres`, Ray's accelerator types, cluster files,
`--gpu-type` and what earlier runs measured. Memory is never guessed upwards. Where cards of one
name have several sizes and the name says none, the commonest small one counts, and a name that
says too little has memory 0: the user is asked.
"""

import re
from collections.abc import MutableMapping, Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple


class Named(NamedTuple):
    """The meaning of a name."""

    card: str
    """One name for all spellings of a card, empty if it is not in the table."""
    part: str
    """The part of a card: a profile such as `1g.10gb`, `10gb`, or `?`; empty for a whole card."""
    gib: float
    """Memory in GiB of what a job gets; 0 if it is not known."""
    sizes: tuple[int, ...] = ()
    """The sizes of which `gib` is the assumed one, where cards have several and none is named."""


# (card, regular expression for its name, memory in GiB), from the makers' data sheets. The first
# size counts where the name says none of them. Vendors' words are gone from names before. Of a
# module with two devices, MI250 and Max 1550, the memory is that of one: programs see two GPUs.
_CARDS: tuple[tuple[str, str, tuple[int, ...]], ...] = (
    ("gb300", "gb300", (270,)),
    ("b300", "b300", (270,)),
    ("gb200", "gb200", (186,)),
    ("b200", "b200", (180,)),
    ("gh200", "gh200", (96, 141, 144)),
    ("h200", "h200", (141,)),
    ("h100", "h100", (80, 64, 94, 96)),
    ("h100", "h100_?nvl", (94, 96)),
    ("h800", "h800", (80,)),
    ("h20", "h20", (96, 141)),
    ("a100", "a100", (40, 64, 80)),
    ("a100", "a100[dlx]x?", (80,)),
    ("a800", "a800", (40, 80)),
    ("a40", "a40", (48,)),
    ("a30", "a30x?", (24,)),
    ("a16", "a16", (16,)),
    ("a10", "a10[gm]?", (24,)),
    ("a2", "a2(?![a-z])", (16,)),
    ("l40s", "l40s", (48,)),
    ("l40g", "l40g", (24,)),
    ("l40", "l40", (48,)),
    ("l20", "l20", (48,)),
    ("l4", "l4(?![a-z])", (24,)),
    ("l2", "l2(?![a-z])", (24,)),
    ("v100", "v100", (16, 32)),
    ("v100", "v100[ls]", (32,)),
    ("t4", "t4g?(?![a-z])", (16,)),
    ("p100", "p100", (12, 16)),
    ("p100", "p100l", (16,)),
    ("p40", "p40", (24,)),
    ("p4", "p4(?![a-z])", (8,)),
    ("m60", "m60", (8,)),
    ("m40", "m40", (12, 24)),
    ("k80", "k80", (12,)),
    ("k40", "k40", (12,)),
    ("gv100", "gv100", (32,)),
    ("p6000", "p6000", (24,)),
    ("titan_rtx", "titan_?rtx", (24,)),
    ("titan_v", "titan_?v", (12,)),
    ("titan_x", "titan_?x", (12,)),
    ("rtx_pro_6000", "(?:rtx_?)?pro_?6000|rtx_?6000_?(?:pro|blackwell)", (96,)),
    ("rtx_pro_5000", "rtx_?pro_?5000|rtx_?5000_?(?:pro|blackwell)", (48, 72)),
    ("rtx_pro_4500", "rtx_?pro_?4500|rtx_?4500_?(?:pro|blackwell)", (32,)),
    ("rtx_pro_4000", "rtx_?pro_?4000|rtx_?4000_?(?:pro|blackwell)", (24,)),
    ("rtx_6000_ada", "(?:rtx_?)?6000_?ada|(?:rtx_?)?ada_?6000", (48,)),
    ("rtx_5880_ada", "(?:rtx_?)?5880_?ada", (48,)),
    ("rtx_5000_ada", "(?:rtx_?)?5000_?ada|(?:rtx_?)?ada_?5000", (32,)),
    ("rtx_4500_ada", "(?:rtx_?)?4500_?ada", (24,)),
    ("rtx_4000_ada", "(?:rtx_?)?4000_?(?:sff_?)?ada", (20,)),
    ("rtx_2000_ada", "(?:rtx_?)?2000_?ada", (16,)),
    ("rtx_a6000", "(?:rtx_?)?a6000", (48,)),
    ("rtx_a5500", "(?:rtx_?)?a5500", (24,)),
    ("rtx_a5000", "(?:rtx_?)?a5000", (24,)),
    ("rtx_a4500", "(?:rtx_?)?a4500", (20,)),
    ("rtx_a4000", "(?:rtx_?)?a4000", (16,)),
    ("rtx_a2000", "(?:rtx_?)?a2000", (6, 12)),
    ("rtx_8000", "rtx_?8000", (48,)),
    ("rtx_6000", "rtx_?6000", (24,)),
    ("rtx_5000", "rtx_?5000", (16,)),
    ("rtx_4000", "rtx_?4000", (8,)),
    ("rtx_5090", "(?:[rg]tx_?)?5090d?", (32,)),
    ("rtx_5080", "(?:[rg]tx_?)?5080", (16,)),
    ("rtx_5070_ti", "(?:[rg]tx_?)?5070_?ti", (16,)),
    ("rtx_5070", "(?:[rg]tx_?)?5070", (12,)),
    ("rtx_5060", "(?:[rg]tx_?)?5060", (8,)),
    ("rtx_5060_ti", "(?:[rg]tx_?)?5060_?ti", (8, 16)),
    ("rtx_4090", "(?:[rg]tx_?)?4090d?", (24,)),
    ("rtx_4080", "(?:[rg]tx_?)?4080", (16,)),
    ("rtx_4070_ti_super", "(?:[rg]tx_?)?4070_?ti_?super", (16,)),
    ("rtx_4070", "(?:[rg]tx_?)?4070", (12,)),
    ("rtx_4060", "(?:[rg]tx_?)?4060", (8,)),
    ("rtx_4060_ti", "(?:[rg]tx_?)?4060_?ti", (8, 16)),
    ("rtx_3090", "(?:[rg]tx_?)?3090", (24,)),
    ("rtx_3080_ti", "(?:[rg]tx_?)?3080_?ti", (12,)),
    ("rtx_3080", "(?:[rg]tx_?)?3080", (10, 12)),
    ("rtx_3070", "(?:[rg]tx_?)?3070", (8,)),
    ("rtx_3060", "(?:[rg]tx_?)?3060", (8, 12)),
    ("rtx_2080_ti", "(?:[rg]tx_?)?2080_?ti", (11,)),
    ("rtx_2080", "(?:[rg]tx_?)?2080", (8,)),
    ("rtx_2070", "(?:[rg]tx_?)?2070", (8,)),
    ("rtx_2060", "(?:[rg]tx_?)?2060", (6, 12)),
    ("gtx_1080_ti", "(?:gtx_?)?1080_?ti", (11,)),
    ("gtx_1080", "(?:gtx_?)?1080", (8,)),
    ("mi355x", "mi355x?", (288,)),
    ("mi350x", "mi350x?", (288,)),
    ("mi325x", "mi325x?", (256,)),
    ("mi308x", "mi308x?", (192,)),
    ("mi300x", "mi300x", (192,)),
    ("mi300a", "mi300a", (128,)),
    ("mi300", "mi300", (128, 192)),
    ("mi250", "mi250x?", (64,)),
    ("mi210", "mi2[01]0", (64,)),
    ("mi100", "mi100", (32,)),
    ("mi60", "mi60", (32,)),
    ("mi50", "mi50", (16, 32)),
    ("w7900", "w7900", (48,)),
    ("w6800", "w6800", (32,)),
    ("rx_7900_xtx", "7900_?xtx", (24,)),
    # AMD's names of architectures, where a site has nothing else: the smallest card of each.
    ("gfx950", "gfx950", (288,)),
    ("gfx942", "gfx942", (128, 192, 256)),
    ("gfx90a", "gfx90a", (64,)),
    ("gfx908", "gfx908", (32,)),
    ("gfx906", "gfx906", (16, 32)),
    ("max_1550", "(?:max|xt|pvc)_?1550", (64,)),
    ("max_1100", "(?:max|pvc)_?1100|pvc|ponte_?vecchio", (48,)),
    ("flex_170", "flex_?170", (16,)),
    ("flex_140", "flex_?140", (6, 12)),
    ("arc_a770", "(?:arc_?)?a770", (8, 16)),
    ("gaudi3", "gaudi_?3|hl_?325l?", (128,)),
    ("gaudi2", "gaudi_?2|hl_?225[a-z]?", (96,)),
    ("gaudi", "gaudi|hl_?205", (32,)),
)
_PATTERNS = tuple(
    (card, re.compile(rf"(?<![a-z0-9])(?:{pattern})(?![0-9])"), sizes)
    for card, pattern, sizes in _CARDS
)

_VENDORS = re.compile(
    "nvidia|tesla|geforce|quadro|grid|amd|instinct|radeon|intel|data_center|datacenter|gpu"
)
# A profile of NVIDIA's MIG, `1g.10gb`, as clusters spell it.
_PROFILE = re.compile(r"(?:(?<![a-z0-9])|(?<=mig))([1-7])g[._]?(\d{1,3})gb?(?![a-z0-9])")
# The memory in GB of a virtual GPU's profile: `a100d_4_20c`, `a40_24q`.
_VIRTUAL = re.compile(r"(?<=_)(\d{1,3})[qc]$")
# What tells of a part, and not how large it is: a profile cut short, Mila's `a100l.3`, AMD's modes.
_PART = re.compile(
    r"(?<![a-z])v?mig(?![a-z])|(?<![a-z0-9])(?:[1-7]g|vgpu|mps|shards?|slices?|[cdqt]px)(?![a-z0-9])"
    r"|(?<=[a-z0-9])\.[1-7]$"
)
_SIZE = re.compile(r"(?<!\d)(?:\d{1,4}(?=gi?b(?![0-9]))|\d{2,4}(?=g(?![a-z0-9])))")
_NUMBER = re.compile(r"(?<![a-z0-9.])(\d{2,3})(?![a-z0-9.])")

_LEAST_NUMBER = 16
"""Smallest number without a unit, in GiB, that is taken for the memory of a part of a card: smaller
ones count GPUs."""

_USABLE = 0.9
"""Part of a card's memory from which a smaller size in its name is the memory of all of it, as its
driver tells it: the H100 NVL with 94 GB has 93, an L40S 46."""

_MOST_OF_UNKNOWN = 300
"""Largest size in GiB that is believed of an unknown card."""


def memory_gib(gpu_type: str, otherwise: float = 0.0) -> float:
    """Return the memory in GiB of a GPU type as a cluster spells it, 0.0 if that says too little.

    `otherwise` is what the user has set for names that do not tell it. Of a card in the table it
    counts if there are such cards.
    """
    named = read(gpu_type)
    return otherwise if not named.gib or _has(named.sizes, otherwise) else named.gib


def is_amd(gpu_type: str) -> bool:
    """Return whether a GPU type is one of AMD's."""
    card = read(gpu_type).card
    return card.startswith(("mi", "gfx", "w", "rx_")) or "amd" in gpu_type.lower()


@cache
def read(gpu_type: str) -> Named:
    """Return what the name of a GPU type says, such as `nvidia_h100_80gb_hbm3_1g.10gb`.

    A size in the name counts if cards of this name have it, or if it is less: then it is that of a
    part of the card. Other sizes are those of the host.
    """
    spelled = re.sub(r"[^a-z0-9.]+", "_", gpu_type.lower())
    if spelled.startswith("cpu"):  # the model of a processor may follow
        return Named("", "", 0.0)
    card, sizes, rest = _card(spelled)
    if profile := _PROFILE.search(spelled):
        return Named(card, f"{profile[1]}g.{profile[2]}gb", float(profile[2]))
    named = [int(size) for size in _SIZE.findall(rest)]
    if virtual := _VIRTUAL.search(rest):
        named.append(int(virtual[1]))
    part = _PART.search(spelled) is not None
    if not sizes:
        believed = [n for n in named if n <= _MOST_OF_UNKNOWN and (n <= 96 or n % 32)]
        gib = min(believed, default=0)
        return Named("", (f"{gib}gb" if gib else "?") if part else "", float(gib))
    numbers = [int(number) for number in _NUMBER.findall(rest)]
    whole = [n for n in named + numbers if _has(sizes, n)]
    less = [n for n in named if n < _USABLE * min(sizes)]
    less += [n for n in numbers if _LEAST_NUMBER <= n < _USABLE * min(sizes)]
    if less:
        return Named(card, f"{min(less)}gb", float(min(less)))
    if part:
        return Named(card, "?", 0.0)
    if whole or len(sizes) == 1:
        return Named(card, "", float(min(whole, default=sizes[0])))
    return Named(card, "", float(sizes[0]), sizes)


def _has(sizes: Sequence[int], gib: float) -> bool:
    """Return whether this is one of the sizes, or what a driver calls usable of it."""
    return any(_USABLE * size <= gib <= size for size in sizes)


def _card(spelled: str) -> tuple[str, tuple[int, ...], str]:
    """Return the card of a name, the sizes of its memory, and the rest of the name.

    The longest name that fits counts, and of equal ones the first in the table.
    """
    text = _VENDORS.sub("_", spelled)
    text = re.sub(r"\.(?!\d*g)", "_", text)
    found = [
        (match, card, sizes)
        for card, pattern, sizes in _PATTERNS
        if (match := pattern.search(text)) is not None
    ]
    if not found:
        return "", (), text
    match, card, sizes = max(found, key=lambda each: len(each[0][0]))
    return card, sizes, f"{text[: match.start()]}_{text[match.end() :]}"


ROCM = Path("/dev/kfd")
"""The device that the driver of AMD's GPUs makes on a node with such GPUs."""


def name_once(environ: MutableMapping[str, str], rocm: Path = ROCM) -> None:
    """Leave one variable of those that choose a job's AMD GPUs: that of the lower layer.

    Slurm may set CUDA_VISIBLE_DEVICES with the same numbers as ROCR_VISIBLE_DEVICES. HIP counts
    among those GPUs that ROCR has left: where both are "4,5" it finds none.
    https://rocm.docs.amd.com/en/latest/conceptual/gpu-isolation.html
    """
    if environ.get("ROCR_VISIBLE_DEVICES") and rocm.exists():
        for name in ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL"):
            environ.pop(name, None)
