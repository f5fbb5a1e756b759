"""A Ray cluster of several nodes on this machine, as others would start it: `ray start`.

Each node has GPUs that are made up. Whoever talks to the cluster needs its token.
"""

import contextlib
import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tests.runs import PATIENCE_SECONDS, lasting_port, until

GPUS = 1
TYPE = "H100"

_SLOW = ",".join((
    "ActorTaskSubmitter::SubmitTask=300000:300000",
    "CoreWorkerService.grpc_client.PushTask.OnReplyReceived=1500000:1500000",
))  # fmt: skip
"""Delays in microseconds, as on a busy machine: an actor that is started again hears of that before
its first call of itself is on its way, and its start ends only after that."""


class Servers:
    """A head without GPUs, and nodes with some."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="ce-rs-", dir="/tmp"))
        self.address = f"127.0.0.1:{lasting_port()}"
        self.environ = {
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": secrets.token_hex(32),
            "RAY_gcs_rpc_server_reconnect_timeout_s": "5",
            "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "1",
            "RAY_testing_asio_delay_us": _SLOW,
        }
        self._started: list[subprocess.Popen[bytes]] = []

    def start_head(self) -> None:
        port = self.address.rpartition(":")[2]
        self._start(
            "--head", "--port", port, "--include-dashboard", "false",
            "--ray-client-server-port", str(lasting_port()), "--temp-dir", str(self.folder),
            "--num-cpus", "3",
        )  # fmt: skip

    def start_node(self) -> None:
        """Start a node with GPUs. Two at once would take each other's ports."""
        self._start(
            "--address", self.address, "--num-cpus", "5", "--num-gpus", str(GPUS),
            "--resources", f'{{"accelerator_type:{TYPE}": 1}}',
        )  # fmt: skip

    def names(self) -> list[str]:
        """The names of the nodes with GPUs: of the host, and the beginning of Ray's id."""
        found = [_argv(pid) for pid in self._processes("raylet")]
        ids = [re.findall(r"--node_id=(\w{8})", argv)[0] for argv in found if TYPE in argv]
        return [f"{socket.gethostname()}-{each}" for each in ids]

    def kill(self, node: str) -> None:
        """End a node at once, by its name: its raylet, and all workers with it."""
        option = f"--node_id={node.rpartition('-')[2]}"
        found = [pid for pid in self._processes("raylet") if option in _argv(pid)]
        assert len(found) == 1, node
        os.kill(found[0], signal.SIGKILL)

    def kill_head(self) -> None:
        """End the head and all nodes at once, as when a machine with the only head is lost."""
        for pid in (*self._processes("gcs_server"), *self._processes("raylet")):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        until(lambda: not self._processes("gcs_server"), "the end of Ray's head")

    def stop(self) -> None:
        for process in self._started:
            process.terminate()
        for process in self._started:
            process.wait(PATIENCE_SECONDS)
        for pid in self._all():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        until(lambda: not self._all(), "the end of Ray")
        shutil.rmtree(self.folder, ignore_errors=True)

    def _start(self, *args: str) -> None:
        log = self.folder / f"start-{len(self._started)}.log"
        with log.open("wb") as out:
            process = subprocess.Popen(
                [
                    str(Path(sys.executable).with_name("ray")), "start", "--block",
                    "--disable-usage-stats", "--object-store-memory", str(80 << 20),
                    "--memory", str(400 << 30), *args,
                ],
                env=os.environ | self.environ,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
            )  # fmt: skip
        self._started.append(process)
        until(
            lambda: b"runtime started" in log.read_bytes() or process.poll() is not None,
            "a node of Ray",
        )
        assert process.poll() is None, log.read_text()

    def _processes(self, program: str) -> list[int]:
        return [pid for pid in self._all() if Path(_argv(pid).partition("\0")[0]).name == program]

    def _all(self) -> list[int]:
        return [pid for pid in _pids() if str(self.folder) in _argv(pid)]


def _pids() -> Iterator[int]:
    return (int(each.name) for each in Path("/proc").iterdir() if each.name.isdigit())


def _argv(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")
    except OSError:
        return ""
