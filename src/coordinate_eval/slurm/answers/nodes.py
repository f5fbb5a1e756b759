"""Parse Slurm's list of nodes into nodes that can take a trial, and busy ones.

`scontrol` prints the same text in every version and build, 20.11 to 26.05. Its JSON differs between
versions, is not always built in, and in 22.05 lacks `CoreSpecCount`. Nothing here runs a command.
"""

import contextlib
import math
import os
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from coordinate_eval._format import brief
from coordinate_eval._gpus import memory_gib
from coordinate_eval.clusters.protocol import Busy, Node
from coordinate_eval.errors import ClusterError, ClusterSilent
from coordinate_eval.slurm.answers.partitions import MemoryLimits
from coordinate_eval.slurm.answers.reservations import name_of_user
from coordinate_eval.slurm.answers.states import NodeState, Takes, hindrance, read_states

_PARTS_OF_GPUS = ("shard", "mps")


class _Part(NamedTuple):
    """One part of a list. `details` is what stands in its parentheses."""

    name: str
    kind: str
    amount: int
    details: str


def gpus_of(gres: str | None, gres_used: str | None) -> list[tuple[str, int, int]]:
    """Return each GPU type of a node with the numbers of its installed and its free GPUs.

    A missing type is ''.
    """
    installed: Counter[str] = Counter()
    for part in _parts(gres):
        if part.name == "gpu" and part.amount:
            installed[part.kind] += part.amount
    used = _used(gres_used)
    if len(installed) == 1:
        # A type may be in only one of the two lists. They are the same GPUs nevertheless.
        ((kind, count),) = installed.items()
        return [(kind, count, max(0, count - used.total()))]
    of_any = 0 if "" in installed else used[""]  # nothing tells of which type they are
    return [(kind, count, max(0, count - used[kind] - of_any)) for kind, count in installed.items()]


def _used(gres_used: str | None) -> Counter[str]:
    """Count by type the GPUs that jobs have, whole or in part."""
    parts = list(_parts(gres_used))
    whole = [part for part in parts if part.name == "gpu"]
    counts: Counter[str] = Counter()
    for part in whole:
        counts[part.kind] += part.amount
    counted = {index for part in whole for index in _indices(part.details)}
    shared: defaultdict[str, set[int]] = defaultdict(set)
    for part in parts:
        if part.name in _PARTS_OF_GPUS:
            shared[part.kind] |= _indices(part.details) - counted
            # Later versions tell how much of each GPU is in use: `(0/64,32/64)`.
            counts[part.kind] += len(re.findall(r"\b0*[1-9]\d*/\d", part.details))
    for kind, indices in shared.items():
        counts[kind] += len(indices)
    return counts


def _parts(gres: str | None) -> Iterator[_Part]:
    """Yield the parts of `gpu:h200:8(S:0-1),gpu:a100:2,shard:8`."""
    for text in re.findall(r"(?:[^,(]|\([^)]*\)?)+", gres or ""):
        # Parentheses contain sockets, indices or parts in use, or `(null)` for a missing type.
        name, *fields = re.sub(r"\([^()]*\)", "", text).strip().split(":")
        count = int(fields.pop()) if fields and fields[-1].isdigit() else 1
        yield _Part(name, ":".join(fields), count, text.rpartition("(")[2])


def _indices(details: str) -> set[int]:
    """Return the numbers in `IDX:0-2,7)`; none of `IDX:N/A)` and of anything else."""
    found: set[int] = set()
    if details.startswith("IDX:"):
        for first, last in re.findall(r"(?<![\d-])(\d{1,4})(?:-(\d{1,4}))?(?![\d-])", details):
            found.update(range(int(first), int(last or first) + 1))
    return found


_MIB_PER_GIB = 1024
_UNKNOWN_MEMORY_GIB = 1e6
"""Stands for the memory of a node where jobs ask for none and Slurm does not know it."""

SHOW_NODES = ("scontrol", "--all", "--details", "show", "nodes")
"""Not in the one-line form, in which nothing tells where a text with spaces ends."""

_NODE = re.compile(r"NodeName=[A-Za-z0-9][A-Za-z0-9_.-]*( |$)")
"""First line of a node, whose name becomes a part of file names and of commands."""

_INDENT = " " * 3
_WITHIN_REASON = _INDENT + " " * len("Reason=")
_TEXTS = {"OS", "Comment", "Extra", "Reason"}
"""Fields that fill their lines, with spaces and equals signs of their own. Others are words."""

Fields = Mapping[str, str]
"""Slurm's account of a node, by the names in `scontrol show nodes`."""


