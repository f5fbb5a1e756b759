"""Trials of one engine over two nodes, and the end of either of its processes."""

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from coordinate_eval.coordinator.run.records import TrialProgress
from tests import reference
from tests.dev_cluster import DevCluster
from tests.runs import Workspace, until
from tests.slurm.clusters import cluster_of
from tests.slurm.runs import all_gone


@pytest.fixture(scope="module")
def small_nodes() -> Iterator[DevCluster]:
    """Three nodes with one GPU each, whose type does not tell its memory."""
    with cluster_of(nodes=3, gpus=1, gres="untyped") as cluster:
        yield cluster


@pytest.fixture
def user(small_nodes: DevCluster, tmp_path: Path) -> Workspace:
    return Workspace(tmp_path)


def trials(run: Path) -> list[TrialProgress]:
    found = sorted((run / "trials").glob("*.json"))
    return [TrialProgress.model_validate_json(path.read_text()) for path in found]


def ranks(run: Path) -> dict[str, int]:
    """Return the processes of the run's trial, by their node."""
    found = {}
    for process in Path("/proc").iterdir():
        try:
            words = (process / "cmdline").read_bytes().split(b"\0")
            environ = (process / "environ").read_bytes().split(b"\0")
        except OSError:
            continue
        if b"_trial" in words and str(run).encode() in words and b"srun" not in words[0]:
            values = dict(entry.split(b"=", 1) for entry in environ if b"=" in entry)
            if b"COORDINATE_EVAL_RANK" in values:
                found[values[b"SLURMD_NODENAME"].decode()] = int(process.name)
    return found


@pytest.mark.parametrize("killed", ["node1", "node2"])
def test_the_death_of_either_process_ends_both_and_the_trial_is_replaced(
    user: Workspace, killed: str
) -> None:
    pause = user.pause("engines")
    suite = user.suite("tiny_choice", "tiny_sums")
    # Half of the model fits on a GPU, and not all of it.
    run = user.submit(
        suite, *pause.args, "--nodes", "node[1-2]",
        COORDINATE_EVAL_GPU_MEMORY_GIB="0.0008", COORDINATE_EVAL_TRIAL_MEMORY_GIB="2",
    )  # fmt: skip
    until(lambda: any(trial.responses for trial in trials(run)), "a response", run)
    plan = json.loads((run / "plan.json").read_text())
    assert (plan["gpus_per_trial"], plan["nodes_per_trial"]) == (2, 2)
    (planned,) = plan["trials"]
    assert planned["nodes"] == [stage["node"] for stage in plan["stages"]] == ["node1", "node2"]
    before = ranks(run)
    os.kill(before[killed], signal.SIGKILL)
    until(lambda: not set(ranks(run).values()) & set(before.values()), "the end of both", run)
    until((run / "rounds" / "1.json").exists, "another round", run)
    incident = json.loads((run / "incidents" / "node1-0.json").read_text())
    assert incident["node"] == killed
    if killed == "node2":
        assert "the part of the engine on node2" in trials(run)[0].message
    pause.end()
    results = reference.ended(run)
    assert results["complete"], (results["missing"], results["failures"])
    all_gone(user)
