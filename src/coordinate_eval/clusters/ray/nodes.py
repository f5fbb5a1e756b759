"""Ray's nodes as nodes of a cluster. Pure functions."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from coordinate_eval import _gpus
from coordinate_eval.clusters.protocol import Busy, Node
from coordinate_eval.clusters.ray.on_node import names_of

TYPE = "accelerator_type:"
"""The beginning of the resource that says which GPUs a node has: `accelerator_type:H100`."""

GIB = 2**30

NEW = "new nodes"
"""Stands in the list of nodes for those that an autoscaler may add."""


def read_nodes(
    nodes: Sequence[Mapping[str, Any]],
    available: Mapping[str, Mapping[str, float]],
    problems: Mapping[str, str],
    memory_gib: float = 0.0,
) -> tuple[list[Node], list[Busy]]:
    """Return the nodes with a free GPU, and all others that have GPUs with the reason.

    Args:
        nodes: the answer of `ray.nodes()`.
        available: resources that are free now, by Ray's id of a node.
        problems: why no job can work on a node, by its id.
        memory_gib: of a GPU whose type does not tell it.
    """
    names = names_of(nodes)
    free: list[Node] = []
    busy: list[Busy] = []
    for node in sorted(nodes, key=lambda node: names.get(node["NodeID"], "")):
        found = node["NodeID"]
        has, left = node["Resources"], available.get(found, {})
        gpus = int(has.get("GPU", 0))
        if found not in names or not gpus:
            continue
        kind = gpu_type(has)
        what: dict[str, Any] = {
            "name": names[found],
            "gpus": gpus,
            "gpu_type": kind,
            "gpu_memory_gib": _gpus.memory_gib(kind, memory_gib),
        }
        if found in problems:
            busy.append(Busy(**what, why=problems[found], excluded=True))
        elif left.get("GPU", 0) < 1:
            busy.append(Busy(**what, why=f"{gpus} of {gpus} GPUs in use"))
        else:
            free.append(
                Node(
                    **what,
                    free_gpus=int(left["GPU"]),
                    cpus=int(left.get("CPU", 0)),
                    memory_gib=left.get("memory", 0) / GIB,
                )
            )
    return free, busy


def to_come(wanted: str, known: Iterable[str], memory_gib: float) -> Busy:
    """Return what stands for the nodes that an autoscaler may add to a cluster without GPUs.

    Nobody but the user can know that there is an autoscaler, and which GPUs it has.

    Args:
        wanted: the GPU type that the user asks for, empty for any.
        known: Ray's own names of types: in them case counts.
        memory_gib: of a GPU whose type does not tell it; 0 if that is not known.
    """
    if not wanted:
        why = (
            "if Ray's autoscaler adds some with GPUs, name their --gpu-type, and wait with --queue"
        )
        return Busy(name=NEW, why=why, excluded=True)
    kind = next((each for each in known if each.lower() == wanted.lower()), wanted)
    why = f"not there yet; Ray's autoscaler may add some with {kind}"
    memory = _gpus.memory_gib(kind, memory_gib)
    return Busy(name=NEW, why=why, gpu_type=kind, gpu_memory_gib=memory)


def gpu_type(resources: Mapping[str, float]) -> str:
    """Return the type of a node's GPUs, empty if Ray does not know it."""
    return min((name[len(TYPE) :] for name in resources if name.startswith(TYPE)), default="")
