"""The degrees of an engine: GPUs that share each layer, and nodes that share the layers.

More GPUs for each engine leave more of their memory to keys and values, so that more sequences run
at once, and each step's reading of the weights serves more of them. But fewer engines run on a
node, and its GPUs exchange activations. The roofline weighs these (`priors/roofline.py`).

A model that fits on no node goes to several: each is a stage of a pipeline, with equally many GPUs.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from coordinate_eval._format import plural
from coordinate_eval._gpus import memory_gib
from coordinate_eval.coordinator.inputs.settings import Settings
from coordinate_eval.coordinator.planning.places.asked_nodes import most_nodes
from coordinate_eval.coordinator.planning.places.degrees import (
    Degrees,
    allowed,
    check_tensor,
    shared_by,
    tensor_degrees,
)
from coordinate_eval.errors import UserError
from coordinate_eval.priors import gpus, roofline
from coordinate_eval.priors.conditions import model_of, sequences
from coordinate_eval.priors.gpus import Gpu
from coordinate_eval.priors.roofline import MEMORY_FRACTION, Work, sequences_with_room
from coordinate_eval.records import Checkpoint

SAME = 1.05
"""Multiple of the shortest predicted time up to which fewer GPUs for each engine are as good: there
are more engines then, and predictions are no better."""

LEAST_GPU_MEMORY_GIB = 16.0
"""Memory in GiB that a GPU has whose memory is not known. A model that needs more waits for the
setting that tells it."""


@dataclass(frozen=True)
class Demand:
    """The run that needs nodes."""

    checkpoint: Checkpoint
    settings: Settings
    max_length: int
    """The context of the run, in tokens."""
    works: Sequence[Work]
    """The expected work of its datasets."""
    over_nodes: bool = False
    """One engine may have several nodes."""


class TooLarge(UserError):
    """The model fits on no node."""


def degrees_of(demand: Demand, kind: tuple[str, float], gpus_of_nodes: Sequence[int]) -> Degrees:
    """Return the degrees that are set, else the best on nodes with so many GPUs of this kind.

    A kind is a type and its memory in GiB, 0 if the cluster tells none.

    Raises:
        TooLarge: The model fits on no node, nor on as many as one engine may have.
        UserError: The settings say what cannot be.
    """
    checkpoint, settings, gpus_per_node = demand.checkpoint, demand.settings, max(gpus_of_nodes)
    gpu_type, gib = kind
    given = settings.trial.tensor_parallel
    if given is not None and given > 1 and gpus.is_slice(gpu_type):
        raise UserError(
            f"[trial] tensor_parallel is {given}, but slices of a GPU ({gpu_type}) cannot "
            "share a model: choose whole GPUs with --gpu-type"
        )
    if given is not None:
        check_tensor(checkpoint, settings.engine, given)
    gib = gib or memory_gib(gpu_type)
    known = gib > 0 or gpus.name(gpu_type) == "cpu"  # whose memory is its host's
    if gpus.is_slice(gpu_type) or not known:
        gpus_per_node = 1
    gpu = gpus.lookup(gpu_type)._replace(memory=(gib if known else LEAST_GPU_MEMORY_GIB) * 2**30)
    most = sequences(settings.engine, gpu_type)
    if given is not None and (not known or _seconds(demand, gpu, most, [Degrees(given)], given)):
        return Degrees(given)
    try:
        if given is None:
            return Degrees(tensor_parallel(demand, gpu, most, gpus_per_node))
        raise TooLarge(f"{given} GPUs of a node are too few")
    except TooLarge as error:
        shared = None
        if demand.over_nodes and known and not gpus.is_slice(gpu_type):
            allowed = most_nodes(settings) or len(gpus_of_nodes)
            nodes = sorted(gpus_of_nodes, reverse=True)[:allowed]
            shared = _over_nodes(demand, gpu, most, nodes)
        if shared is not None and settings.engine.serves_adapters:
            raise UserError(
                f"one engine of this model takes {shared.pipeline} nodes, and vLLM serves adapters "
                "on one alone here: leave engine argument enable_lora out, and the adapter is "
                "merged into its base"
            ) from error
        if shared is not None or given is not None:
            return shared or Degrees(given or 1)
        if known:
            raise TooLarge(f"{error}{_nor_over_nodes(demand, gpus_of_nodes)}") from error
        named = f"Their type, {gpu_type}, does not tell it" if gpu_type else "They have no type"
        raise UserError(
            f"the memory of the GPUs is not known, and this model needs more than "
            f"{LEAST_GPU_MEMORY_GIB:g} GiB. {named}: set gpu_memory_gib, in "
            "config.toml or, for each node, in a cluster file"
        ) from error


def _nor_over_nodes(demand: Demand, gpus_of_nodes: Sequence[int]) -> str:
    """Return why several nodes do not share a model that is too large for one."""
    if not demand.over_nodes:
        return ". Only vLLM on Slurm shares a model between nodes, and no judge does"
    nodes = most_nodes(demand.settings)
    if nodes is not None and nodes < len(gpus_of_nodes):
        return f". The settings allow {plural(nodes, 'node')}, which is too few to share it"
    counts = sorted(set(gpus_of_nodes))
    unequal = f" with unequal numbers of GPUs ({', '.join(map(str, counts))})" * (len(counts) > 1)
    return (
        f". Nor can {plural(len(gpus_of_nodes), 'node')}{unequal} share it: an engine takes "
        "equally many GPUs of each node, and each node has consecutive layers"
    )


def tensor_parallel(demand: Demand, gpu: Gpu, sequences: int, gpus_per_node: int) -> int:
    """Return the fewest GPUs of one engine with which a node is about as fast as it can be.

    If the memory of the GPU is unknown, 0, return 1.

    Args:
        sequences: Most sequences that an engine runs at once.

    Raises:
        TooLarge: No allowed number of a node's GPUs is enough.
    """
    if gpu.memory <= 0:
        return 1
    degrees = [Degrees(each) for each in tensor_degrees(demand.checkpoint, gpus_per_node)]
    best = _fewest(_seconds(demand, gpu, sequences, degrees, gpus_per_node))
    if best is None:
        raise TooLarge(_too_large(demand, gpu, gpus_per_node, degrees[-1]))
    return best.tensor


def _over_nodes(
    demand: Demand, gpu: Gpu, sequences: int, gpus_of_nodes: Sequence[int]
) -> Degrees | None:
    """Return how nodes share a model that is too large for one, None if they cannot.

    Each node has a stage of a pipeline, on so many of its GPUs as the settings say, if they do.
    """
    given = demand.settings.trial.tensor_parallel
    most = max(gpus_of_nodes, default=0)
    degrees = [
        each
        for each in allowed(demand.checkpoint, most, len(gpus_of_nodes))
        if 1 < each.pipeline <= sum(gpus >= each.tensor for gpus in gpus_of_nodes)
        and given in (None, each.tensor)
    ]
    return _fewest(_seconds(demand, gpu, sequences, degrees, most))


def _seconds(
    demand: Demand, gpu: Gpu, sequences: int, among: Iterable[Degrees], gpus_per_node: int
) -> dict[Degrees, float]:
    """Return the seconds of all works on a node, times the nodes of an engine if it has several.

    Degrees on which the weights and one sequence of the whole context do not fit are left out.
    """
    found = {}
    for degrees in among:
        model = model_of(
            demand.checkpoint, demand.settings.engine, degrees.tensor, None, degrees.pipeline
        )
        if gpu.memory <= 0 or sequences_with_room(model, gpu, demand.max_length) >= 1:
            engines = gpus_per_node // degrees.tensor if degrees.pipeline == 1 else 1
            each = (_part(work, 1 / engines) for work in demand.works)
            seconds = sum(roofline.gpu_seconds(work, model, gpu, sequences) for work in each)
            found[degrees] = degrees.pipeline * seconds
    return found


def _fewest(seconds: Mapping[Degrees, float]) -> Degrees | None:
    """Return the degrees with the fewest nodes and GPUs that take about the shortest time."""
    enough = SAME * min(seconds.values(), default=0.0)
    good = (degrees for degrees, each in seconds.items() if each <= enough)
    return min(good, key=lambda degrees: (degrees.pipeline, degrees.tensor), default=None)


def _part(work: Work, share: float) -> Work:
    """Return what one of several engines has of a dataset's work."""
    counts = ("requests", "prompt_tokens", "output_tokens")
    return work.model_copy(update={name: getattr(work, name) * share for name in counts})


def _too_large(demand: Demand, gpu: Gpu, gpus_per_node: int, most: Degrees) -> str:
    checkpoint = demand.checkpoint
    model = model_of(checkpoint, demand.settings.engine, most.tensor, None)
    kept = model.kv_bytes(demand.max_length) * model.tensor_parallel / model.kv_shares
    needed = (model.bytes + kept) / MEMORY_FRACTION / 2**30
    return (
        f"checkpoint {checkpoint.path} needs {needed:.1f} GiB of GPU memory "
        f"({demand.max_length} tokens of context included); a node has {gpus_per_node} GPUs "
        f"of {gpu.memory / 2**30:g} GiB, of which at most {most.tensor} can "
        f"share {shared_by(checkpoint)}. Choose nodes with larger GPUs, or a shorter "
        "context: leave out datasets with long prompts, or set [trial] max_length, which cuts them"
    )
