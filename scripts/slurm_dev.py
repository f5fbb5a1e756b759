#!/usr/bin/env python3
"""A real Slurm cluster of several nodes on this one machine, for development and tests.

    eval "$(python scripts/slurm_dev.py up)"     # sets SLURM_CONF; `sbatch` and friends work
    python scripts/slurm_dev.py status
    python scripts/slurm_dev.py down

One controller and one slurmd a node, as root, with device files that look like GPUs to Slurm.
Partitions: `low` (default), `high` (its jobs preempt those of `low`, as `--preempt` says), `whole`
(hands out whole nodes). All nodes share this machine's processes, memory and /dev/shm. Everything
lives in one folder, on free ports, so that several clusters can run side by side. Standard library
only.
"""

import argparse
import contextlib
import json
import os
import random
import re
import shlex
import shutil
import signal
import socket
import stat
import subprocess
import sys
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path

import _munge
from _processes import (
    KILL_SECONDS,
    PATIENCE_SECONDS,
    DevClusterError,
    command_line,
    environment_of,
    processes,
    read_pid,
    stop,
    wait_until,
)

PACKAGES = ("slurm-wlm", "slurm-client", "munge")
INSTALL = f"apt-get update && apt-get install -y {' '.join(PACKAGES)}"
_COMMANDS = ("slurmctld", "slurmd", "munged", "munge", "sinfo", "squeue", "scancel")
_SOCKET_PATH = 107
"""Longest path of a Unix socket, in bytes (unix(7))."""

_CONFIG = Path(__file__).with_suffix(".conf")
_NODE = (
    "NodeName={name} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} "
    "CPUs={cpus} {cores}RealMemory=1000000 {gres}State=UNKNOWN"
)


@dataclass(frozen=True)
class Shape:
    """The size that the cluster pretends to have: `nodes`, and GPUs and CPUs on each.

    `gres` is "typed" where Slurm names the type of its GPUs, or "untyped". `preempt` is what
    happens to preempted jobs: "requeue", "cancel" or "suspend". A suspended job keeps its GPUs and
    memory, so jobs are suspended for their cores alone. `threads` are the CPUs of each core.
    `first_job` is the number of the first job: programs that make ports of it get others than those
    of a second cluster.
    """

    nodes: int = 4
    gpus: int = 8
    cpus: int = 128
    gres: str = "typed"
    preempt: str = "requeue"
    threads: int = 1
    first_job: int = 1

    @property
    def gpu(self) -> str:
        """Return a GPU in the notation of GRES."""
        return "gpu:h200" if self.gres == "typed" else "gpu"

    def names(self) -> list[str]:
        """Return the names of the nodes: node1, node2 …"""
        return [f"node{number}" for number in range(1, self.nodes + 1)]


