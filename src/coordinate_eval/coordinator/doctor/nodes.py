"""Find the bad nodes: rounds of worlds until they are known, and what follows for each node."""

import shlex
import sys
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from typing import Any

from coordinate_eval._format import brief, plural, size
from coordinate_eval.clusters.protocol import Busy, Cluster, Node
from coordinate_eval.coordinator.doctor.findings import Finding, failure, ok, warning
from coordinate_eval.coordinator.doctor.gather import BYTES
from coordinate_eval.coordinator.doctor.pairing import (
    Tried,
    Verdict,
    next_worlds,
    shows,
    verdicts,
)
from coordinate_eval.coordinator.doctor.scheduler import reasons
from coordinate_eval.coordinator.doctor.worlds import Result, Worlds
from coordinate_eval.coordinator.incidents.bad_nodes import (
    avoid,
    avoided_folder,
    read_avoided,
)
from coordinate_eval.coordinator.inputs.settings import Settings
from coordinate_eval.coordinator.planning.places.asked_nodes import (
    avoided_until,
    avoided_words,
    expand,
)
from coordinate_eval.errors import UserError
from coordinate_eval.records import Record

DRAIN_REASON = "coordinate-eval doctor: failed an all-gather"

_SUSPECT = (
    "test it with other nodes; where all fail, look at what they share: the Python "
    "that called, the lines of [slurm] setup, the network (NCCL_SOCKET_IFNAME, GLOO_SOCKET_IFNAME)"
)


class TriedNode(Record):
    """A node's test result."""

    node: str
    verdict: Verdict
    why: str = ""


def check_torch() -> None:
    """Check that torch is installed for this Python, which jobs use too."""
    if find_spec("torch") is None:
        raise UserError(
            f"--nodes runs torch, which is not installed for {sys.executable}: "
            "pip install 'coordinate-eval[vllm]', or torch alone"
        )


def wanted_nodes(cluster: Cluster, names: str | None) -> tuple[list[Node], list[Busy]]:
    """Return the nodes to test, and those that cannot be tested now.

    Args:
        names: a list such as gpu[1-4,7]; None for all nodes of the partition.

    Raises:
        UserError: a node is named that does not exist.
    """
    free, busy = cluster.nodes()
    # A node with GPUs of several types is listed once for each.
    largest: dict[str, Node] = {}
    for node in free:
        if node.name not in largest or node.free_gpus > largest[node.name].free_gpus:
            largest[node.name] = node
    if names is None:
        return list(largest.values()), [each for each in busy if not each.excluded]
    wanted = dict.fromkeys(expand(names, "--nodelist"))
    by_name = {each.name: each for each in busy}
    unknown = [name for name in wanted if name not in largest and name not in by_name]
    if unknown or not wanted:
        shown = ", ".join(unknown[:20]) or "none"
        raise UserError(f"--nodelist: no node with GPUs is named {shown}")
    free = [largest[name] for name in wanted if name in largest]
    return free, [by_name[name] for name in wanted if name not in largest]


class Rounds:
    """Rounds of worlds, until no more can be learned of their nodes."""

    def __init__(self, worlds: Worlds) -> None:
        self._worlds = worlds
        self.results: list[tuple[int, Result]] = []
        """Each with the number of its round."""
        self.number = 0
        """The number of the round that was begun last."""

    def following(self) -> list[tuple[str, ...]]:
        """Return the worlds of the next round; none if no more can be learned."""
        return next_worlds(self._worlds.names, self._tried())

    def run(self, worlds: Sequence[tuple[str, ...]]) -> Iterator[Result]:
        """Run a round, and yield what comes of it."""
        self.number += 1
        for result in self._worlds.run(worlds):
            self.results.append((self.number, result))
            yield result

    def nodes(self) -> list[TriedNode]:
        """Return what has come of each node."""
        found = verdicts(self._worlds.names, self._tried())
        return [
            TriedNode(node=node, verdict=verdict, why=self._why(node, verdict))
            for node, verdict in found.items()
        ]

    def _why(self, node: str, verdict: Verdict) -> str:
        """Return why a node is not good, in words for a person."""
        if verdict is Verdict.UNTESTED:
            results = (each for _, each in reversed(self.results) if node in each.tried.absent)
            return next((each.why[node] for each in results), "")
        if verdict is Verdict.ALONE:
            return "it passed alone, and there was no good node to test it with"
        shown = shows(node, self._tried())
        if shown is None or verdict is Verdict.GOOD:
            return ""
        result = next(each for _, each in self.results if each.tried is shown)
        words = result.why.get(node) or result.words
        others = " and ".join(each for each in shown.nodes if each != node)
        if verdict is Verdict.BAD:
            return (
                f"it failed with {others}: {words}" if others else f"it failed by itself: {words}"
            )
        if others:
            return f"it failed with {others}, and each of them passes alone: {words}"
        return f"it failed by itself, and no node has passed: {words}"

    def _tried(self) -> list[Tried]:
        return [result.tried for _, result in self.results]


