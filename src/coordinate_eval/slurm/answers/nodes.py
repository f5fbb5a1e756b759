"""Parse Slurm's list of nodes into nodes that can take a trial, and busy ones.

Reads `sinfo --json` of 22.05, which has one entry per node, and `scontrol show nodes --json` of
later versions. Nothing here runs a command.
"""

import contextlib
import math
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from coordinate_eval._format import brief
from coordinate_eval._gpus import memory_gib
from coordinate_eval.clusters.protocol import Busy, Node
from coordinate_eval.errors import ClusterError
from coordinate_eval.slurm.answers.gres import gpus as gpus_of
from coordinate_eval.slurm.answers.partitions import MemoryLimits
from coordinate_eval.slurm.answers.reservations import name_of_user
from coordinate_eval.slurm.answers.states import NodeState, Takes, hindrance, read_states

_MIB_PER_GIB = 1024
_UNKNOWN_MEMORY_GIB = 1e6
"""Stands for the memory of a node where jobs ask for none and Slurm does not know it."""

_NO_USERS = {"", "N/A", "4294967294", "4294967295"}
"""What stands where a user would: Slurm's numbers for none and for all among them."""


@dataclass(frozen=True)
class Wanted:
    """The wanted nodes: those of `partitions` with the features of `constraint`.

    `whole` means that the partition allocates whole nodes, so that a node is busy if one core is.
    Without `memory` jobs ask for none, and with `wake` a powered-down node is free. Nodes in
    `excluded` take no job, nor do those outside of `reserved`, the nodes of a reservation. GPUs
    without a type are of `gpu_type`; those whose type does not tell it have `gpu_memory_gib`. Jobs
    of the partition have the limits `jobs_memory`, and all together `most_cpus` of a node.
    """

    partitions: frozenset[str]
    constraint: str = ""
    whole: bool = False
    gpu_type: str = ""
    gpu_memory_gib: float = 0.0
    memory: bool = True
    wake: bool = False
    excluded: frozenset[str] = frozenset()
    reserved: frozenset[str] | None = None
    jobs_memory: MemoryLimits = field(default_factory=MemoryLimits)
    most_cpus: float = math.inf


def read_nodes(answer: dict[str, Any], wanted: Wanted) -> tuple[list[Node], list[Busy]]:
    """Return the nodes on which a trial can start, and all others with GPUs with the reason.

    A node is listed once for each GPU type of which it has free GPUs; those that Slurm has to power
    up come last.

    Raises:
        ClusterError: the answer has another form than Slurm's.
    """
    nodes: list[Node] = []
    asleep: list[Node] = []
    busy: list[Busy] = []
    with _known_form(answer):
        for entry in answer["nodes"]:
            all_types = [
                Node(
                    name=entry["name"],
                    gpus=gpus,
                    free_gpus=free,
                    gpu_type=kind or wanted.gpu_type,
                    gpu_memory_gib=memory_gib(kind or wanted.gpu_type, wanted.gpu_memory_gib),
                    cpus=_free_cpus(entry, wanted),
                    memory_gib=_free_memory_gib(entry, wanted),
                    cpus_per_core=_cpus_per_core(entry),
                    gib_per_cpu=wanted.jobs_memory.most_per_cpu / _MIB_PER_GIB * wanted.memory,
                )
                for kind, gpus, free in gpus_of(entry["gres"], entry["gres_used"])
            ]
            if not all_types:
                continue
            excluded = _exclusion(entry, wanted)
            states = _states(entry)
            why = excluded or _hindrance(entry, states, wanted)
            usable = [] if why else [node for node in all_types if not _exhausted(node)]
            sleeps = any(state.takes is Takes.ASLEEP for state in states)
            (asleep if sleeps else nodes).extend(usable)
            if not usable:
                most = max(all_types, key=lambda node: (node.free_gpus, node.gpus))
                why = why or _exhausted(most)
                known = most.model_dump(include={"name", "gpus", "gpu_type", "gpu_memory_gib"})
                away = any(state.takes is Takes.GONE for state in states)
                busy.append(Busy(why=why, excluded=bool(excluded), away=away, **known))
    return [*nodes, *asleep], busy


def read_places(answer: dict[str, Any]) -> dict[str, frozenset[str]]:
    """Return the partitions of each node.

    Raises:
        ClusterError: the answer has another form than Slurm's.
    """
    with _known_form(answer):
        return {
            entry["name"]: frozenset(entry.get("partitions") or ()) for entry in answer["nodes"]
        }


@contextlib.contextmanager
def _known_form(answer: dict[str, Any]) -> Iterator[None]:
    """Turn what is raised by an answer of another form than Slurm's into `ClusterError`."""
    try:
        yield
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
        raise ClusterError(
            f"Slurm's list of nodes has an unknown form ({brief(repr(error))}); "
            f"it begins {str(answer)[:200]}"
        ) from error


def _cpus_per_core(entry: dict[str, Any]) -> int:
    """Return the CPUs of a core: 1 where Slurm counts cores as CPUs, or tells nothing of cores."""
    threads = _number(entry.get("threads")) or 1
    cores = _number(entry.get("sockets")) * _number(entry.get("cores"))
    return threads if _number(entry["cpus"]) == cores * threads else 1