@dataclass(frozen=True)
class Wanted:
    """The wanted nodes: those of `partitions` with the features of `constraint`.

    `whole` means that the partition allocates whole nodes, so that a node is busy if one core is.
    Without `memory` jobs ask for none. Nodes in `excluded` take no job, nor do those outside of
    `reserved`, the nodes of a reservation. GPUs without a type are of `gpu_type`; those whose type
    does not tell it have `gpu_memory_gib`. Jobs of the partition have the limits `jobs_memory`, and
    all together `most_cpus` of a node.
    """

    partitions: frozenset[str]
    constraint: str = ""
    whole: bool = False
    gpu_type: str = ""
    gpu_memory_gib: float = 0.0
    memory: bool = True
    excluded: frozenset[str] = frozenset()
    reserved: frozenset[str] | None = None
    jobs_memory: MemoryLimits = field(default_factory=MemoryLimits)
    most_cpus: float = math.inf


def read_fields(text: str) -> list[Fields]:
    """Return the fields of each node in the output of `SHOW_NODES`.

    The first field of a name counts, since texts of administrators come last.

    Raises:
        ClusterSilent: the output is empty.
        ClusterError: it lists no node.
    """
    if not text.strip():
        raise ClusterSilent(f"{' '.join(SHOW_NODES)} printed nothing; try again later")
    records: list[dict[str, str]] = []
    # Not `splitlines`: an administrator's text may have other characters that end a line.
    for line in text.split("\n"):
        if _NODE.match(line):
            records.append({})
        elif not records or not line.startswith(_INDENT):
            continue
        fields, content = records[-1], line.removeprefix(_INDENT)
        name, _, value = content.partition("=")
        if line.startswith(_WITHIN_REASON) and "Reason" in fields:
            fields["Reason"] += "\n" + line.removeprefix(_WITHIN_REASON)
        elif name == "Reason":
            # Slurm adds who gave it, and when.
            fields.setdefault(name, re.sub(r" \[[^\[\]]*@[^\[\]]*\]$", "", value))
        elif name in _TEXTS:
            fields.setdefault(name, value)
        else:
            for word in content.split():
                name, _, value = word.partition("=")
                fields.setdefault(name, "" if value == "(null)" else value)
    if not records:
        raise ClusterError(f"{' '.join(SHOW_NODES)} lists no nodes: {brief(text)}")
    return list(records)


def read_nodes(answer: Sequence[Fields], wanted: Wanted) -> tuple[list[Node], list[Busy]]:
    """Return the nodes on which a trial can start, and all others with GPUs with the reason.

    A node is listed once for each GPU type that it has free GPUs of.

    Raises:
        ClusterError: the answer has another form than Slurm's.
    """
    nodes: list[Node] = []
    busy: list[Busy] = []
    with _known_form(answer):
        for fields in answer:
            all_types = [
                Node(
                    name=fields["NodeName"],
                    gpus=gpus,
                    free_gpus=free,
                    gpu_type=kind or wanted.gpu_type,
                    gpu_memory_gib=memory_gib(kind or wanted.gpu_type, wanted.gpu_memory_gib),
                    cpus=_free_cpus(fields, wanted),
                    memory_gib=_free_memory_gib(fields, wanted),
                    cpus_per_core=_cpus_per_core(fields),
                    gib_per_cpu=wanted.jobs_memory.most_per_cpu / _MIB_PER_GIB * wanted.memory,
                )
                for kind, gpus, free in gpus_of(fields["Gres"], fields.get("GresUsed", ""))
            ]
            if not all_types:
                continue
            excluded = _exclusion(fields, wanted)
            states = read_states([fields["State"]])
            why = excluded or _hindrance(fields, states, wanted)
            usable = [] if why else [node for node in all_types if not _exhausted(node)]
            nodes.extend(usable)
            if not usable:
                most = max(all_types, key=lambda node: (node.free_gpus, node.gpus))
                used_up = _exhausted(most)
                # Free GPUs are promised to waiting jobs: a node without any is in use.
                promised = not excluded and states[0].name == "PLANNED"
                why = used_up if promised and used_up else why or used_up
                known = most.model_dump(include={"name", "gpus", "gpu_type", "gpu_memory_gib"})
                away = any(state.takes is Takes.GONE for state in states)
                busy.append(Busy(why=why, excluded=bool(excluded), away=away, **known))
    return nodes, busy


def read_places(answer: Sequence[Fields]) -> dict[str, frozenset[str]]:
    """Return the partitions of each node.

    Raises:
        ClusterError: the answer has another form than Slurm's.
    """
    with _known_form(answer):
        return {fields["NodeName"]: _partitions(fields) for fields in answer}


@contextlib.contextmanager
def _known_form(answer: Sequence[Fields]) -> Iterator[None]:
    """Turn what is raised by an answer of another form than Slurm's into `ClusterError`."""
    try:
        yield
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
        raise ClusterError(
            f"Slurm's list of nodes has an unknown form ({brief(repr(error))}); "
            f"it begins {str(answer)[:200]}"
        ) from error


def _partitions(fields: Fields) -> frozenset[str]:
    """Return the partitions of a node; a node without any lacks the field."""
    return frozenset(_words(fields.get("Partitions", "")))