@dataclass(frozen=True)
class DevCluster:
    """One cluster, which is its folder: another process may take it over at any time."""

    dir: Path
    shape: Shape = field(default_factory=Shape)

    @property
    def conf(self) -> Path:
        """Return the value of SLURM_CONF."""
        return self.dir / "slurm.conf"

    def up(self) -> None:
        """Start what does not run yet and wait until every node has answered.

        Raises:
            DevClusterError: not root, packages missing, or a daemon does not come up.
        """
        _check_machine(self.dir, self.shape.names()[-1])
        if self.dir.exists() and not any(map(self._pid, self._daemons())):
            self.down()  # an earlier cluster, no part of which runs
        with _munge.shared():  # nor does another cluster choose ports before these are in use
            if not self.dir.exists():
                self._make_folder()
            elif json.loads((self.dir / "shape.json").read_text()) != asdict(self.shape):
                raise DevClusterError(f"{self.dir} is up with another shape: run `down` first")
            if _munge.start():
                (self.dir / "run" / "started-munged").touch()
            self.start_controller()
            for name in self.shape.names():
                self.start_node(name)
        self._await_nodes()

    def down(self) -> None:
        """End all jobs, stop what `up` started, remove the folder. Nothing there: nothing done.

        Raises:
            DevClusterError: the folder is not a cluster of this script.
        """
        if not self.dir.exists():
            return
        if any(self.dir.iterdir()) and not (self.dir / "shape.json").exists():
            raise DevClusterError(f"{self.dir} was not made by this script: left as it is")
        if self._pid("slurmctld"):
            self._cancel_jobs()
        self.stop_controller()
        for path in (self.dir / "run").glob("slurmd.*.pid"):
            stop(self._pid(path.stem), signal.SIGTERM)
        for pid in _job_processes(self.conf):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if (self.dir / "run" / "started-munged").exists():
            with _munge.shared():
                _munge.stop_unless_needed()
        shutil.rmtree(self.dir)

    def status(self) -> dict[str, bool]:
        """Return each daemon of the cluster and whether its process runs."""
        return {daemon: self._pid(daemon) is not None for daemon in self._daemons()}

    def start_controller(self) -> None:
        """Start slurmctld, unless it runs, and wait until it answers."""
        if self._pid("slurmctld") is None:
            self._command("slurmctld")
        wait_until(
            lambda: bool(self._command("scontrol", "ping")), f"slurmctld: see {self.dir}/log"
        )

    def stop_controller(self) -> None:
        """Stop slurmctld; jobs go on, clients get no answer."""
        stop(self._pid("slurmctld"), signal.SIGTERM)

    def start_node(self, name: str) -> None:
        """Start the slurmd of a node, unless it runs."""
        if self._pid(f"slurmd.{name}") is None:
            self._command("slurmd", "-N", name)

    def kill_node(self, name: str) -> None:
        """Kill the slurmd of a node, as when a node is lost; its jobs' processes go on."""
        stop(self._pid(f"slurmd.{name}"), signal.SIGKILL)

    def lose_node(self, name: str) -> None:
        """End a node with all that runs on it; Slurm is told, as by a health check.

        It hears of the node before it could of what ends there, and calls it a failure of the node.
        """
        self.kill_node(name)
        own = [
            p for p in _job_processes(self.conf) if f"SLURMD_NODENAME={name}" in environment_of(p)
        ]
        self._command("scontrol", "update", f"nodename={name}", "state=down", "reason=lost")
        for pid in {*own, *filter(None, map(_step_daemon_of, own))}:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def _daemons(self) -> list[str]:
        return ["slurmctld", *(f"slurmd.{name}" for name in self.shape.names())]

    def _pid(self, daemon: str) -> int | None:
        """Return the process of `slurmctld` or `slurmd.NODE`, if the pid file still tells it."""
        pid = read_pid(self.dir / "run" / f"{daemon}.pid")
        if pid is None or daemon.split(".")[0] not in command_line(pid):
            return None
        return pid if f"SLURM_CONF={self.conf}" in environment_of(pid) else None

    def _make_folder(self) -> None:
        """Make a fresh folder; what an earlier cluster left, no part of which runs, is removed."""
        if self.dir.exists():
            self.down()
        self.dir.mkdir(mode=0o700, parents=True)
        (self.dir / "shape.json").write_text(json.dumps(asdict(self.shape)))
        for name in ("state", "run", "log", "dev"):
            (self.dir / name).mkdir()
        for name in self.shape.names():
            (self.dir / "spool" / name).mkdir(parents=True)
        for number in range(self.shape.gpus):
            # Slurm wants a device file for each GPU; this one is another /dev/null.
            path = self.dir / "dev" / f"gpu{number}"
            os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(1, 3))
        kind = "Type=h200 " if self.shape.gres == "typed" else ""
        gres = f"Name=gpu {kind}File={self.dir}/dev/gpu[0-{self.shape.gpus - 1}]\n"
        (self.dir / "gres.conf").write_text(gres if self.shape.gpus else "")
        self.conf.write_text(_configuration(self.dir, self.shape))

    def _command(self, *argv: str) -> str:
        environment = {**_own_environment(), "SLURM_CONF": str(self.conf)}
        try:
            done = subprocess.run(
                argv,
                env=environment,
                capture_output=True,
                text=True,
                timeout=PATIENCE_SECONDS,
                check=True,
            )
        except subprocess.SubprocessError as error:
            words = getattr(error, "stderr", None) or ""
            raise DevClusterError(f"{shlex.join(argv)} failed: {error} {words}") from error
        return done.stdout

    def _await_nodes(self) -> None:
        def ready() -> bool:
            states = self._command("sinfo", "-h", "-N", "-p", "low", "-o", "%T").split()
            return not any(re.match(r"down|unk|.*\*", state) for state in states)

        wait_until(ready, f"nodes stay away: see {self.dir}/log")

    def _cancel_jobs(self) -> None:
        """Cancel every job and give programs the time that Slurm gives them to end well."""
        with contextlib.suppress(DevClusterError):
            jobs = self._command("squeue", "-h", "-a", "-o", "%A").split()
            if jobs:
                self._command("scancel", "--full", *jobs)
                wait_until(
                    lambda: not self._command("squeue", "-h", "-a").strip(), "", KILL_SECONDS
                )


def _configuration(folder: Path, shape: Shape) -> str:
    """Return the text of slurm.conf."""
    version = subprocess.run(["slurmctld", "-V"], capture_output=True, text=True, check=True).stdout
    numbers = re.search(r"(\d+)\.(\d+)", version)
    if numbers is None:
        raise DevClusterError(f"slurmctld -V says {version!r}, which holds no version")
    # The setting moved in 23.02.
    old = (int(numbers[1]), int(numbers[2])) < (23, 2)
    user_signal = "SlurmctldParameters=preempt_send_user_signal"
    host = socket.gethostname().split(".")[0]
    controller_port, *ports = _free_ports(shape.nodes + 1)
    gres = f"Gres={shape.gpu}:{shape.gpus} " if shape.gpus else ""
    # Slurm knows cores only where it is told of threads.
    cores = f"Sockets=1 CoresPerSocket={shape.cpus // shape.threads} "
    cores += f"ThreadsPerCore={shape.threads} "
    node = {"host": host, "cpus": shape.cpus, "cores": cores * (shape.threads > 1), "gres": gres}
    nodes = (
        _NODE.format(name=name, port=port, **node)
        for name, port in zip(shape.names(), ports, strict=True)
    )
    return _CONFIG.read_text().format(
        host=host,
        controller_port=controller_port,
        folder=folder,
        user_signal=user_signal if old else "PreemptParameters=send_user_signal",
        first_job=shape.first_job,
        preempt="SUSPEND,GANG" if shape.preempt == "suspend" else shape.preempt.upper(),
        nodes="\n".join(nodes),
    )