def _free_cpus(entry: dict[str, Any], wanted: Wanted) -> int:
    # Newer versions report the CPUs that jobs can get separately, and some those that they cannot.
    of_system = _number(entry.get("specialized_cores")) * (_number(entry.get("threads")) or 1)
    cpus = _number(entry.get("effective_cpus")) or _number(entry["cpus"]) - of_system
    free = min(cpus - _number(entry["alloc_cpus"]), wanted.most_cpus)
    if not wanted.memory and _knows_memory(entry) and wanted.jobs_memory.default_per_cpu:
        # Each CPU comes with so much memory.
        mib = _free_memory_gib(entry, wanted) * _MIB_PER_GIB
        free = min(free, mib // wanted.jobs_memory.default_per_cpu)
    unit = _cpus_per_core(entry)
    return max(0, int(free) // unit * unit)


def _free_memory_gib(entry: dict[str, Any], wanted: Wanted) -> float:
    if not wanted.memory and not _knows_memory(entry):
        return _UNKNOWN_MEMORY_GIB
    memory = _number(entry["real_memory"]) - _number(entry.get("specialized_memory"))
    return max(0, memory - _number(entry["alloc_memory"])) / _MIB_PER_GIB


def _knows_memory(entry: dict[str, Any]) -> bool:
    """Return whether Slurm knows the memory of a node: by default it has one MiB."""
    return _number(entry["real_memory"]) > 1


def _number(value: object) -> int:
    """Return a number in the notation of any version: plain, or {set, infinite, number}."""
    if isinstance(value, dict):
        value = value["number"] if value.get("set") else 0
    return int(value) if isinstance(value, int | float | str) else 0


def _exclusion(entry: dict[str, Any], wanted: Wanted) -> str:
    """Return the reason for which this node never takes a job of ours, or '' if it may."""
    if not wanted.partitions.intersection(entry["partitions"]):
        return f"not in partition {','.join(sorted(wanted.partitions))}"
    if entry["name"] in wanted.excluded:
        return "in [slurm] exclude"
    if wanted.reserved is not None and entry["name"] not in wanted.reserved:
        return "not in [slurm] reservation"
    if wanted.memory and not _knows_memory(entry):
        return "Slurm does not know its memory (RealMemory); set [slurm] memory = false"
    if not _has_features(_words(entry.get("active_features") or entry.get("features")), wanted):
        return f"without the features {wanted.constraint}"
    return ""


def _hindrance(entry: dict[str, Any], states: Sequence[NodeState], wanted: Wanted) -> str:
    """Return the reason for which this node takes no job of ours now, or '' if it does."""
    worst = hindrance(states, wake=wanted.wake, reserved=wanted.reserved is not None)
    if worst is not None:
        reason = str(entry.get("reason") or "") if worst.reason else ""
        return f"{worst.words}: {reason}" if reason else worst.words
    if owner := _other_owner(entry):
        return f"in use by {owner} alone (ExclusiveUser)"
    if wanted.whole and _number(entry["alloc_cpus"]):
        return "in use, and its partition allocates whole nodes"
    return ""


def _other_owner(entry: dict[str, Any]) -> str:
    """Return the other user of whom alone this node takes jobs now, or '' if there is none.

    By version and answer it is a name, a number, or both: `name(number)`.
    """
    owner = entry.get("owner")
    if isinstance(owner, dict):
        owner = owner["number"] if owner.get("set") and not owner.get("infinite") else ""
    text = "" if owner is None else str(owner)
    name, _, number = text.removesuffix(")").partition("(")
    nobody_else = _NO_USERS | {name_of_user(), str(os.getuid())}
    return "" if nobody_else & {name, number or name} else name


def _states(entry: dict[str, Any]) -> list[NodeState]:
    return read_states([*_words(entry["state"]), *_words(entry.get("state_flags"))])


def _exhausted(node: Node) -> str:
    """Return the resource that is used up on a node that takes jobs, or '' if none is."""
    if node.free_gpus <= 0:
        return f"{node.gpus} of {node.gpus} GPUs in use"
    if node.cpus <= 0:
        return f"{node.free_gpus} of {node.gpus} GPUs free, but all CPUs in use"
    if node.memory_gib <= 0:
        return f"{node.free_gpus} of {node.gpus} GPUs free, but all memory in use"
    return ""


def _words(value: object) -> list[str]:
    """Return states or features in the notation of any version: `a`, `a,b`, or a list."""
    if isinstance(value, str):
        value = value.split(",")
    words = [str(word).strip() for word in value] if isinstance(value, list) else []
    return [word for word in words if word]


def _has_features(features: list[str], wanted: Wanted) -> bool:
    """Return whether a constraint `a`, `a&b` or `a|b` holds. Slurm decides about all others."""
    expression = wanted.constraint.replace(" ", "")
    for operator, holds in (("&", all), ("|", any)):
        parts = expression.split(operator)
        if all(re.fullmatch(r"[\w.:=+/-]+", part) for part in parts):
            return holds(part in features for part in parts)
    return True
