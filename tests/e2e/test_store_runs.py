"""Checkpoints in a store with S3's protocol are scored as their folders are."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.answered import ENGINE, assert_answered
from tests.buckets import SECRET, Bucket, bucket
from tests.runs import Workspace
from tests.tiny import sharded, tiny_model

DATASETS = ("tiny_choice", "tiny_talk")


@pytest.fixture
def store() -> Iterator[Bucket]:
    with bucket() as served:
        yield served


def test_a_checkpoint_in_a_store_is_scored_as_its_folder(
    user: Workspace, store: Bucket, tmp_path: Path
) -> None:
    folder = sharded(Path(shutil.copytree(tiny_model(), tmp_path / "step 1000")))
    url, run = store.put(folder, "run's/step 1000"), user.folder / "of a store"
    asked = ("run", f"{url}/", "--suite", user.suite(*DATASETS), "--run-dir", run)
    user.call(*asked, *ENGINE, status=0, **store.environ)

    assert_answered(run, DATASETS, tiny_model())
    record = json.loads((run / "run.json").read_text())["checkpoint"]
    assert record["path"] == url
    assert list(user.memory.iterdir()) == []
    for file in run.rglob("*"):
        assert not file.is_file() or SECRET.encode() not in file.read_bytes(), file


def test_the_average_of_saves_in_a_store_is_scored_and_known_to_watch(
    user: Workspace, store: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MOTO_S3_DEFAULT_MAX_KEYS", "2")  # many pages of few names
    model = Path(shutil.copytree(tiny_model(), tmp_path / "model"))
    weights = tmp_path / "weights"
    weights.mkdir()
    (model / "model.safetensors").rename(weights / "model.safetensors")
    store.put(model, "model")
    store.write("runs/coordinate-eval.yaml", "config: ../model/config.json\ntokenizer: ../model\n")
    urls = [store.put(weights, f"runs/first/step-{step}") for step in (10, 20, 30)]
    asked = ("--suite", user.suite(DATASETS[0]), *ENGINE, "--cluster", "local")
    run = user.folder / "of an average"
    user.call(
        "run", "--average", "last:2", urls[1], *asked, "--run-dir", run, status=0, **store.environ
    )

    assert_answered(run, DATASETS[:1], tiny_model())  # equal weights are their own average
    watched = user.call(
        *("watch", "s3://bucket/runs/first", "--once", "--average", "last:2", "--quiet", "0"),
        *("--dry-run", "--json", *asked),
        status=0,
        **store.environ,
    )
    states = [each["state"] for each in json.loads(watched.stdout)["checkpoints"]]
    waiting = "waiting until fewer runs are alive"
    assert states == ["to be evaluated", waiting, waiting, "complete", waiting]
    told = json.loads(user.call("scores", run, "--json", status=0).stdout)["rows"]
    assert [row["training"] for row in told] == ["s3://bucket/runs/first"]
    told = json.loads(user.call("history", "s3://bucket/runs", "--json", status=0).stdout)
    assert [row["step"] for row in told["rows"]] == [20]
