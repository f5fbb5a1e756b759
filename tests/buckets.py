"""A server of S3's protocol on this machine, with a bucket, for whole runs."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from tests.runs import lasting_port
from tests.tiny import need

SECRET = "a-secret-of-the-user"


class Bucket(NamedTuple):
    """A bucket, and the variables with which the user's tools find it."""

    environ: dict[str, str]
    client: Any

    def put(self, folder: Path, key: str) -> str:
        """Put the files of a folder into the bucket; their URL."""
        for file in folder.iterdir():
            self.client.upload_file(str(file), "bucket", f"{key}/{file.name}")
        return f"s3://bucket/{key}"

    def write(self, key: str, content: str) -> None:
        """Write an object."""
        self.client.put_object(Bucket="bucket", Key=key, Body=content.encode())


@contextlib.contextmanager
def bucket() -> Iterator[Bucket]:
    """Serve an empty bucket."""
    need("s3fs", "remote")
    need("moto", "dev")
    import boto3
    from moto.server import ThreadedMotoServer

    port = lasting_port()
    address = f"http://127.0.0.1:{port}"
    running = ThreadedMotoServer(ip_address="127.0.0.1", port=port, verbose=False)
    running.start()
    try:
        key = {"aws_access_key_id": "user", "aws_secret_access_key": SECRET}
        client = boto3.client("s3", endpoint_url=address, region_name="us-east-1", **key)
        client.create_bucket(Bucket="bucket")
        environ = {name.upper(): value for name, value in key.items()}
        environ |= {"AWS_ENDPOINT_URL": address, "AWS_DEFAULT_REGION": "us-east-1"}
        yield Bucket(environ, client)
    finally:
        running.stop()
