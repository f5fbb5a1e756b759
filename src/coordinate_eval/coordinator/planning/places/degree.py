"""The tensor-parallel degree: the number of GPUs that share one engine's model.

More GPUs for each engine leave more of their memory to keys and values, so that more sequences run
at once, and each step's reading of the weights serves more of them. But fewer engines run on a
node, and its GPUs exchange activations. The roofline weighs these (`priors/roofline.py`).
"""

from collections.abc import Sequence

from coordinate_eval.coordinator.planning.places.degrees import allowed, shared_by
from coordinate_eval.errors import UserError
from coordinate_eval.priors import roofline
from coordinate_eval.priors.conditions import model_of
from coordinate_eval.priors.gpus import Gpu
from coordinate_eval.priors.roofline import MEMORY_FRACTION, Model, Work, sequences_with_room
from coordinate_eval.records import Checkpoint, EngineSettings

SAME = 1.05
"""Multiple of the shortest predicted time up to which fewer GPUs for each engine are as good: there
are more engines then, and predictions are no better."""


def tensor_parallel(
    checkpoint: Checkpoint,
    engine: EngineSettings,
    gpu: Gpu,
    gpus_per_node: int,
    max_length: int,
    works: Sequence[Work],
    sequences: int,
) -> int:
    """Return the fewest GPUs of one engine with which a node is about as fast as it can be.

    That is the smallest number with which a node is predicted to end these works within `SAME` of
    the shortest time. It is one that `allowed` has, and on which the weights and one sequence of
    `max_length` tokens fit. If the memory of the GPU is unknown, 0, return 1.

    Args:
        checkpoint: The model.
        engine: That which computes with it.
        gpu: The rates and the memory of one GPU.
        gpus_per_node: GPUs of a node.
        max_length: Tokens of context.
        works: The work of each dataset.
        sequences: Most sequences that an engine runs at once.

    Raises:
        UserError: No allowed number of a node's GPUs is enough.
    """
    if gpu.memory <= 0:
        return 1
    candidates = [
        model_of(checkpoint, engine, each.tensor, None)
        for each in allowed(checkpoint, gpus_per_node)
        if each.pipeline == 1
    ]
    fitting = [each for each in candidates if sequences_with_room(each, gpu, max_length) >= 1]
    if not fitting:
        raise _too_large(checkpoint, gpu, gpus_per_node, max_length, candidates[-1])

    def node_seconds(model: Model) -> float:
        share = 1 / (gpus_per_node // model.tensor_parallel)
        each = (_part(work, share) for work in works)
        return sum(roofline.gpu_seconds(work, model, gpu, sequences) for work in each)

    seconds = {model.tensor_parallel: node_seconds(model) for model in fitting}
    enough = SAME * min(seconds.values())
    return min(degree for degree, each in seconds.items() if each <= enough)


def _part(work: Work, share: float) -> Work:
    """Return what one of several engines has of a dataset's work."""
    counts = ("requests", "prompt_tokens", "output_tokens")
    return work.model_copy(update={name: getattr(work, name) * share for name in counts})


def _too_large(
    checkpoint: Checkpoint, gpu: Gpu, gpus_per_node: int, max_length: int, most: Model
) -> UserError:
    kept = most.kv_bytes(max_length) * most.tensor_parallel / most.kv_shares
    needed = (most.bytes + kept) / MEMORY_FRACTION / 2**30
    return UserError(
        f"checkpoint {checkpoint.path} needs {needed:.1f} GiB of GPU memory "
        f"({max_length} tokens of context included); a node has {gpus_per_node} GPUs "
        f"of {gpu.memory / 2**30:g} GiB, of which at most {most.tensor_parallel} can "
        f"share {shared_by(checkpoint)}. Choose nodes with larger GPUs, or a shorter "
        "context: leave out datasets with long prompts, or set [trial] max_length, which cuts them"
    )
