"""Describe each engine for planning, submitting and reporting. Nothing here imports an engine.

How an engine works is in its module in `evaluators/engines/`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class EngineKind:
    """An engine, as others need to know it."""

    packages: tuple[str, ...] = ()
    """Packages that it imports; the last one gives its version."""

    needs: tuple[str, ...] = ()
    """Modules that an image must have for it, with their oldest versions as in `pyproject.toml`."""

    sequences_argument: str = ""
    """Its argument for the number of sequences that it runs at once, empty if it has none."""

    sequences: int = 1
    """Sequences that it runs at once by default."""

    sequences_on_large_gpus: int = 1
    """The same on GPUs with much memory; see `priors/conditions.py`."""

    shares_prefixes: bool = False
    """It computes only once what neighbouring prompts share."""

    model_class: Literal["hf", "vllm"] = "hf"
    """The model class of the harness that cuts prompts as this engine's are cut."""

    dtype_argument: str = ""
    """Its argument for the type of its numbers, if it has 16 bits in place of 32 without that."""

    cache_root: str = ""
    """Variable with the folder of what it compiles, which a trial sets and no caller's counts."""

    makes_up: bool = False
    """Its responses are not a model's."""

    serves: bool = False
    """It has a server, in which a checkpoint can judge."""

    over_nodes: bool = False
    """One engine can have the GPUs of several nodes."""


ENGINES: Mapping[str, EngineKind] = {
    "vllm": EngineKind(
        packages=("vllm",),
        needs=("vllm>=0.19",),
        sequences_argument="max_num_seqs",
        # `EngineArgs.get_batch_defaults` in vllm/engine/arg_utils.py, version 0.32
        sequences=256,
        sequences_on_large_gpus=1024,
        shares_prefixes=True,
        model_class="vllm",
        # `_resolve_auto_dtype` in vllm/config/model.py
        dtype_argument="dtype",
        cache_root="VLLM_CACHE_ROOT",
        serves=True,
        over_nodes=True,
    ),
    "transformers": EngineKind(
        packages=("accelerate", "transformers"),
        needs=("torch>=2.6", "transformers>=4.56", "accelerate>=1.6"),
        sequences_argument="batch_size",
        sequences=8,
        sequences_on_large_gpus=8,
    ),
    "server": EngineKind(
        needs=("httpx",),
        sequences_argument="concurrency",
        sequences=256,
        sequences_on_large_gpus=256,
        shares_prefixes=True,
        model_class="vllm",
    ),
    "simulated": EngineKind(makes_up=True, serves=True, over_nodes=True),
}
"""All engines, by the name in `EngineSettings`."""

CACHE_ROOTS = frozenset(kind.cache_root for kind in ENGINES.values() if kind.cache_root)
"""The variables `cache_root` of all engines."""


def kind_of(name: str) -> EngineKind:
    """Return what an engine is. One of another version, whose name is unknown, has the defaults."""
    return ENGINES.get(name, EngineKind())
