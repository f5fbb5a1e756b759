"""Stands in for pyslurm 25.11, as far as it is used, with answers from the file $PYSLURM_SAYS.

Attributes have the types that pyslurm gives them: most numbers that are 0 are None, and so is the
index 0 of an array's task. GPUs in use are known of jobs, with their indices.
"""

import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

__version__ = "25.11.2"

_SAYS: dict[str, Any] = json.loads(Path(os.environ["PYSLURM_SAYS"]).read_text())

if _SAYS.get("no configuration"):
    os.write(2, b"fatal: Could not establish a configuration source\n")
    os._exit(1)


class RPCError(Exception):
    pass


class Node(SimpleNamespace):
    pass


class Job(SimpleNamespace):
    def get_resource_layout_per_node(self) -> dict[str, dict[str, Any]]:
        layout: dict[str, dict[str, Any]] = self.layout
        return layout


class Nodes(dict[str, Node]):
    @staticmethod
    def load() -> "Nodes":
        if words := _SAYS.get("error"):
            raise RPCError(words)
        return Nodes({node["name"]: Node(**node) for node in _SAYS["nodes"]})


class Jobs(dict[int, Job]):
    @staticmethod
    def load() -> "Jobs":
        if words := _SAYS.get("error"):
            raise RPCError(words)
        return Jobs({job["id"]: Job(**job) for job in _SAYS["jobs"]})


class Config(SimpleNamespace):
    @staticmethod
    def load() -> "Config":
        return Config(private_data=_SAYS.get("private", []))


slurmctld = SimpleNamespace(Config=Config)
