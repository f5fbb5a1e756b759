"""Runs on Slurm whose engine is a server: a job's own, in an image or not, or one elsewhere."""

import json
import shlex
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests import completions
from tests.dev_cluster import DevCluster
from tests.images import RUNTIMES, in_container, make_image
from tests.runs import Workspace, processes, scores
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
def expected(
    user: Workspace, program: Path, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Any]:
    """Return the scores of a run without Slurm. Its user has built all prompts for the other."""
    other = Workspace(tmp_path_factory.mktemp("user without Slurm"))
    run = other.folder / "run"
    other.call(
        "run", tiny_model(), "--suite", other.suite(*DATASETS), "--run-dir", run,
        "--engine", "server", "--engine-args", json.dumps(command(sys.executable, program)),
        COORDINATE_EVAL_CLUSTER="local",
    )  # fmt: skip
    (requests,) = (other.folder / "cache").glob("requests-*")
    user.with_prompts(requests)
    return scores(run)


@pytest.fixture
def address(program: Path) -> Iterator[str]:
    """Return the address of a server that is there."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    with subprocess.Popen(
        [sys.executable, program, "--port", port, "--model", tiny_model()]
    ) as server:
        yield f"http://127.0.0.1:{port}/v1"
        server.kill()


def test_a_server_that_is_there_is_asked_without_gpus(
    user: Workspace, expected: dict[str, Any], address: str
) -> None:
    run = submitted(user, {"base_url": address})
    assert scores(run) == expected
    jobs = [json.loads(path.read_text())["job"] for path in run.glob("jobs/*.json")]
    assert {job["gpus"] for job in jobs} == {0}
    all_gone(user)


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_each_trial_starts_and_ends_a_server_of_an_image(
    user: Workspace, program: Path, expected: dict[str, Any], runtime: str
) -> None:
    image = make_image(user.folder / f"image for {runtime}")
    run = submitted(
        user, command("python3", program), **in_container(runtime, image),
        COORDINATE_EVAL_CONTAINER_MOUNTS=json.dumps([str(program.parent)]),
    )  # fmt: skip
    assert scores(run) == expected
    all_gone(user)
    assert not processes(str(program))
