"""Choose which nodes run together so that the bad ones are found. Values in, values out.

A world is a few nodes that do something together, and it fails if one of them is bad. First all
nodes are tried in pairs. Then each node of a world that failed is tried with one of a world that
passed. Where no world passed there is no such node: then each is tried alone, and those that pass
alone with each other, no two of them twice, until two pass.

So all bad nodes are named, and no other, wherever two nodes are good. Where fewer are, a node that
fails alone is named if another passes alone. A fault that only shows between nodes has no culprit
then: all of them stay under suspicion.
"""

from collections.abc import Collection, Iterable, Sequence
from enum import StrEnum
from typing import NamedTuple


class Tried(NamedTuple):
    """A world that was tried, and what came of it.

    A node that fails before its world has begun is a world of its own, and so is one that never
    comes. The others of that world are as unknown as before.
    """

    nodes: tuple[str, ...]
    passed: bool
    absent: frozenset[str] = frozenset()
    """Nodes on which nothing ran. With any of them the world says nothing of the others."""


class Verdict(StrEnum):
    """The known state of a node."""

    GOOD = "good"
    """It passed with another node."""
    ALONE = "alone"
    """It passed alone, and there was no good node to try it with."""
    SUSPECT = "suspect"
    """It failed, and whether by its own fault cannot be told."""
    BAD = "bad"
    """It failed with a good node, or alone while another passed."""
    UNTESTED = "untested"
    """Nothing ran there."""


class _Known:
    """The nodes as the worlds so far show them."""

    def __init__(self, tried: Iterable[Tried]) -> None:
        conclusive = []
        self.absent: set[str] = set()
        for each in tried:
            self.absent |= each.absent
            if not each.absent:
                conclusive.append(each)
        passed = [each.nodes for each in conclusive if each.passed]
        self.failed = [each.nodes for each in conclusive if not each.passed]
        alone = {nodes[0] for nodes in self.failed if len(nodes) == 1}
        self.good = {node for nodes in passed if len(nodes) > 1 for node in nodes} - alone
        self.alone = {nodes[0] for nodes in passed if len(nodes) == 1}
        self.bad = {
            node
            for nodes in self.failed
            for node in nodes
            if self.good.issuperset({*nodes} - {node})
        } - self.good

    def doubtful(self, node: str) -> bool:
        """Return whether a node was in a world that failed without a node that is known as bad."""
        return any(node in nodes and self.bad.isdisjoint(nodes) for nodes in self.failed)


def next_worlds(nodes: Sequence[str], tried: Sequence[Tried]) -> list[tuple[str, ...]]:
    """Return the worlds to try next, all at once; none if nothing more can be learned.

    No node is in two of them, and no two nodes that failed together are in one again.
    """
    known = _Known(tried)
    left = [node for node in nodes if node not in known.absent]
    unknown = [node for node in left if node not in known.good | known.bad]
    if partners := [node for node in left if node in known.good]:
        return list(zip(unknown, partners, strict=False))
    rest = [node for node in unknown if node not in known.alone]
    new = [node for node in rest if not any(node in failed for failed in known.failed)]
    if len(new) > 1:
        return _pairs(new)
    if rest:
        return [(node,) for node in rest]
    return _fresh_pairs(unknown, {frozenset(each) for each in known.failed})


def verdicts(nodes: Iterable[str], tried: Sequence[Tried]) -> dict[str, Verdict]:
    """Return what is known of each node."""
    known = _Known(tried)
    return {node: _verdict(node, known) for node in nodes}


def shows(node: str, tried: Sequence[Tried]) -> Tried | None:
    """Return the world that shows best why a node is bad or suspect: the smallest that failed."""
    failed = [each for each in tried if node in each.nodes and not (each.passed or each.absent)]
    return min(reversed(failed), key=lambda each: len(each.nodes), default=None)


def _verdict(node: str, known: _Known) -> Verdict:
    if node in known.good:
        return Verdict.GOOD
    if node in known.bad:
        # What fails everywhere is no node's fault.
        return Verdict.BAD if known.good or known.alone else Verdict.SUSPECT
    if node in known.absent or node not in known.alone:
        return Verdict.UNTESTED
    return Verdict.SUSPECT if known.doubtful(node) else Verdict.ALONE


def _pairs(nodes: Sequence[str]) -> list[tuple[str, ...]]:
    """Return worlds of two; the last one of three where the number is odd."""
    worlds = [tuple(nodes[at : at + 2]) for at in range(0, len(nodes), 2)]
    if len(worlds) > 1 and len(worlds[-1]) == 1:
        last = worlds.pop()
        worlds[-1] += last
    return worlds


def _fresh_pairs(nodes: Sequence[str], failed: Collection[frozenset[str]]) -> list[tuple[str, ...]]:
    """Return pairs of nodes that have not failed together, each node in one of them at most."""
    left, worlds = list(nodes), list[tuple[str, ...]]()
    while left:
        first = left.pop(0)
        second = next((node for node in left if frozenset((first, node)) not in failed), None)
        if second is not None:
            left.remove(second)
            worlds.append((first, second))
    return worlds
