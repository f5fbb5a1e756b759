"""Adapters that vLLM serves by its own LoRA, in place of merging: which, and what it reads of them.

vLLM 0.32 (`vllm/lora/`) adds products of low rank to linear layers. Several scales are put into the
factors, since older versions know only one. Whatever else an adapter has is refused: vLLM would
refuse it when GPUs are there, or leave it out.
"""

from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any

from coordinate_eval._format import brief
from coordinate_eval.coordinator.inputs.checkpoints import reading, remote
from coordinate_eval.coordinator.inputs.checkpoints.formats.layouts import Layout, Tensor
from coordinate_eval.coordinator.inputs.checkpoints.formats.sources import Source
from coordinate_eval.coordinator.inputs.checkpoints.mixed.adapter import (
    AdapterConfig,
    Factors,
    Found,
)
from coordinate_eval.coordinator.inputs.checkpoints.model.fit import is_embedding, is_output
from coordinate_eval.errors import UserError
from coordinate_eval.evaluators.engines import vllm_lora
from coordinate_eval.records import Checkpoint, CheckpointFormat

if TYPE_CHECKING:
    import torch

_OTHERWISE = "leave engine argument enable_lora out"


def check(checkpoint: Checkpoint, args: Mapping[str, Any]) -> None:
    """Check that vLLM can serve a checkpoint as an adapter of its base.

    Raises:
        UserError: It is no adapter, or has more than vLLM's LoRA; or `args` of the engine say what
            the adapter tells.
    """
    if checkpoint.format is not CheckpointFormat.ADAPTER:
        raise UserError(f"{checkpoint.path} is no adapter: {_OTHERWISE}")
    for name in vllm_lora.TOLD:
        if name in args:
            raise UserError(
                f"engine argument {name} cannot be given with enable_lora: the adapter tells it"
            )
    if args.get("dtype") in ("float", "float32"):  # `lora_shrink_op.py` takes no others
        raise UserError(
            "vLLM's LoRA computes in 16 bits on GPUs: leave engine argument dtype out, or "
            "enable_lora, and the adapter is merged into its base"
        )
    Served(checkpoint)


class Served(Source):
    """The tensors of an adapter as vLLM reads them, with a config of their own."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        """Look at names and shapes. Those of the base have been compared.

        Raises:
            UserError: The adapter has more than vLLM's LoRA.
        """
        self._where = checkpoint.path
        weights = [remote.located(name) for name in checkpoint.weights]
        self._source = reading.stored(checkpoint.format, weights, [])
        config = AdapterConfig(weights[1])
        found = Found(self._source.tensors, config.file.parent)
        if other := next(iter((*found.whole.values(), *found.rows.values())), None):
            raise self._refuse(f"has more than factors of low rank, such as {brief(other)}")
        self._names: dict[str, str] = {}
        scales: dict[str, float] = {}
        rank = 0
        for module, levels in found.products.items():
            self._check(module, levels, config)
            (factors,) = levels.values()
            for key in "AB":
                self._names[f"base_model.model.{module}.lora_{key}.weight"] = factors[key]
            own = self._source.tensors[factors["A"]].shape[0]
            scales[f"base_model.model.{module}.lora_B.weight"] = config.scale(module, own)
            rank = max(rank, own)
        several = len(set(scales.values())) > 1
        self._scales = scales if several else {}
        scale = 1.0 if several else next(iter(scales.values()))
        if rank > vllm_lora.RANKS[-1]:
            raise self._refuse(f"has rank {rank}, and vLLM takes {vllm_lora.RANKS[-1]} at most")
        modules = sorted({module.rpartition(".")[2] for module in found.products})
        self.config = {
            "peft_type": "LORA",
            "r": rank,
            "lora_alpha": scale * rank,
            "target_modules": modules,
        }

    @cached_property
    def tensors(self) -> Mapping[str, Tensor]:
        """Return the type and the shape of each tensor by its name."""
        found = {name: self._source.tensors[stored] for name, stored in self._names.items()}
        return found | {name: Tensor("float32", found[name].shape) for name in self._scales}

    def read(self, name: str) -> "torch.Tensor":
        """Return a tensor."""
        tensor = self._source.read(self._names[name])
        return tensor.float() * self._scales[name] if name in self._scales else tensor

    def layout(self, name: str) -> Layout | None:
        """Return where the elements of a tensor lie."""
        return None if name in self._scales else self._source.layout(self._names[name])

    def _check(self, module: str, levels: Mapping[int, Factors], config: AdapterConfig) -> None:
        factors = [key for each in levels.values() for key in each]
        embeds = any(each.embedding for each in levels.values())
        weight = f"{module}.weight"
        if "magnitude" in factors:
            raise self._refuse("is DoRA")
        if "bias" in factors:
            raise self._refuse(f"has a bias of {brief(module)}")
        if embeds or is_embedding(weight) or is_output(weight):
            raise self._refuse(f"adapts {brief(module)}, an embedding or the output layer")
        if module.endswith(".kv_b_proj"):  # its weight is taken apart when the base is loaded
            raise self._refuse(f"adapts {brief(module)}, which latent attention absorbs")
        if len(levels) > 1 or config.parameters(module) or "experts" in module.split("."):
            raise self._refuse(f"adapts experts, or parameters by their names, of {brief(module)}")

    def _refuse(self, what: str) -> UserError:
        return UserError(
            f"adapter {self._where} {what}, which vLLM does not serve: {_OTHERWISE}, and the "
            "adapter is merged into its base"
        )
