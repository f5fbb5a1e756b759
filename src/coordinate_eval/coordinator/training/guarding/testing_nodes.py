"""The search for bad nodes: a child process tests the nodes of a job in pairs."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from coordinate_eval.coordinator.run import jobs
from coordinate_eval.coordinator.training.guarding.attempts import NodesTested
from coordinate_eval.coordinator.training.guarding.child import Child

MOST_SECONDS = 1800.0
"""Time of a test. Nodes that others have taken meanwhile are not tested."""


class NodeTest:
    """A test of nodes, by `doctor --nodes`, which has all runs avoid the bad ones.

    Args:
        root: the guard's folder, whose settings it uses.
        python: that runs it.
    """

    def __init__(self, root: Path, python: str) -> None:
        self._argv = (*jobs.program(python), "_test_nodes", str(root))
        self._child: Child | None = None

    def result(self, nodes: Sequence[str], partition: str) -> NodesTested | None:
        """Return what a test of these nodes says; None while it goes on. Begin one if needed."""
        if self._child is None:
            argv = [*self._argv, ",".join(nodes), "--partition", partition]
            self._child = Child(argv, MOST_SECONDS)
            return None
        if (answer := self._child.answer()) is None:
            return None
        self._child = None
        return read(answer.said, answer.errors)

    def close(self) -> None:
        """End a test that goes on. It cancels its jobs."""
        if self._child is not None:
            self._child.close()


def read(said: str, words: str) -> NodesTested:
    """Return what a test said, by the document of `doctor --nodes --json`, or its last words."""
    try:
        found: dict[str, Any] = json.loads(said)
        verdicts = {each["node"]: each for each in found["nodes"]}
    except (ValueError, KeyError, TypeError):
        last = next((line for line in reversed(words.splitlines()) if line.strip()), "no answer")
        return NodesTested(
            words=f"the nodes were not tested: {last.removeprefix('coordinate-eval: ')}"
        )
    bad = tuple(name for name, each in verdicts.items() if each["verdict"] == "bad")
    counts: dict[str, int] = {}
    for each in verdicts.values():
        counts[each["verdict"]] = counts.get(each["verdict"], 0) + 1
    told = ", ".join(f"{count} {verdict}" for verdict, count in counts.items())
    named = "".join(f"; {name}: {verdicts[name]['why']}" for name in bad)
    return NodesTested(
        bad=bad, words=f"tested in pairs: {told}{named}", drain=found.get("drain", "")
    )
