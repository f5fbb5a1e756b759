"""The degrees of parallelism in which GPUs can share a model, as vLLM 0.32 allows them.

- Tensor parallel: the GPUs of a node share each layer. Their number divides the attention heads,
  the widths and the padded vocabulary; it divides the heads of keys and values, or is a multiple
  of them (`ModelConfig.verify_with_parallel_config`, `divide` in model_executor/layers).
- Expert parallel: the same GPUs hold whole experts in place of a part of each. Then the width of an
  expert need not divide; their number may be any (`determine_expert_map`).
- Pipeline parallel: groups of GPUs hold consecutive layers, any number of each (`get_pp_indices`).
"""

from typing import NamedTuple

from coordinate_eval.records import Checkpoint


class Degrees(NamedTuple):
    """How the GPUs of one engine share a model. The engine has `tensor * pipeline` GPUs."""

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


def _of(checkpoint: Checkpoint, tensor: int, pipeline: int) -> list[Degrees]:
    """Return the degrees with these two: none, one, or two of a mixture of experts."""
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


def shared_by(checkpoint: Checkpoint) -> str:
    """Return words about the numbers that a tensor-parallel degree has to divide."""
    heads = f"{checkpoint.attention_heads} attention heads"
    return " and ".join(
        [heads, *(f"{number:,} ({name})" for name, number in checkpoint.splits.items())]
    )
