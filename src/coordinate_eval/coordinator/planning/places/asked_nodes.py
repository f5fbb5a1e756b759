"""The nodes that a run may use: what `--nodes` asks for, without the nodes that are avoided.

`--nodes` is a number of nodes, or a Slurm host list.
"""

import re
import time
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TypeVar

from coordinate_eval.clusters.protocol import Busy, Node
from coordinate_eval.coordinator.incidents.bad_nodes import Avoided
from coordinate_eval.coordinator.inputs.settings import Settings
from coordinate_eval.coordinator.planning.plan import PlanNode
from coordinate_eval.errors import UserError

T = TypeVar("T", Node, Busy, PlanNode)

MOST_NAMES, MOST_DIGITS = 100_000, 9
"""Limits on a list of nodes and on a number in it: more than any cluster has."""

_PARTS = re.compile(r"(?:\[[^\[\]]*\]|[^,])+")
_BRACKETS = re.compile(r"\[([0-9,\-]+)\]")


def names_nodes(settings: Settings) -> bool:
    """Return whether `--nodes` names nodes instead of counting them."""
    return _wanted(settings.nodes)[1] is not None


def most_nodes(settings: Settings) -> int | None:
    """Return how many nodes `--nodes` allows at most, None for any number."""
    return _wanted(settings.nodes)[0]


def asked(among: Sequence[T], wanted: str | None) -> list[T]:
    """Return the nodes that `--nodes` names, or all if it names none."""
    _, names = _wanted(wanted)
    return [each for each in among if names is None or each.name in names]


def check_names(wanted: str | None, nodes: Sequence[Node], busy: Sequence[Busy]) -> None:
    """Check that all nodes named by `--nodes` exist, free or not.

    Raises:
        UserError: One does not exist, or none is named; waiting for it would not help.
    """
    _, names = _wanted(wanted)
    if names is None:
        return
    if not names:
        raise UserError(
            f"--nodes {wanted!r} names no node: give names such as gpu[1-4], or a number"
        )
    unknown = names - {n.name for n in nodes} - {b.name for b in busy}
    if unknown:
        shown = ", ".join(sorted(unknown)[:20])
        more = f" or {len(unknown) - 20} others" if len(unknown) > 20 else ""
        raise UserError(f"--nodes {_short(str(wanted))}: no node with GPUs is named {shown}{more}")


def _wanted(nodes: str | None) -> tuple[int | None, set[str] | None]:
    """Return the number of nodes, and their names, that `--nodes` asks for."""
    if nodes is None:
        return None, None
    if nodes.isdecimal():
        if len(nodes) > MOST_DIGITS:
            raise UserError(f"--nodes {_short(nodes)} is more than any cluster has")
        if int(nodes) < 1:
            raise UserError("--nodes must be at least 1")
        return int(nodes), None
    return None, set(expand(nodes))


def expand(names: str, option: str = "--nodes") -> list[str]:
    """Return the node names of a Slurm host list such as `gpu[1-3,07],login`, given by an option.

    Raises:
        UserError: The list is malformed, or names more than `MOST_NAMES` nodes.
    """
    found: list[str] = []
    for part in _PARTS.findall(names):
        # Plain text at even positions, the contents of brackets at odd ones.
        made = [""]
        for place, piece in enumerate(_BRACKETS.split(part.strip())):
            pieces = _numbers(piece, names, option) if place % 2 else [piece]
            if len(made) * len(pieces) + len(found) > MOST_NAMES:
                raise UserError(f"{option} {_short(names)}: more than {MOST_NAMES:,} nodes")
            made = [before + text for before in made for text in pieces]
        found += made
    return [name for name in found if name]


def _numbers(pieces: str, names: str, option: str) -> list[str]:
    """Return the numbers of a bracket such as `1-3,07`; the rest is for errors."""
    found: list[str] = []
    for piece in pieces.split(","):
        first, _, last = piece.partition("-")
        if not first.isdigit() or (last and not last.isdigit()):
            raise UserError(f"{option} {_short(names)}: cannot read {_short(piece)}")
        if max(len(first), len(last)) > MOST_DIGITS:
            raise UserError(f"{option} {_short(names)}: {_short(piece)} has too many digits")
        numbers = range(int(first), int(last or first) + 1)
        if not numbers:
            raise UserError(f"{option} {_short(names)}: {piece} counts backwards")
        if len(found) + len(numbers) > MOST_NAMES:
            raise UserError(f"{option} {_short(names)}: more than {MOST_NAMES:,} nodes")
        found += [f"{number:0{len(first)}d}" for number in numbers]
    return found


def _short(text: str) -> str:
    """Quote a text, shortened to 100 characters."""
    return repr(text if len(text) <= 100 else text[:99] + "…")


def without_avoided(
    nodes: Sequence[Node],
    busy: Sequence[Busy],
    settings: Settings,
    avoided: Mapping[str, Avoided],
    suspected: Mapping[str, Avoided] = MappingProxyType({}),
    gpu_type: str = "",
) -> tuple[list[Node], list[Busy]]:
    """Return free and busy nodes. Nodes that are avoided count as busy.

    A node that the user names is used all the same, unless jobs of this run failed there: those
    nodes are `suspected`, and used only as a last resort. Where no other
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
                node.busy(avoided_words(shunned[node.name]))
                for node in nodes
                if node.name in shunned
            ]
            return [node for node in nodes if node.name not in shunned], [*busy, *out]
    return list(nodes), list(busy)


def avoided_words(avoided: Avoided) -> str:
    """Return until when and why a node is avoided."""
    return f"avoided until {avoided_until(avoided)}: {avoided.why}"


def avoided_until(avoided: Avoided) -> str:
    """Return until when a node is avoided, on this machine's clock."""
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(avoided.until))
