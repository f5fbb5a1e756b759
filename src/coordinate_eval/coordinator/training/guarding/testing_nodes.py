"""Who is to blame: the nodes of a job, tested in pairs by a child process."""

import json
import os
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

from coordinate_eval._files import MOST_BYTES
from coordinate_eval.clusters.protocol import ENDS_WITH_PARENT
from coordinate_eval.coordinator.run import jobs
from coordinate_eval.coordinator.training.guarding.attempts import NodesTested

MOST_SECONDS = 1800.0
"""Time of a test. Nodes that others have taken meanwhile are not tested."""


class NodeTest:
    """A test of nodes, by `doctor --nodes`, which has all runs avoid the bad ones.

    Args:
        root: the guard's folder, whose settings it uses.
        python: that runs it.
    """

    def __init__(self, root: Path, python: str) -> None:
        self._root, self._python = root, python
        self._child: subprocess.Popen[bytes] | None = None
        # Files, because nobody reads while the child writes, and a pipe holds some 300 nodes.
        self._said = tempfile.TemporaryFile()  # noqa: SIM115 - `close` closes it
        self._words = tempfile.TemporaryFile()  # noqa: SIM115 - `close` closes it
        self._end = 0.0

    def result(self, nodes: Sequence[str], partition: str) -> NodesTested | None:
        """Return what a test of these nodes says; None while it goes on. Begin one if needed."""
        if self._child is None:
            argv = [*jobs.program(self._python), "_test_nodes", str(self._root)]
            self._child = subprocess.Popen(
                [*argv, ",".join(nodes), "--partition", partition],
                env=os.environ | ENDS_WITH_PARENT,
                stdin=subprocess.DEVNULL,
                stdout=self._said,
                stderr=self._words,
            )
            self._end = time.monotonic() + MOST_SECONDS
            return None
        if self._child.poll() is None and time.monotonic() < self._end:
            return None
        if self._child.poll() is None:
            self._child.terminate()  # it leaves no job behind
        self._child.wait()
        self._child = None
        return read(_taken(self._said), _taken(self._words))

    def close(self) -> None:
        """End a test that goes on. It cancels its jobs."""
        if self._child is not None:
            self._child.terminate()
            self._child.wait()
            self._child = None
        self._said.close()
        self._words.close()


def _taken(file: IO[bytes]) -> str:
    """Return what is in a file, and empty it."""
    file.seek(0)
    text = file.read(MOST_BYTES).decode(errors="replace")
    file.seek(0)
    file.truncate()
    return text


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
