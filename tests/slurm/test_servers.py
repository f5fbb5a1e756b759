"""Runs on Slurm whose engine is a server: a job's own, in an image or not, or one elsewhere."""

import json
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests import completions
from tests.dev_cluster import DevCluster
from tests.images import RUNTIMES, in_container, make_image
from tests.runs import Workspace, lasting_port, processes, scores
from tests.slurm.runs import all_gone
from tests.tiny import need, tiny_model

DATASETS = ("tiny_choice", "tiny_cloze", "tiny_sums", "tiny_talk")


@pytest.fixture(scope="module")
def user(slurm_cluster: DevCluster, tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    """One user for all tests of this file."""
    need("lm_eval", "harness")
    return Workspace(tmp_path_factory.mktemp("user of servers"))


@pytest.fixture(scope="module")
def program(user: Workspace) -> Path:
    """A server whose processes are told from those of other tests."""
    folder = user.folder / "program"
    folder.mkdir()
    return Path(shutil.copy(completions.__file__, folder))


def command(python: str, program: Path) -> dict[str, Any]:
    words = [python, str(program), "--port", "{port}", "--model", "{model}"]
    return {"command": shlex.join(words)}


def submitted(user: Workspace, args: dict[str, Any], **environ: str) -> Path:
    options = "--engine", "server", "--engine-args", json.dumps(args)
    return user.submit(user.suite(*DATASETS), *options, **environ)


@pytest.fixture(scope="module")
def asked(user: Workspace, program: Path) -> Path:
    """Return a run by a server that is there."""
    port = lasting_port()
    argv = [sys.executable, str(program), "--port", str(port), "--model", str(tiny_model())]
    with subprocess.Popen(argv) as server:
        try:
            run = submitted(user, {"base_url": f"http://127.0.0.1:{port}/v1"})
            assert scores(run)
        finally:
            server.kill()
    all_gone(user)
    return run


def test_a_server_that_is_there_is_asked_without_gpus(asked: Path) -> None:
    jobs = [json.loads(path.read_text())["job"] for path in asked.glob("jobs/*.json")]
    assert {job["gpus"] for job in jobs} == {0}


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_each_trial_starts_and_ends_a_server_of_an_image(
    user: Workspace, program: Path, asked: Path, runtime: str
) -> None:
    image = make_image(user.folder / f"image for {runtime}")
    run = submitted(
        user, command("python3", program), **in_container(runtime, image),
        COORDINATE_EVAL_CONTAINER_MOUNTS=json.dumps([str(program.parent)]),
    )  # fmt: skip
    assert scores(run) == scores(asked)
    all_gone(user)
    assert not processes(str(program))
