"""Nodes that the user's runs avoid for a while are taken for busy."""

import time
from collections.abc import Mapping, Sequence
from types import MappingProxyType

from coordinate_eval.clusters.protocol import Busy, Node
from coordinate_eval.coordinator.incidents.avoided import Avoided
from coordinate_eval.coordinator.inputs.settings import Settings
from coordinate_eval.coordinator.planning.places.asked_nodes import asked, names_nodes


def without_avoided(
    nodes: Sequence[Node],
    busy: Sequence[Busy],
    settings: Settings,
    avoided: Mapping[str, Avoided],
    suspected: Mapping[str, Avoided] = MappingProxyType({}),
    gpu_type: str = "",
) -> tuple[list[Node], list[Busy]]:
    """Return free and busy nodes, of which those that are avoided count as busy.

    A node that the user names is used all the same, unless jobs of this run failed there: those
    nodes are `suspected`, and rather used than any other only where there is none. Where no other
    node is there, free or in use, none is avoided: waiting would not help, nor does it for a node
    that is down or drained. Only nodes that the user may have meant are others: with GPUs of
    `gpu_type`, if that is known.
    """
    usual = {} if names_nodes(settings) else avoided
    free = [node for node in asked(nodes, settings.nodes) if gpu_type in ("", node.gpu_type)]
    later = [
        each
        for each in asked(busy, settings.nodes)
        if not (each.excluded or each.away)
        and (not each.gpu_type or gpu_type in ("", each.gpu_type))
    ]
    others = {node.name for node in free} | {each.name for each in later}
    for shunned in ({**usual, **suspected}, suspected):
        if others - shunned.keys():
            out = [
                Busy(name=node.name, why=words(shunned[node.name]))
                for node in nodes
                if node.name in shunned
            ]
            return [node for node in nodes if node.name not in shunned], [*busy, *out]
    return list(nodes), list(busy)


def words(avoided: Avoided) -> str:
    """Return until when and why a node is avoided."""
    return f"avoided until {until(avoided)}: {avoided.why}"


def until(avoided: Avoided) -> str:
    """Return until when a node is avoided, on this machine's clock."""
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(avoided.until))
