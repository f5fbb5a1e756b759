"""Tests of how Ray is started. Ray itself is a fake."""

import os
import stat
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from coordinate_eval import private_ray
from coordinate_eval._no_telemetry import NO_TELEMETRY
from coordinate_eval.errors import ClusterError, UserError
from coordinate_eval.private_ray import environment_of_jobs, hidden_by_ray, start


class FakeRay(SimpleNamespace):
    """A module `ray` that notes what it was started with."""

    def __init__(self) -> None:
        super().__init__(__version__="2.60.0", util=self, address="127.0.0.1")
        self.environ: dict[str, str] = {}
        self.folder = Path()
        self.token = ""
        self.failures = 0
        self.running = False

    def init(self, **arguments: Any) -> None:
        assert arguments["address"] == "local"
        self.environ, self.folder = dict(os.environ), Path(arguments["_temp_dir"])
        self.token = Path(self.environ["RAY_AUTH_TOKEN_PATH"]).read_text()
        self.folder.mkdir(mode=0o777, exist_ok=True)
        self.folder.chmod(0o777)  # as Ray does
        self.failures -= 1
        if self.failures >= 0:
            raise RuntimeError("no raylet.")
        self.running = True

    def shutdown(self) -> None:
        self.running = False

    def get_node_ip_address(self) -> str:
        return str(self.address)


@pytest.fixture
def ray(monkeypatch: pytest.MonkeyPatch) -> FakeRay:
    made = FakeRay()
    monkeypatch.setitem(sys.modules, "ray", made)
    return made


pytest.importorskip("cryptography")


@pytest.fixture(autouse=True)
def base(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder of temporary files, with a path short enough for sockets."""
    with tempfile.TemporaryDirectory(prefix="t", dir="/tmp") as made:
        monkeypatch.setattr(tempfile, "tempdir", made)
        private_ray._folder.cache_clear()
        yield Path(made)
        private_ray._remove(private_ray._folder())
        private_ray._folder.cache_clear()


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_others_may_not_enter_the_folder_nor_read_the_token(ray: FakeRay, base: Path) -> None:
    before = os.umask(0)
    try:
        start(1, 1)
    finally:
        os.umask(before)
    token = Path(ray.environ["RAY_AUTH_TOKEN_PATH"])
    assert ray.folder.parent == token.parent
    assert token.parent.parent == base
    assert (mode(token.parent), mode(token)) == (0o700, 0o600)
    assert ray.environ["RAY_AUTH_MODE"] == "token"
    assert len(ray.token) == 64
    assert ray.token not in ray.environ.values()
    for name in ("RAY_TLS_SERVER_KEY", "RAY_TLS_SERVER_CERT", "RAY_TLS_CA_CERT"):
        assert Path(ray.environ[name]).parent == token.parent
        assert mode(Path(ray.environ[name])) == 0o600


def test_another_ray_of_the_process_has_the_same_secrets(ray: FakeRay) -> None:
    seen = set()
    for _ in range(2):
        start(1, 1)
        ray.shutdown()
        seen.add((ray.token, Path(ray.environ["RAY_TLS_SERVER_CERT"]).read_bytes()))
    assert len(seen) == 1


def test_what_is_meant_for_another_ray_does_not_count(
    ray: FakeRay, monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs = {
        "RAY_ADDRESS": "192.0.2.9:6379",
        "RAY_AUTH_MODE": "disabled",
        "RAY_AUTH_TOKEN": "theirs",
        "RAY_REDIS_ADDRESS": "192.0.2.9:6380",
        "RAY_USAGE_STATS_ENABLED": "1",
        "https_proxy": "http://proxy.example.org",
    }
    for name, value in theirs.items():
        monkeypatch.setenv(name, value)
    before = dict(os.environ)
    start(1, 1)
    assert "RAY_ADDRESS" not in ray.environ
    assert "RAY_AUTH_TOKEN" not in ray.environ
    assert "RAY_REDIS_ADDRESS" not in ray.environ
    assert ray.environ["RAY_AUTH_MODE"] == "token"
    assert ray.environ["https_proxy"] == "http://127.0.0.1:1"
    assert NO_TELEMETRY.items() <= ray.environ.items()
    assert dict(os.environ) == before


def test_a_job_gets_the_callers_proxies_and_nothing_of_ray(
    ray: FakeRay, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy.example.org")
    monkeypatch.delenv("http_proxy", raising=False)
    monkeypatch.setenv("HF_HOME", "/data/hub")
    start(1, 1)
    environ = environment_of_jobs(ray.environ) | hidden_by_ray()
    assert environ["HTTPS_PROXY"] == "http://proxy.example.org"
    assert environ["HF_HOME"] == "/data/hub"
    assert "http_proxy" not in environ
    assert not [name for name in environ if name.startswith("RAY_")]


def test_a_ray_that_cannot_ask_for_a_token_is_refused(ray: FakeRay) -> None:
    ray.__version__ = "2.51.2"
    with pytest.raises(UserError, match=r"Ray 2\.51\.2 .*pip install 'ray>=2\.52'"):
        start(1, 1)
    assert not ray.running


def test_a_ray_that_other_machines_can_reach_is_stopped(ray: FakeRay) -> None:
    ray.address = "192.0.2.7"
    with pytest.raises(ClusterError, match=r"listened on 192\.0\.2\.7"):
        start(1, 1)
    assert not ray.running
    assert not Path(ray.environ["RAY_AUTH_TOKEN_PATH"]).exists()
    assert not Path(ray.environ["RAY_TLS_SERVER_KEY"]).exists()


def test_a_start_that_fails_is_repeated(ray: FakeRay) -> None:
    ray.failures = 2
    start(1, 1)
    assert ray.running


def test_a_ray_that_does_not_start_leaves_its_logs(ray: FakeRay) -> None:
    ray.failures = 9
    with pytest.raises(ClusterError, match=r"no raylet\..* Its logs are in ") as raised:
        start(1, 1)
    assert str(ray.folder) in str(raised.value)
    assert ray.folder.exists()
    assert not Path(ray.environ["RAY_AUTH_TOKEN_PATH"]).exists()
    assert not Path(ray.environ["RAY_TLS_SERVER_KEY"]).exists()


@pytest.mark.parametrize("flaw", ["long", "open"])
def test_a_folder_of_temporary_files_that_does_not_do_is_not_used(
    ray: FakeRay, base: Path, monkeypatch: pytest.MonkeyPatch, flaw: str
) -> None:
    if flaw == "long":
        unfit = base / "a folder for the temporary files of one job"
        unfit.mkdir()
    else:
        unfit = base
        unfit.chmod(0o777)  # and not sticky: anybody may rename what is in it
    monkeypatch.setattr(tempfile, "tempdir", str(unfit))
    start(1, 1)
    assert ray.folder.parent.parent == Path("/tmp")
