"""A node provider for Ray's autoscaler: its nodes are processes of this machine.

Only the autoscaler's own process imports this module.
"""

import secrets
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ray.autoscaler.node_provider import NodeProvider
from ray.autoscaler.tags import (
    NODE_KIND_HEAD,
    STATUS_UP_TO_DATE,
    TAG_RAY_NODE_KIND,
    TAG_RAY_NODE_STATUS,
    TAG_RAY_USER_NODE_TYPE,
)

from tests.ray_servers import HEAD, begun, node_command

_HEADS_ID = "head"


class Nodes(NodeProvider):
    """Nodes by their ids in Ray, which the autoscaler takes for their addresses."""

    def __init__(self, provider_config: dict[str, Any], cluster_name: str) -> None:
        super().__init__(provider_config, cluster_name)
        up = {TAG_RAY_NODE_STATUS: STATUS_UP_TO_DATE}
        head = {TAG_RAY_NODE_KIND: NODE_KIND_HEAD, TAG_RAY_USER_NODE_TYPE: HEAD}
        self._tags = {_HEADS_ID: up | head}
        self._started: dict[str, subprocess.Popen[bytes]] = {}
        self._command = node_command(provider_config["address"])
        self._folder = Path(provider_config["folder"])

    def non_terminated_nodes(self, tag_filters: Mapping[str, str]) -> list[str]:
        known = dict(self._tags)  # another thread adds some
        return [node for node, tags in known.items() if tag_filters.items() <= tags.items()]

    def is_running(self, node_id: str) -> bool:
        return node_id in self._tags

    def is_terminated(self, node_id: str) -> bool:
        return node_id not in self._tags

    def node_tags(self, node_id: str) -> dict[str, str]:
        return self._tags[node_id]

    def set_node_tags(self, node_id: str, tags: Mapping[str, str]) -> None:
        self._tags[node_id] = self._tags[node_id] | {**tags}

    def internal_ip(self, node_id: str) -> str:
        return node_id

    def external_ip(self, node_id: str) -> str:
        return node_id

    def create_node(
        self, node_config: Mapping[str, Any], tags: Mapping[str, str], count: int
    ) -> None:
        for _ in range(count):
            node = secrets.token_hex(28)
            environ = {"RAY_OVERRIDE_NODE_ID_FOR_TESTING": node}
            self._started[node] = begun(self._command, self._folder / f"{node}.log", environ)
            self._tags[node] = {**tags, TAG_RAY_NODE_STATUS: STATUS_UP_TO_DATE}

    def terminate_node(self, node_id: str) -> None:
        del self._tags[node_id]
        process = self._started.pop(node_id)
        process.terminate()
        process.wait()
