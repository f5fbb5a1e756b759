"""While a run is on, no other machine and no other user of this one can use its Ray."""

import contextlib
import ipaddress
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.runs import PATIENCE_SECONDS, Workspace, begun, scores
from tests.tiny import tiny_model

_NOBODY = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups")
_LISTENING, _UNCONNECTED = "0A", "07"

CALLS = (
    "ray.rpc.ActorInfoGcsService/KillActorViaGcs",
    "ray.rpc.CoreWorkerService/Exit",
    "ray.rpc.CoreWorkerService/KillActor",
    "ray.rpc.CoreWorkerService/PushTask",
    "ray.rpc.InternalKVGcsService/InternalKVKeys",
    "ray.rpc.InternalKVGcsService/InternalKVPut",
    "ray.rpc.JobInfoGcsService/AddJob",
    "ray.rpc.NodeInfoGcsService/GetAllNodeInfo",
    "ray.rpc.NodeManagerService/RequestWorkerLease",
    "ray.rpc.NodeManagerService/ShutdownRaylet",
    "ray.rpc.ObjectManagerService/Push",
)
"""Calls of Ray's services that read, run or end something."""

ENDS_RAY = "ray.rpc.syncer.RaySyncer/StartSync"
"""A call whose receiver aborts if it does not say who calls, before it asks for a token."""

ATTACK = """
import grpc, http.client, json, sys, urllib.error, urllib.request
ports, calls, token, pem = json.loads(sys.argv[1])
pem = [text.encode() for text in pem]
headers = [("authorization", f"Bearer {token}")] if token else []
answers = {}
for port in ports:
    where = f"127.0.0.1:{port}"
    with (
        grpc.secure_channel(where, grpc.ssl_channel_credentials(pem[1], *pem))
        if pem
        else grpc.insecure_channel(where)
    ) as channel:
        for call in calls:
            try:
                channel.unary_unary("/" + call)(b"", metadata=headers, timeout=300)
                answers[f"{port} {call}"] = "answered"
            except grpc.RpcError as error:
                answers[f"{port} {call}"] = error.code().name
    for path in "get_runtime_envs_info", "get_or_create_runtime_env", "metrics", "api/jobs/":
        for method in "GET", "POST":
            asked = urllib.request.Request(
                f"http://127.0.0.1:{port}/{path}", method=method, headers=dict(headers)
            )
            try:
                with urllib.request.urlopen(asked, timeout=300) as answer:
                    answers[f"{port} {method} {path}"] = answer.status
            except urllib.error.HTTPError as error:
                answers[f"{port} {method} {path}"] = error.code
            except (OSError, http.client.HTTPException):
                pass  # it speaks another protocol
print(json.dumps(answers))
"""


class Running:
    """A run that is on, until its pause ends, and what its processes listen on."""

    def __init__(self, user: Workspace, name: str) -> None:
        self.run, self.pause = user.folder / name, user.pause(name)
        asked = ("run", tiny_model(), "--suite", user.suite("tiny_sums"), "--run-dir", self.run)
        self.driver = user.start(*asked, *self.pause.args)
        try:
            begun(self.run)
            self.folder = self._folder()
        except AssertionError:
            self.driver.kill()
            raise

    def processes(self) -> list[int]:
        """The driver and all that descend from it."""
        parents = {}
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                try:
                    status = (entry / "stat").read_text()
                except OSError:
                    continue
                parents[int(entry.name)] = int(status.rpartition(")")[2].split()[1])
        found = [self.driver.pid]
        for pid in found:
            found += [child for child, parent in parents.items() if parent == pid]
        return found

    def services(self) -> dict[str, int]:
        """The processes that Ray ends with, by name. Its jobs come and go."""
        found = {}
        for pid in self.processes():
            with contextlib.suppress(OSError):  # it has ended
                program = Path(f"/proc/{pid}/cmdline").read_text().partition("\0")[0]
                if (name := Path(program).name) in ("gcs_server", "raylet"):
                    found[name] = pid
        return found

    def addresses(self) -> list[tuple[Any, int]]:
        """Addresses and ports of every socket of these processes that others can send to."""
        sockets = set()
        for pid in self.processes():
            for link in _links(Path(f"/proc/{pid}/fd")):
                if link.startswith("socket:["):
                    sockets.add(link[len("socket:[") : -1])
        found = []
        for table in ("tcp", "tcp6", "udp", "udp6"):
            for line in Path(f"/proc/{self.driver.pid}/net/{table}").read_text().splitlines()[1:]:
                words = line.split()
                open_to = _LISTENING if table.startswith("tcp") else _UNCONNECTED
                if words[9] in sockets and words[3] == open_to:
                    found.append(_address(words[1]))
        return found

    def _folder(self) -> Path:
        """The folder that holds what is Ray's."""
        for pid in self.services().values():
            for word in Path(f"/proc/{pid}/cmdline").read_text().split("\0"):
                if word.startswith("--session-dir="):
                    return Path(word.partition("=")[2]).parent.parent
        raise AssertionError("no process of Ray")

    def ended(self, status: int) -> None:
        """Wait for the run to end; nothing of its Ray stays."""
        out, err = self.driver.communicate(timeout=PATIENCE_SECONDS)
        assert self.driver.returncode == status, out + err
        assert not self.folder.exists()


