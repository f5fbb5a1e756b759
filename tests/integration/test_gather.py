"""A world of real processes: an all-gather through torch's gloo, and the ways in which one ends."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.runs import PATIENCE_SECONDS, command, until

from coordinate_eval import _files
from coordinate_eval.coordinator.doctor.gather import (
    Address,
    Passed,
    World,
    go_file,
    passed_file,
    ready_file,
    stopped_file,
    world_file,
)

TWO_EACH = """
import sys
from pathlib import Path
from coordinate_eval.coordinator.doctor import gather

def ranks(world, node):
    first = 2 * world.nodes.index(node)
    return [gather._Rank(first + local, 2 * len(world.nodes), local, False) for local in (0, 1)]

gather._ranks = ranks
gather.gather(Path(sys.argv[1]), "1-1", sys.argv[2])
"""
"""A node of two processes, as where it has two GPUs, which no test has."""


class Nodes:
    """Processes that stand for nodes, and a doctor that tells them to begin."""

    def __init__(self, folder: Path, *names: str) -> None:
        self.folder, self.names = folder, names
        world = World(nodes=names, gpus=(8,) * len(names), wait_seconds=PATIENCE_SECONDS)
        _files.write_record(world_file(folder, "1-1"), world)
        self.running: dict[str, subprocess.Popen[str]] = {}

    def start(self, name: str, *argv: str, **environ: str) -> None:
        self.running[name] = subprocess.Popen(
            argv or command("_gather", self.folder, "1-1", name),
            env={**os.environ, **environ},
            cwd=self.folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def begin(self) -> None:
        files = [ready_file(self.folder, "1-1", name) for name in self.names]
        until(lambda: all(file.exists() for file in files), "all nodes are ready")
        address = _files.read_record(files[0], Address)
        assert address.port
        _files.write_record(go_file(self.folder, "1-1"), address)

    def end(self, name: str) -> tuple[int, str]:
        """Exit status and errors."""
        _, errors = self.running[name].communicate(timeout=PATIENCE_SECONDS)
        return self.running[name].returncode, errors

    def passed(self, name: str) -> Passed | None:
        return _files.read_record_if_there(passed_file(self.folder, "1-1", name), Passed)


def children(pid: int) -> list[int]:
    """The processes that a process has started."""
    return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[Nodes]:
    made = Nodes(tmp_path, "n1", "n2")
    yield made
    for process in made.running.values():
        process.kill()
        process.communicate()


def test_all_processes_of_all_nodes_gather(nodes: Nodes) -> None:
    for name in nodes.names:
        nodes.start(name, sys.executable, "-c", TWO_EACH, str(nodes.folder), name)
    nodes.begin()
    for name in nodes.names:
        assert nodes.end(name)[0] == 0, nodes.end(name)[1]
        passed = nodes.passed(name)
        assert passed is not None
        assert (passed.backend, passed.processes) == ("gloo", 4)
        assert passed.bytes_per_second > 0


def test_a_node_without_its_network_interface_says_so(nodes: Nodes) -> None:
    nodes.start("n1", GLOO_SOCKET_IFNAME="lo")
    nodes.start("n2", GLOO_SOCKET_IFNAME="ib7")
    nodes.begin()
    status, errors = nodes.end("n2")
    assert status == 1
    assert "ib7" in errors.splitlines()[-1]
    assert nodes.passed("n2") is None


@pytest.mark.parametrize(
    ("to", "number"), [("job", signal.SIGUSR1), ("a process of it", signal.SIGTERM)]
)
def test_a_node_that_is_told_to_end_says_so(nodes: Nodes, to: str, number: signal.Signals) -> None:
    nodes.start("n2")
    until(ready_file(nodes.folder, "1-1", "n2").exists, "the node is ready")
    asked = nodes.running["n2"]
    os.kill(asked.pid if to == "job" else children(asked.pid)[0], number)
    assert nodes.end("n2")[0] == 0
    assert stopped_file(nodes.folder, "1-1", "n2").exists()
    assert nodes.passed("n2") is None