def _free_ports(count: int) -> list[int]:
    """Find ports without listeners, below those of clients and above those of Ray's workers."""
    found: list[int] = []
    # Libraries of the caller may have seeded its random numbers, as in other processes.
    for port in random.SystemRandom().sample(range(20_000, 30_000), 10_000):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            found.append(port)
        if len(found) == count:
            return found
    raise DevClusterError(f"fewer than {count} free ports between 20000 and 30000")


def _check_machine(folder: Path, node: str) -> None:
    if os.geteuid() != 0:
        raise DevClusterError("slurmd and device files need root: run this as root")
    missing = [command for command in _COMMANDS if shutil.which(command) is None]
    if missing:
        raise DevClusterError(
            f"not installed: {', '.join(missing)}. Run as root:\n  {INSTALL}\nor add --install"
        )
    if not re.fullmatch(r"[\w./+-]+", str(folder)):
        raise DevClusterError(f"{folder}: slurm.conf takes no such characters in a path")
    room = _SOCKET_PATH - len(f"/spool/{node}/{node}_1000000.4294967291")
    if len(str(folder)) > room:
        raise DevClusterError(
            f"{folder}: at most {room} characters, since sockets of jobs lie in it: choose a "
            "shorter --dir"
        )


def _own_environment() -> dict[str, str]:
    """Return this environment without what an enclosing Slurm job or cluster left in it."""
    prefixes = ("SLURM", "SBATCH_", "SQUEUE_", "SINFO_", "SCANCEL_")
    return {name: value for name, value in os.environ.items() if not name.startswith(prefixes)}


def _job_processes(conf: Path) -> set[int]:
    """Find this cluster's step daemons, and what runs with the variables of its jobs."""
    found = set()
    for pid in processes():
        environment = environment_of(pid)
        if f"SLURM_CONF={conf}" in environment and (
            command_line(pid).startswith("slurmstepd")
            or any(entry.startswith("SLURM_JOB_ID=") for entry in environment)
        ):
            found.add(pid)
    return found - {os.getpid()}


def _step_daemon_of(pid: int) -> int | None:
    """Return the parent of a process, if it is the daemon of a job's step."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        parent = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        return parent if command_line(parent).startswith("slurmstepd") else None
    return None


def _install() -> None:
    """Install the packages; apt's chatter goes to stderr."""
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for argv in (["apt-get", "update", "-qq"], ["apt-get", "install", "-y", "-qq", *PACKAGES]):
        if subprocess.run(argv, env=environment, stdout=sys.stderr, check=False).returncode != 0:
            raise DevClusterError(f"{shlex.join(argv)} failed: see above")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    for name in ("up", "down", "status"):
        command = commands.add_parser(name)
        folder = Path("/tmp") / f"coordinate-eval-slurm-{os.getuid()}"  # noqa: S108 - owner checked
        command.add_argument("--dir", type=Path, default=folder, help="default: %(default)s")
        if name == "up":
            for option, value in asdict(Shape()).items():
                if isinstance(value, int):
                    name = option.replace("_", "-")
                    command.add_argument(f"--{name}", type=int, default=value)
            command.add_argument("--gres", choices=("typed", "untyped"), default="typed")
            modes = ("requeue", "cancel", "suspend")
            command.add_argument("--preempt", choices=modes, default="requeue")
            command.add_argument("--install", action="store_true", help="install missing packages")
    return parser.parse_args()


def main() -> int:
    """Run the command line, and return its exit status: 2 when this machine lacks something."""
    arguments = _arguments()
    folder = arguments.dir.resolve()
    try:
        if folder.exists() and folder.stat().st_uid != os.getuid():
            raise DevClusterError(f"{folder} belongs to another user: choose another --dir")
        if arguments.command == "down":
            DevCluster(folder).down()
        elif arguments.command == "status":
            return _print_status(folder)
        else:
            if arguments.install and any(shutil.which(name) is None for name in _COMMANDS):
                _install()
            given = vars(arguments)
            shape = Shape(**{each.name: given[each.name] for each in fields(Shape)})
            cluster = DevCluster(folder, shape)
            cluster.up()
            print(f"export SLURM_CONF={shlex.quote(str(cluster.conf))}")
    except DevClusterError as error:
        print(f"slurm_dev: {error}", file=sys.stderr)
        return 2
    return 0


def _print_status(folder: Path) -> int:
    try:
        shape = Shape(**json.loads((folder / "shape.json").read_text()))
    except OSError:
        print(f"{folder}: no cluster")
        return 1
    for daemon, runs in (status := DevCluster(folder, shape).status()).items():
        print(f"{daemon:12} {'runs' if runs else 'stopped'}")
    return 0 if all(status.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
