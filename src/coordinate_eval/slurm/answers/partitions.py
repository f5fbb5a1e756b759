"""Partitions, and the cluster's own settings behind them. Nothing here runs a command."""

import math
import re
from dataclasses import dataclass, field

_WHOLE = {("Exclusive", "NODE"), ("Exclusive", "TOPO"), ("ExclusiveTopo", "YES")}
"""Fields of newer versions with which a job has a whole node, or a whole segment of nodes, for
itself. With `Exclusive=USER` the jobs of one user share a node."""


@dataclass(frozen=True)
class MemoryLimits:
    """Limits on the memory of jobs in MiB, 0 for none.

    A job with more than `most_per_cpu` for each of its CPUs gets more CPUs; one with more than
    `most_per_node` never starts. A job that asks for no memory gets `default_per_cpu` for each CPU.
    """

    most_per_cpu: int = 0
    most_per_node: int = 0
    default_per_cpu: int = 0

    def within(self, cluster: "MemoryLimits") -> "MemoryLimits":
        """Return these limits of a partition with those of its cluster, which it may replace."""
        most = self if self.most_per_cpu or self.most_per_node else cluster
        return MemoryLimits(
            most_per_cpu=most.most_per_cpu,
            most_per_node=most.most_per_node,
            default_per_cpu=self.default_per_cpu or cluster.default_per_cpu,
        )


@dataclass(frozen=True)
class Partition:
    """A partition. A `whole` one allocates whole nodes to jobs; of a `shared` one all share nodes.

    `state` is UP if jobs can be submitted and start, and DOWN if they can only be submitted.
    `minutes` is the longest time limit, `qos` the QOS whose limits hold for all jobs in it, and
    `nodes` a host list. All of its jobs together get `most_cpus` of a node.
    """

    name: str
    default: bool
    whole: bool
    state: str = "UP"
    minutes: float = math.inf
    qos: str = ""
    nodes: str = ""
    shared: bool = False
    memory: MemoryLimits = field(default_factory=MemoryLimits)
    most_cpus: float = math.inf

    def words(self) -> str:
        """Return what jobs find in it, for a person."""
        length = f"at most {self.minutes:g} minutes" if self.minutes < math.inf else "any length"
        return f"state {self.state}, jobs of {length}" + ", whole nodes only" * self.whole


@dataclass(frozen=True)
class ClusterConfig:
    """Facts of the cluster that `scontrol show config` asks.

    A `linear` one selects nodes, and not parts of them, for jobs that share none.
    """

    name: str = ""
    linear: bool = False
    memory: MemoryLimits = field(default_factory=MemoryLimits)


def read_config(text: str) -> ClusterConfig:
    """Return what the output of `scontrol show config` says. What it lacks stays unset."""
    fields = dict(re.findall(r"^(\w+) *= *(\S+)", text, re.MULTILINE))
    return ClusterConfig(
        name=fields.get("ClusterName", ""),
        linear=fields.get("SelectType") == "select/linear",
        memory=_memory(fields),
    )


def read_partitions(text: str) -> dict[str, Partition]:
    """Return partitions by name, from the output of `scontrol --oneliner show partition`."""
    partitions = {}
    for line in text.splitlines():
        fields = dict(part.split("=", 1) for part in line.split() if "=" in part)
        if name := fields.get("PartitionName"):
            partitions[name] = Partition(
                name=name,
                default=fields.get("Default") == "YES",
                whole=_is_whole(fields),
                state=fields.get("State", "UP"),
                minutes=read_minutes(fields.get("MaxTime", "")),
                qos="" if fields.get("QoS") == "N/A" else fields.get("QoS", ""),
                nodes="" if fields.get("Nodes") == "(null)" else fields.get("Nodes", ""),
                # With YES they do only if they ask for it.
                shared=fields.get("OverSubscribe", "").startswith("FORCE"),
                memory=_memory(fields),
                most_cpus=_number(fields.get("MaxCPUsPerNode", "")) or math.inf,
            )
    return partitions


def _is_whole(fields: dict[str, str]) -> bool:
    """Return whether a job of a partition has its nodes for itself, in the words of any version."""
    if fields.get("OverSubscribe", "").startswith("EXCLUSIVE"):
        return True
    return any(fields.get(name, "").upper() == value for name, value in _WHOLE)


def _memory(fields: dict[str, str]) -> MemoryLimits:
    return MemoryLimits(
        most_per_cpu=_number(fields.get("MaxMemPerCPU", "")),
        most_per_node=_number(fields.get("MaxMemPerNode", "")),
        default_per_cpu=_number(fields.get("DefMemPerCPU", "")),
    )


def _number(text: str) -> int:
    """Return a number; 0 for UNLIMITED and the like."""
    return int(text) if re.fullmatch(r"\d{1,12}", text) else 0


def read_minutes(text: str) -> float:
    """Return the minutes of `days-hours:minutes:seconds`; infinity for UNLIMITED and the like."""
    match = re.fullmatch(r"(?:(\d{1,9})-)?(\d{1,9}):(\d{1,9}):(\d{1,9})", text)
    if match is None:
        return math.inf
    days, hours, minutes, seconds = (int(number or 0) for number in match.groups())
    return (days * 24 + hours) * 60 + minutes + seconds / 60