def untested(busy: Busy) -> TriedNode:
    """Return what is known of a node that could not be tested."""
    return TriedNode(node=busy.name, verdict=Verdict.UNTESTED, why=busy.why)


def as_json(number: int, result: Result) -> dict[str, Any]:
    """Return what came of a world in a round, for programs."""
    tried = result.tried
    return {
        "round": number,
        "nodes": tried.nodes,
        "passed": tried.passed,
        "absent": sorted(tried.absent),
        "why": dict(result.why),
        **(result.passed.model_dump() if result.passed is not None else {}),
    }


def of_result(result: Result) -> Finding:
    """Return what came of a world as a line for a person."""
    nodes, passed = " ".join(result.tried.nodes), result.passed
    if passed is None:
        state = warning if result.tried.absent else failure
        return state(nodes, result.words, "")
    alone = "passed alone" if len(result.tried.nodes) == 1 else "passed"
    if passed.processes == 1:
        return ok(nodes, f"{alone} ({passed.backend})")
    speed = f"{passed.bytes_per_second / 1e9:.2f} GB/s"
    each = f"{size(BYTES)} from each of {passed.processes} processes"
    return ok(nodes, f"{alone}, {speed} ({passed.backend}, {each})")


def of_nodes(
    settings: Settings, nodes: Sequence[TriedNode], token: str, now: float
) -> Iterator[Finding]:
    """Have runs avoid the bad nodes, and return what came of all nodes as lines for a person."""
    avoided = read_avoided(settings, now)
    good = [each.node for each in nodes if each.verdict is Verdict.GOOD]
    if good:
        yield ok("passed", f"{plural(len(good), 'node')}: {brief(', '.join(good))}")
    for each in nodes:
        name = each.node
        if each.verdict is Verdict.GOOD and name in avoided:
            yield warning(
                name,
                f"passed, and is {avoided_words(avoided[name])}",
                f"delete {avoided_folder(settings) / f'{name}.json'} to have runs use it again",
            )
        elif each.verdict is Verdict.BAD:
            avoid(settings, name, "it failed an all-gather (doctor --nodes)", token, now)
            known = read_avoided(settings, now)[name]
            yield failure(name, each.why, f"runs avoid it until {avoided_until(known)}")
        elif each.verdict is Verdict.SUSPECT:
            yield failure(name, each.why, _SUSPECT)
        elif each.verdict is Verdict.ALONE:
            yield warning(name, each.why, "test it when others are free")
        elif each.verdict is Verdict.UNTESTED:
            yield warning(name, f"not tested: {each.why}", "test it when it is free")


def of_busy(busy: Sequence[Busy], *, named: bool) -> Iterator[Finding]:
    """Return a line for each named node that could not be tested, and one for all others."""
    if named:
        for each in busy:
            yield warning(each.name, f"not tested: {each.why}", "test it when it is free")
    elif busy:
        yield ok("not tested", "; ".join(reasons(busy)))


def drain_command(bad: Sequence[str]) -> str:
    """Return the command with which an administrator drains bad nodes; '' if there are none."""
    named = f"nodename={','.join(bad)}"
    words = ("scontrol", "update", named, "state=drain", f"reason={DRAIN_REASON}")
    return shlex.join(words) if bad else ""


def bad_of(nodes: Sequence[TriedNode]) -> list[str]:
    """Return the names of the bad ones among nodes that were tested."""
    return [each.node for each in nodes if each.verdict is Verdict.BAD]