def _links(folder: Path) -> Iterator[str]:
    with contextlib.suppress(OSError):  # the process has ended
        for entry in folder.iterdir():
            with contextlib.suppress(OSError):  # it has closed this one
                yield str(entry.readlink())


def _address(text: str) -> tuple[Any, int]:
    """Read an address of /proc/net/tcp and its kin: words of 4 bytes in the machine's order."""
    host, _, port = text.partition(":")
    words = [bytes.fromhex(host[start : start + 8]) for start in range(0, len(host), 8)]
    packed = b"".join(word[::-1] if sys.byteorder == "little" else word for word in words)
    found = ipaddress.ip_address(packed)
    return getattr(found, "ipv4_mapped", None) or found, int(port, 16)


@pytest.fixture(scope="module")
def running(user: Workspace) -> Iterator[Running]:
    made = Running(user, "private")
    yield made
    made.driver.send_signal(signal.SIGINT)
    made.ended(130)


def test_nothing_listens_where_other_machines_are(running: Running) -> None:
    found = running.addresses()
    assert len(found) >= 4, "Ray's services"
    assert [f"{host}:{port}" for host, port in found if not host.is_loopback] == []


def test_others_may_not_enter_the_folder(running: Running) -> None:
    folder = running.folder
    files = [folder / name for name in ("token", "key.pem", "certificate.pem")]
    assert oct(folder.stat().st_mode & 0o777) == "0o700"
    assert {oct(file.stat().st_mode & 0o777) for file in files} == {"0o600"}
    sockets = [path for path in folder.rglob("*") if path.is_socket()]
    assert {path.name for path in sockets} == {"plasma_store", "raylet"}
    if os.getuid() != 0:
        pytest.skip("only root can become another user")
    tries = f"""
import socket
for path in {[str(path) for path in sockets]}:
    try:
        socket.socket(socket.AF_UNIX).connect(path)
        print("connected", path)
    except PermissionError:
        pass
for path in {[str(path) for path in (*files, folder)]}:
    try:
        open(path)
        print("opened", path)
    except PermissionError:
        pass
"""
    done = subprocess.run(
        [*_NOBODY, sys.executable, "-c", tries], capture_output=True, text=True, check=True
    )
    assert done.stdout == ""


def test_the_token_is_nowhere_else(running: Running) -> None:
    folder = running.folder
    token = (folder / "token").read_bytes()
    places = [*folder.rglob("*"), *running.run.rglob("*")]
    places += [Path(f"/proc/{pid}/{name}") for pid in running.processes()
               for name in ("cmdline", "environ")]  # fmt: skip
    seen = []
    for place in places:
        try:
            if place.is_file() and token in place.read_bytes():
                seen.append(place)
        except OSError:
            continue  # gone meanwhile
    assert seen == [folder / "token"]


def answers(running: Running, calls: Sequence[str], token: str, *pem: str) -> list[Any]:
    """What the ports say to another user who makes these calls; requests of HTTP as well.

    `pem` is a key and its certificate.
    """
    pytest.importorskip("grpc")
    ports = sorted({port for _, port in running.addresses()})
    asked = json.dumps([ports, calls, token, pem])
    done = subprocess.run(
        [*(_NOBODY if os.getuid() == 0 else ()), sys.executable, "-c", ATTACK, asked],
        env={"PATH": os.environ["PATH"]},
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=True,
    )
    return list(json.loads(done.stdout).values())


@pytest.mark.parametrize("token", ["", "0" * 64], ids=["no token", "a wrong token"])
def test_no_service_speaks_to_another_user(running: Running, token: str) -> None:
    before = running.services()
    assert before.keys() == {"gcs_server", "raylet"}
    said = answers(running, [*CALLS, ENDS_RAY], token)
    assert set(said) <= {"UNAVAILABLE", 401, 403}
    assert 401 in said or 403 in said, "the service that speaks HTTP"
    assert running.services() == before


def test_a_certificate_does_not_do_without_a_token(running: Running) -> None:
    said = answers(running, CALLS, "0" * 64, *pem(running))
    assert set(said) <= {"UNAUTHENTICATED", "UNIMPLEMENTED", "UNAVAILABLE", 401, 403}
    assert said.count("UNAUTHENTICATED") >= len(CALLS), "each call, by one service at least"


def test_services_answer_the_owner(running: Running) -> None:
    token = (running.folder / "token").read_text()
    call = "ray.rpc.NodeInfoGcsService/GetAllNodeInfo"
    assert "answered" in answers(running, [call], token, *pem(running))


def pem(running: Running) -> list[str]:
    return [(running.folder / name).read_text() for name in ("key.pem", "certificate.pem")]


def test_two_at_once_keep_out_of_each_others_way(user: Workspace, running: Running) -> None:
    other = Running(user, "private too")
    assert not set(other.addresses()) & set(running.addresses())
    assert other.folder != running.folder
    other.pause.end()
    other.ended(0)
    assert scores(other.run)
    assert running.driver.poll() is None
