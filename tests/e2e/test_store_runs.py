"""A checkpoint in a store with S3's protocol is scored as its folder is."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.answered import ENGINE, assert_answered
from tests.runs import Workspace, lasting_port
from tests.tiny import sharded, tiny_model

DATASETS = ("tiny_choice", "tiny_talk")
SECRET = "a-secret-of-the-user"


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """A server of S3's protocol."""
    pytest.importorskip("s3fs")
    server = pytest.importorskip("moto.server")
    port = lasting_port()
    running = server.ThreadedMotoServer(ip_address="127.0.0.1", port=port, verbose=False)
    running.start()
    yield f"http://127.0.0.1:{port}"
    running.stop()


def test_a_checkpoint_in_a_store_is_scored_as_its_folder(
    user: Workspace, address: str, tmp_path: Path
) -> None:
    key = {"aws_access_key_id": "user", "aws_secret_access_key": SECRET}
    client = pytest.importorskip("boto3").client(
        "s3", endpoint_url=address, region_name="us-east-1", **key
    )
    client.create_bucket(Bucket="bucket")
    folder = sharded(Path(shutil.copytree(tiny_model(), tmp_path / "step 1000")))
    for file in folder.iterdir():
        client.upload_file(str(file), "bucket", f"run's/{folder.name}/{file.name}")
    environ = {f"AWS_{name[4:].upper()}": value for name, value in key.items()}
    environ |= {"AWS_ENDPOINT_URL": address, "AWS_DEFAULT_REGION": "us-east-1"}
    url, run = f"s3://bucket/run's/{folder.name}/", user.folder / "of a store"
    asked = ("run", url, "--suite", user.suite(*DATASETS), "--run-dir", run)
    user.call(*asked, *ENGINE, status=0, **environ)

    assert_answered(run, DATASETS, tiny_model())
    record = json.loads((run / "run.json").read_text())["checkpoint"]
    assert record["path"] == url.rstrip("/")
    assert list(user.memory.iterdir()) == []
    for file in run.rglob("*"):
        assert not file.is_file() or SECRET.encode() not in file.read_bytes(), file
