"""Hostile files, given to the command itself: one message, an exit status, and nothing else."""

import json
from pathlib import Path

import numpy
import pytest
import yaml
from safetensors.numpy import save_file
from tests.runs import Workspace
from tests.steering import CLEAR, TURNED, steering
from tests.tiny import architectures, tiny_model

NODE = {"name": "n1", "gpus": 8, "gpu_type": "h200", "gpu_memory_gib": 141}


@pytest.fixture
def user(tmp_path: Path) -> Workspace:
    """A user with a cluster file, and with a suite of one dataset whose figures are given."""
    (tmp_path / "user").mkdir()
    made = Workspace(tmp_path / "user")
    assert made.memory.is_dir()
    (made.folder / "cluster.yaml").write_text(yaml.safe_dump({"nodes": [NODE]}))
    (made.folder / "suite.yaml").write_text(
        "datasets: [{name: a, task: a, items: 10, prior: {gpu_seconds: 5}}]\n"
    )
    return made


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    made = tmp_path / "checkpoint"
    made.mkdir()
    (made / "config.json").write_text('{"model_type": "of-nobody"}')
    (made / "tokenizer.json").write_text('{"model": {"vocab": {}}}')
    save_file({"w": numpy.zeros(4)}, made / "model.safetensors")
    return made


def dry(
    user: Workspace, checkpoint: Path, *more: object, suite: str = "suite.yaml"
) -> list[object]:
    cluster = user.folder / "cluster.yaml"
    return [
        "run", checkpoint, "--suite", user.folder / suite, "--cluster", cluster, "--dry-run", *more
    ]  # fmt: skip


def refused(user: Workspace, checkpoint: Path, *words: str) -> None:
    before = sorted(user.folder.rglob("*"))
    done = user.call(*dry(user, checkpoint), status=2)
    assert done.stdout == ""
    assert done.stderr.startswith("coordinate-eval: ")
    assert "Traceback" not in done.stderr
    assert not steering(done.stderr)
    assert len(done.stderr) < 2000
    for word in words:
        assert word in done.stderr
    assert sorted(user.folder.rglob("*")) == before


def test_a_name_that_clears_the_screen(user: Workspace, checkpoint: Path) -> None:
    name = f"{CLEAR}{TURNED}"
    hostile = checkpoint.rename(checkpoint.with_name(name))
    shown = user.call(*dry(user, hostile, "--html", user.folder / "page.html"))
    assert not steering(shown.stdout + shown.stderr)
    assert not steering((user.folder / "page.html").read_text())
    shown = user.call(*dry(user, hostile, "--json"))
    assert not steering(shown.stdout)
    assert json.loads(shown.stdout)["checkpoint"]["path"] == str(hostile)
    (hostile / "config.json").unlink()
    refused(user, hostile, "config.json")


# -- a suite is code, and a cluster file plans without it ----------------------------------------

CODE = """\
from pathlib import Path
Path({proof!r}).write_text("ran")
def documents(dataset):
    return dataset
"""


@pytest.fixture
def proof(user: Workspace) -> Path:
    """What the task of the suite `code.yaml` writes if its code is loaded."""
    tasks = user.folder / "tasks"
    tasks.mkdir()
    proof = user.folder / "proof"
    (tasks / "own.py").write_text(CODE.format(proof=str(proof)))
    (tasks / "data.json").write_text('[{"q": "a", "a": "b"}]')
    task = {
        "task": "own", "dataset_path": "json", "test_split": "train",
        "dataset_kwargs": {"data_files": str(tasks / "data.json")},
        "output_type": "generate_until", "doc_to_text": "{{q}}", "doc_to_target": "{{a}}",
    }  # fmt: skip
    text = yaml.safe_dump(task) + "process_docs: !function own.documents\n"
    (tasks / "own.yaml").write_text(text)
    return proof


@pytest.mark.parametrize("more", ["", ", items: 10", ", items: 10, prior: {gpu_seconds: 5}"])
def test_a_plan_on_a_cluster_file_loads_no_task(user: Workspace, proof: Path, more: str) -> None:
    suite = f"include_path: [tasks]\ndatasets: [{{name: own, task: own{more}}}]\n"
    (user.folder / "code.yaml").write_text(suite)
    if more:
        assert "own" in user.call(*dry(user, tiny_model(), suite="code.yaml")).stdout
    else:
        done = user.call(*dry(user, tiny_model(), suite="code.yaml"), status=None)
        assert not proof.exists()
        assert done.returncode == 2
        assert "dataset own" in done.stderr
        assert "`items`" in done.stderr
    assert not proof.exists()
    assert [each.name for each in (user.folder / "cache").iterdir()] == [architectures().name]
