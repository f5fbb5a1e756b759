"""Nodes that the user's runs avoid for a while are taken for busy."""

import time
from collections.abc import Mapping, Sequence

from coordinate_eval.cluster import Busy, Node
from coordinate_eval.coordinator.inputs.settings import Settings
from coordinate_eval.coordinator.planning.places.asked_nodes import names_nodes
from coordinate_eval.coordinator.run.troubles.avoided import Avoided


def without_avoided(
    nodes: Sequence[Node],
    busy: Sequence[Busy],
    settings: Settings,
    avoided: Mapping[str, Avoided],
) -> tuple[list[Node], list[Busy]]:
    """Return free and busy nodes, of which those that are avoided count as busy.

    A node that the user names is used all the same. Where no other node is there, free or busy,
    none is avoided: waiting would not help.
    """
    left = [node for node in nodes if node.name not in avoided]
    later = [each for each in busy if each.name not in avoided and not each.excluded]
    if len(left) == len(nodes) or not (left or later) or names_nodes(settings):
        return list(nodes), list(busy)
    out = [
        Busy(name=node.name, why=words(avoided[node.name]))
        for node in nodes
        if node.name in avoided
    ]
    return left, [*busy, *out]


def words(avoided: Avoided) -> str:
    """Return until when and why a node is avoided."""
    return f"avoided until {until(avoided)}: {avoided.why}"


def until(avoided: Avoided) -> str:
    """Return until when a node is avoided, on this machine's clock."""
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(avoided.until))
