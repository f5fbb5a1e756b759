"""The degrees of parallelism in which GPUs can share a model, as vLLM 0.32 allows them.

- Tensor parallel: the GPUs of a node share each layer. Their number divides the attention heads,
  the widths and the padded vocabulary; it divides the heads of keys and values, or is a multiple
  of them (`ModelConfig.verify_with_parallel_config`, `divide` in model_executor/layers).
- Expert parallel: the same GPUs hold whole experts in place of a part of each. Then the width of an
  expert need not divide; their number may be any (`determine_expert_map`).
- Pipeline parallel: groups of GPUs hold consecutive layers, any number of each (`get_pp_indices`).
"""

from typing import Any, Final, NamedTuple

from coordinate_eval.errors import UserError
from coordinate_eval.priors import gpus
from coordinate_eval.records import Checkpoint, EngineSettings


class Degrees(NamedTuple):
    """The division of a model among the `tensor * pipeline` GPUs of one engine."""

    tensor: int
    """GPUs of one node that share each layer."""
    pipeline: int = 1
    """Groups of `tensor` GPUs, each with consecutive layers. No group extends over two nodes."""
    expert: int = 1
    """`tensor` if each of these GPUs holds whole experts, 1 if each holds a part of every one."""


def allowed(checkpoint: Checkpoint, gpus_per_node: int, nodes: int = 1) -> list[Degrees]:
    """Return the degrees in which up to `nodes` nodes can share a model, fewest GPUs first.

    Whether the model fits into the memory of so many GPUs is not looked at.
    """
    return sorted(
        (
            degrees
            for tensor in range(1, gpus_per_node + 1)
            for pipeline in range(1, min(checkpoint.stages, gpus_per_node // tensor * nodes) + 1)
            for degrees in _of(checkpoint, tensor, pipeline)
        ),
        key=lambda each: (each.tensor * each.pipeline, each.pipeline, each.expert),
    )


_LEAST_CAPABILITY: Final = {
    "gptq": 60, "inc": 60, "auto-round": 60, "compressed-tensors": 70, "moe_wna16": 70,
    "quark": 70, "awq": 75, "fp8": 75, "torchao": 75, "humming": 75, "modelopt_fp4": 75,
    "experts_int8": 80, "fbgemm_fp8": 80, "modelopt": 80, "modelopt_mxfp8": 80, "mxfp8": 80,
    "mxfp4": 80, "gpt_oss_mxfp4": 80, "fp_quant": 100,
}  # fmt: skip
"""`get_min_capability` of each method in vllm/model_executor/layers/quantization."""


def check_gpu(checkpoint: Checkpoint, engine: EngineSettings, gpu_type: str) -> None:
    """Check that vLLM computes with the checkpoint's quantized weights on GPUs of a type."""
    least = _LEAST_CAPABILITY.get(checkpoint.quantization, 0)
    has = gpus.lookup(gpu_type).capability
    if engine.name == "vllm" and 0 < has < least:
        raise UserError(
            f"checkpoint {checkpoint.path} has {checkpoint.quantization} weights, for which vLLM "
            f"wants GPUs of compute capability {least / 10:g} or more, and {gpu_type} has "
            f"{has / 10:g}: choose other GPUs with --gpu-type, or save the model in 16 bits"
        )


def check_tensor(checkpoint: Checkpoint, engine: EngineSettings, tensor: int) -> None:
    """Check that vLLM shares the layers of a model among so many GPUs."""
    if engine.name == "vllm" and tensor > 1 and not _of(checkpoint, tensor, pipeline=1):
        raise UserError(
            f"[trial] tensor_parallel is {tensor}, and so many GPUs cannot share "
            f"{shared_by(checkpoint)}: leave it out, or set another number"
        )


def tensor_degrees(checkpoint: Checkpoint, gpus_per_node: int) -> list[int]:
    """Return the numbers of a node's GPUs that can share a model without a pipeline."""
    return sorted(
        {each.tensor for each in allowed(checkpoint, gpus_per_node) if each.pipeline == 1}
    )


def _of(checkpoint: Checkpoint, tensor: int, pipeline: int) -> list[Degrees]:
    """Return the ways to use these two degrees: none, one, or two for a mixture of experts."""
    kv_heads = checkpoint.kv_heads or tensor
    if kv_heads % tensor and tensor % kv_heads:
        return []
    if any(n % tensor for n in (checkpoint.attention_heads, *checkpoint.splits.values())):
        return []
    found = [] if whole_experts(checkpoint, tensor) else [Degrees(tensor, pipeline)]
    if checkpoint.experts and tensor > 1:
        found.append(Degrees(tensor, pipeline, expert=tensor))
    return found


def whole_experts(checkpoint: Checkpoint, tensor: int) -> bool:
    """Return whether experts have to stay whole on so many GPUs: their parts would not be equal."""
    return tensor > 1 and any(number % tensor for number in checkpoint.expert_splits.values())


def engine_args(checkpoint: Checkpoint, engine: str, tensor: int) -> dict[str, Any]:
    """Return the engine arguments with which so many GPUs share the experts of a model."""
    whole = engine == "vllm" and whole_experts(checkpoint, tensor)
    return {"enable_expert_parallel": True} if whole else {}


def shared_by(checkpoint: Checkpoint) -> str:
    """Return words about the numbers that a tensor-parallel degree has to divide."""
    heads = f"{checkpoint.attention_heads} attention heads"
    if checkpoint.kv_heads > 1:
        heads += f" ({checkpoint.kv_heads} of keys and values)"
    return " and ".join(
        [heads, *(f"{number:,} ({name})" for name, number in checkpoint.splits.items())]
    )
