"""A Ray cluster of several nodes on this machine, as others would start it: `ray start`.

Each node has GPUs that are made up. Whoever talks to the cluster needs its token.
"""

import contextlib
import fcntl
import json
import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tests.runs import PATIENCE_SECONDS, lasting_port, until
from tests.tiny import need, shared_folder

GPUS = 1
TYPE = "H100"
CPUS = 5
MEMORY = 400 << 30

HEAD, NODE = "head", "node"
"""Types of nodes for an autoscaler."""

_SLOW = ",".join((
    "ActorTaskSubmitter::SubmitTask=300000:300000",
    "CoreWorkerService.grpc_client.PushTask.OnReplyReceived=1500000:1500000",
))  # fmt: skip
"""Delays in microseconds, as on a busy machine: an actor that is started again hears of that before
its first call of itself is on its way, and its start ends only after that."""

_LISTS = (
    "cluster_synced_files", "initialization_commands", "setup_commands", "head_setup_commands",
    "worker_setup_commands", "head_start_ray_commands", "worker_start_ray_commands",
)  # fmt: skip
"""What the configuration of an autoscaler must have, and these nodes have no use for."""

_OF_AUTOSCALERS = {
    "AUTOSCALER_UPDATE_INTERVAL_S": "1",
    # A machine that has much to do is not in trouble.
    "AUTOSCALER_HEARTBEAT_TIMEOUT_S": str(round(PATIENCE_SECONDS)),
    "PYTHONPATH": str(Path(__file__).parents[1]),
}


class Servers:
    """A head without GPUs, and nodes with some."""

    def __init__(self) -> None:
        need("ray", "ray")
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

    def start_head(self, *, most_nodes: int = 0) -> None:
        """Start the head, and with it an autoscaler that adds up to so many nodes with GPUs."""
        port = self.address.rpartition(":")[2]
        command = _command(
            "--head", "--port", port, "--include-dashboard", "false",
            "--ray-client-server-port", str(lasting_port()), "--temp-dir", str(self.folder),
            "--num-cpus", "3",
        )  # fmt: skip
        if not most_nodes:
            self._start(command)
            return
        config = self.folder / "autoscaling.json"
        config.write_text(json.dumps(_autoscaling(self.address, self.folder, most_nodes)))
        self._start([*command, "--autoscaling-config", str(config)], **_OF_AUTOSCALERS)

    def start_node(self) -> None:
        """Start a node with GPUs."""
        self._start(node_command(self.address))

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

    def _start(self, command: list[str], **environ: str) -> None:
        log = self.folder / f"start-{len(self._started)}.log"
        self._started.append(begun(command, log, self.environ | environ))

    def _processes(self, program: str) -> list[int]:
        return [pid for pid in self._all() if Path(_argv(pid).partition("\0")[0]).name == program]

    def _all(self) -> list[int]:
        return [pid for pid in _pids() if str(self.folder) in _argv(pid)]


def begun(command: list[str], log: Path, environ: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """Start a node with a command, and return its process once it is a part of its cluster.

    Of all tests on this machine one does at a time: two would take each other's ports.
    """
    with (shared_folder() / "starting-ray").open("w") as lock, log.open("wb") as out:
        fcntl.flock(lock, fcntl.LOCK_EX)
        process = subprocess.Popen(
            command,
            env=os.environ | environ,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
        )
        until(
            lambda: b"runtime started" in log.read_bytes() or process.poll() is not None,
            "a node of Ray",
        )
    if process.poll() is not None:
        raise AssertionError(log.read_text())
    return process


def node_command(address: str) -> list[str]:
    """The command that runs a node with GPUs."""
    return _command(
        "--address", address, "--num-cpus", str(CPUS), "--num-gpus", str(GPUS),
        "--resources", f'{{"accelerator_type:{TYPE}": 1}}',
    )  # fmt: skip


def _command(*args: str) -> list[str]:
    return [
        str(Path(sys.executable).with_name("ray")), "start", "--block", "--disable-usage-stats",
        "--object-store-memory", str(80 << 20), "--memory", str(MEMORY), *args,
    ]  # fmt: skip


def _autoscaling(address: str, folder: Path, most_nodes: int) -> dict[str, Any]:
    """An autoscaler's configuration: no node with GPUs until one is needed."""
    resources = {"CPU": CPUS, "GPU": GPUS, "memory": MEMORY, f"accelerator_type:{TYPE}": 1}
    no_more = {"resources": {}, "node_config": {}, "max_workers": 0}
    node = {"resources": resources, "node_config": {}, "max_workers": most_nodes}
    return {
        "cluster_name": "tests",
        "max_workers": most_nodes,
        "idle_timeout_minutes": 0.2,
        "provider": {
            "type": "external",
            "module": "tests.ray_provider.Nodes",
            "use_node_id_as_ip": True,
            "disable_node_updaters": True,
            "disable_launch_config_check": True,
            "address": address,
            "folder": str(folder),
        },
        "head_node_type": HEAD,
        "available_node_types": {HEAD: no_more, NODE: node},
        **{key: {} for key in ("auth", "docker", "file_mounts")},
        **{key: [] for key in _LISTS},
        "file_mounts_sync_continuously": False,
        "upscaling_speed": 1.0,
    }


def _pids() -> Iterator[int]:
    return (int(each.name) for each in Path("/proc").iterdir() if each.name.isdigit())


def _argv(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")
    except OSError:
        return ""
