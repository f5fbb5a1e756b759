"""A cluster written down in a file, to plan on without one."""

from collections import Counter
from pathlib import Path
from typing import Any

import yaml
from pydantic import ConfigDict, Field, ValidationError, model_validator

from coordinate_eval.coordinator.cluster import Busy, Node
from coordinate_eval.errors import UserError
from coordinate_eval.records import Record

CPUS_PER_GPU = 16
"""Assumed of a node whose cores are not given."""

MEMORY_GIB_PER_GPU = 128.0
"""Assumed of a node whose memory is not given."""

_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""libyaml's, where PyYAML has it: ten times as fast, and a thousand nodes are many lines."""


class FileNode(Record):
    """A node as the file gives it."""

    model_config = ConfigDict(extra="forbid")

    name: str
    gpus: int = Field(ge=0)
    free_gpus: int = Field(ge=0)
    gpu_type: str = ""
    gpu_memory_gib: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    cpus: int = Field(ge=1)
    memory_gib: float = Field(gt=0, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _fill(cls, values: Any) -> Any:  # noqa: ANN401 - whatever the file holds
        if isinstance(values, dict) and isinstance(values.get("gpus"), int):
            gpus = values["gpus"]
            values = {
                "free_gpus": gpus,
                "cpus": max(1, gpus * CPUS_PER_GPU),
                "memory_gib": max(1.0, gpus * MEMORY_GIB_PER_GPU),
                **values,
            }
        return values

    @model_validator(mode="after")
    def _plausible(self) -> "FileNode":
        if self.free_gpus > self.gpus:
            raise ValueError(f"free_gpus is {self.free_gpus}, of {self.gpus} gpus")
        return self


class ClusterFile(Record):
    """The whole file."""

    model_config = ConfigDict(extra="forbid")

    storage_gigabits_per_node: float = Field(default=25.0, gt=0, allow_inf_nan=False)
    engine_start_seconds: float = Field(default=20.0, ge=0, allow_inf_nan=False)
    metric_cpus: int | None = Field(default=None, ge=1)
    nodes: list[FileNode] = Field(min_length=1)

    @property
    def cores_for_metrics(self) -> int:
        """Cores for all metric jobs together."""
        return self.metric_cpus or sum(node.cpus for node in self.nodes)

    def free(self) -> tuple[list[Node], list[Busy]]:
        """As a live cluster would answer."""
        nodes = [Node.model_validate(n.model_dump()) for n in self.nodes if n.free_gpus]
        busy = [
            Busy(name=n.name, why=f"{n.gpus} of {n.gpus} GPUs in use" if n.gpus else "no GPUs")
            for n in self.nodes
            if not n.free_gpus
        ]
        return nodes, busy


def load(path: Path) -> ClusterFile:
    """Read a cluster file.

    Raises:
        UserError: it is missing or malformed; names the field.
    """
    try:
        tree = yaml.load(path.read_text(), _LOADER)  # noqa: S506 - both are safe
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"cluster file {path} cannot be read: {error}") from error
    except yaml.YAMLError as error:
        raise UserError(f"cluster file {path} is not YAML: {error}") from error
    if not isinstance(tree, dict):
        raise UserError(f"cluster file {path}: it must be a mapping with `nodes`")
    try:
        cluster = ClusterFile.model_validate(tree)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise UserError(f"cluster file {path}: {where}: {first['msg']}") from error
    for name, times in Counter(node.name for node in cluster.nodes).items():
        if times > 1:
            raise UserError(f"cluster file {path}: node {name} stands twice")
    return cluster
