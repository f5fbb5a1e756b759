"""Cluster files: descriptions of a cluster, to plan on without one."""

from collections import Counter
from pathlib import Path
from typing import Any

from pydantic import ConfigDict, Field, model_validator

from coordinate_eval.clusters.protocol import MOST_CPUS, MOST_GPUS, Busy, Node
from coordinate_eval.coordinator.inputs import yaml_file
from coordinate_eval.errors import UserError
from coordinate_eval.records import Record

CPUS_PER_GPU = 16
"""Cores per GPU of a node for which the file gives none."""

GPU_MEMORY_GIB = 80.0
"""Memory of a GPU for which the file gives neither type nor memory: that of an A100."""

MEMORY_GIB_PER_GPU = 128.0
"""Memory per GPU of a node for which the file gives none."""

MOST_NODES = 10_000
"""Limit for a file: larger than any cluster, small enough to plan."""

MOST_GIB, MOST_SECONDS = 1e6, 1e6
"""Limits for memory and for the start of an engine."""


class FileNode(Record):
    """A node of the file."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,252}$")
    gpus: int = Field(ge=0, le=MOST_GPUS, strict=True)
    free_gpus: int = Field(ge=0, le=MOST_GPUS, strict=True)
    gpu_type: str = Field(default="", pattern=r"^[A-Za-z0-9_.:+ -]{0,100}$")
    gpu_memory_gib: float = Field(default=0.0, ge=0, le=MOST_GIB)
    cpus: int = Field(ge=1, le=MOST_CPUS, strict=True)
    memory_gib: float = Field(gt=0, le=MOST_GIB)

    @model_validator(mode="before")
    @classmethod
    def _fill(cls, values: Any) -> Any:  # noqa: ANN401 - any YAML value
        gpus = values.get("gpus") if isinstance(values, dict) else None
        if isinstance(gpus, int) and 0 <= gpus <= MOST_GPUS:
            values = {
                "free_gpus": gpus,
                "cpus": max(1, gpus * CPUS_PER_GPU),
                "memory_gib": max(1.0, gpus * MEMORY_GIB_PER_GPU),
                "gpu_memory_gib": 0.0 if values.get("gpu_type") else GPU_MEMORY_GIB,
                **values,
            }
        return values

    @model_validator(mode="after")
    def _plausible(self) -> "FileNode":
        if self.free_gpus > self.gpus:
            raise ValueError(f"free_gpus is {self.free_gpus}, but gpus is {self.gpus}")
        return self


class ClusterFile(Record):
    """A cluster file."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    storage_gigabits_per_node: float = Field(default=25.0, ge=1e-3, le=1e6)
    engine_start_seconds: float = Field(default=20.0, ge=0, le=MOST_SECONDS)
    metric_cpus: int | None = Field(default=None, ge=1, le=MOST_CPUS, strict=True)
    nodes: list[FileNode] = Field(min_length=1, max_length=MOST_NODES)

    @property
    def cores_for_metrics(self) -> int:
        """Return the cores for all metric jobs together."""
        return self.metric_cpus or sum(node.cpus for node in self.nodes)

    def free(self) -> tuple[list[Node], list[Busy]]:
        """Return the nodes with free GPUs, and the others with the reason."""
        nodes = [Node.model_validate(node.model_dump()) for node in self.nodes]
        free = [node for node in nodes if node.free_gpus]
        busy = [
            node.busy(f"{node.gpus} of {node.gpus} GPUs in use" if node.gpus else "no GPUs")
            for node in nodes
            if not node.free_gpus
        ]
        return free, busy


def load(path: Path) -> ClusterFile:
    """Read a cluster file."""
    cluster = yaml_file.read_as(ClusterFile, path, "cluster file", "nodes")
    for name, count in Counter(node.name for node in cluster.nodes).items():
        if count > 1:
            raise UserError(f"cluster file {path}: node {name} is listed twice")
    return cluster