def _cpus_per_core(fields: Fields) -> int:
    """Return the CPUs of a core: 1 where Slurm counts cores as CPUs, or tells nothing of cores."""
    threads = _number(fields, "ThreadsPerCore") or 1
    cores = _number(fields, "Sockets") * _number(fields, "CoresPerSocket")
    return threads if int(fields["CPUTot"]) == cores * threads else 1


def _free_cpus(fields: Fields, wanted: Wanted) -> int:
    # Since 21.08 Slurm reports the CPUs that jobs can get.
    of_system = _number(fields, "CoreSpecCount") * (_number(fields, "ThreadsPerCore") or 1)
    cpus = _number(fields, "CPUEfctv") or int(fields["CPUTot"]) - of_system
    free = min(cpus - int(fields["CPUAlloc"]), wanted.most_cpus)
    if not wanted.memory and _knows_memory(fields) and wanted.jobs_memory.default_per_cpu:
        # Each CPU comes with so much memory.
        mib = _free_memory_gib(fields, wanted) * _MIB_PER_GIB
        free = min(free, mib // wanted.jobs_memory.default_per_cpu)
    unit = _cpus_per_core(fields)
    return max(0, int(free) // unit * unit)


def _free_memory_gib(fields: Fields, wanted: Wanted) -> float:
    if not wanted.memory and not _knows_memory(fields):
        return _UNKNOWN_MEMORY_GIB
    memory = int(fields["RealMemory"]) - _number(fields, "MemSpecLimit")
    return max(0, memory - int(fields["AllocMem"])) / _MIB_PER_GIB


def _knows_memory(fields: Fields) -> bool:
    """Return whether Slurm knows the memory of a node: by default it has one MiB."""
    return int(fields["RealMemory"]) > 1


def _number(fields: Fields, name: str) -> int:
    """Return a number that not every version prints, or 0."""
    return int(fields.get(name) or 0)


def _exclusion(fields: Fields, wanted: Wanted) -> str:
    """Return the reason for which this node never takes a job of ours, or '' if it may."""
    if not wanted.partitions & _partitions(fields):
        return f"not in partition {','.join(sorted(wanted.partitions))}"
    if fields["NodeName"] in wanted.excluded:
        return "in --exclude of [slurm] extra_args"
    if wanted.reserved is not None and fields["NodeName"] not in wanted.reserved:
        return "not in [slurm] reservation"
    if wanted.memory and not _knows_memory(fields):
        return "Slurm does not know its memory (RealMemory); set [slurm] memory = false"
    features = _words(fields.get("ActiveFeatures") or fields.get("AvailableFeatures", ""))
    if not _has_features(features, wanted):
        return f"without the features {wanted.constraint}"
    return ""


def _hindrance(fields: Fields, states: Sequence[NodeState], wanted: Wanted) -> str:
    """Return the reason for which this node takes no job of ours now, or '' if it does."""
    worst = hindrance(states, reserved=wanted.reserved is not None)
    if worst is not None:
        reason = fields.get("Reason", "") if worst.reason else ""
        return f"{worst.words}: {reason}" if reason else worst.words
    if owner := _other_owner(fields.get("Owner", "")):
        return f"in use by {owner} alone (ExclusiveUser)"
    if wanted.whole and int(fields["CPUAlloc"]):
        return "in use, and its partition allocates whole nodes"
    return ""


def _other_owner(owner: str) -> str:
    """Return the other user of whom alone this node takes jobs now, or '' if there is none.

    Slurm says `name(number)`, and N/A for nobody.
    """
    name, _, number = owner.removesuffix(")").partition("(")
    nobody_else = {"", "N/A", name_of_user(), str(os.getuid())}
    return "" if nobody_else & {name, number or name} else name


def _exhausted(node: Node) -> str:
    """Return the resource that is used up on a node that takes jobs, or '' if none is."""
    if node.free_gpus <= 0:
        return f"{node.gpus} of {node.gpus} GPUs in use"
    if node.cpus <= 0:
        return f"{node.free_gpus} of {node.gpus} GPUs free, but all CPUs in use"
    if node.memory_gib <= 0:
        return f"{node.free_gpus} of {node.gpus} GPUs free, but all memory in use"
    return ""


def _words(text: str) -> list[str]:
    """Return the words of a list such as `a,b`."""
    return [word for word in text.split(",") if word]


def _has_features(features: list[str], wanted: Wanted) -> bool:
    """Return whether a constraint `a`, `a&b` or `a|b` holds. Slurm decides about all others."""
    expression = wanted.constraint.replace(" ", "")
    for operator, holds in (("&", all), ("|", any)):
        parts = expression.split(operator)
        if all(re.fullmatch(r"[\w.:=+/-]+", part) for part in parts):
            return holds(part in features for part in parts)
    return True
