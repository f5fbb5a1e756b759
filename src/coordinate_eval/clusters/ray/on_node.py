"""Code that runs in Ray's own processes on a cluster's nodes.

Ray carries these classes and functions there as they are, so that its Python needs no package of
this one's: import nothing here but the standard library and Ray.
"""

import contextlib
import os
import signal
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

END_SECONDS = 20.0
"""Time for a cancelled job to clean up, in seconds, for example to remove staged weights."""

MOST_STARTS = 6
"""Starts of a process that shall go on when it is killed: as many as a job on Slurm has."""

PAUSE_SECONDS = 1.0
"""Time before the next start: whoever ends the task may have begun with its process."""

_CONNECTS = ("RAY_AUTH_", "RAY_TLS_", "RAY_USE_TLS")
"""Beginnings of the variables without which a supervisor could not connect to its cluster."""


class Task:
    """A task of a job: an actor that ends with the process that it runs.

    A detached actor is the one thing that Ray keeps when whoever asked for it has ended.
    """

    def __init__(
        self,
        argv: Sequence[str],
        environment: Mapping[str, str],
        without: Sequence[str],
        place: Mapping[str, str],
        minutes: float,
        goes_on: bool,
    ) -> None:
        """Begin.

        `place` has the working folder, the log, the task's id, and the names of the variables for
        that id with the number of the restart, for this node's name, and for the time of the start.
        What `goes_on` is started again if it is killed, as Ray starts its actor again if that is
        lost.
        """
        ray = _ray()
        self._argv, self._place, self._goes_on = list(argv), place, goes_on
        self._end = time.monotonic() + minutes * 60
        self._begun, self._news, self._cancelled = threading.Lock(), threading.Event(), False
        context = ray.get_runtime_context()
        own = {
            name: value
            for name, value in os.environ.items()
            if name not in without and (not name.startswith("RAY_") or name.startswith(_CONNECTS))
        }
        self._environment = {
            **own,
            **environment,
            "RAY_ADDRESS": context.gcs_address,
            place["node variable"]: names_of(ray.nodes()).get(context.get_node_id(), ""),
            place["started variable"]: str(time.time()),
        }
        self._starts = 1 if context.was_current_actor_reconstructed else 0
        context.current_actor.run.remote()

    def run(self) -> None:
        """Run the process until it ends, is cancelled, or has had its time. This ends the actor.

        A process that fails by itself makes Ray say that the actor has failed, but where Ray would
        start that again.

        Ray may ask twice: it takes the news of the actor's own restart for the loss of the call.
        """
        if not self._begun.acquire(blocking=False):
            return
        failed = True
        try:
            failed = self._run()
        finally:
            if failed and not self._goes_on:
                raise SystemExit(1)
            _ray().actor.exit_actor()

    def cancel(self) -> None:
        """Have the process ended."""
        self._cancelled = True
        self._news.set()

    def _run(self) -> bool:
        """Run the process, again if it is killed and shall go on. Return whether it failed."""
        # A run acts on what is in it, and Ray's umask may let everybody write.
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT
        with os.fdopen(os.open(self._place["log"], flags, 0o644), "ab") as out:
            for left in reversed(range(MOST_STARTS if self._goes_on else 1)):
                status = self._run_once(out)
                if status >= 0 or not left:
                    break
                time.sleep(PAUSE_SECONDS)
                if self._is_over():
                    break
                out.write(f"coordinate-eval: ended by signal {-status}, started again\n".encode())
                out.flush()
        return status != 0 and not self._is_over()

    def _is_over(self) -> bool:
        """Return whether the process was cancelled, or has had its time."""
        return self._cancelled or time.monotonic() >= self._end

    def _run_once(self, out: BinaryIO) -> int:
        """Run the process until it ends, or has to. Return its status as subprocess has it."""
        self._news.clear()
        again = int(time.time()) if self._starts else 0
        self._starts += 1
        task = {self._place["task variable"]: f"{self._place['task']}.{again}"}
        job = subprocess.Popen(
            self._argv,
            env=self._environment | task,
            cwd=self._place["folder"],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            process_group=0,
        )
        waiting = threading.Thread(target=self._wait_for, args=(job,), daemon=True)
        waiting.start()
        if not self._is_over():
            self._news.wait(max(0.0, self._end - time.monotonic()))
        if job.poll() is None:
            job.terminate()
            waiting.join(END_SECONDS)
        if job.poll() is None or job.returncode < 0:
            # What it has started, such as an engine's processes, would keep GPUs and locks.
            with contextlib.suppress(OSError):  # it has started nothing
                os.killpg(job.pid, signal.SIGKILL)
            waiting.join(END_SECONDS)  # the kernel may keep one that hangs in a driver
        return job.poll() or 0

    def _wait_for(self, job: subprocess.Popen[bytes]) -> None:
        job.wait()
        self._news.set()


def _ray() -> Any:  # noqa: ANN401 - untyped
    import ray

    return ray


def what_is_missing(files: Mapping[str, tuple[str, str]], program: str, user: int) -> str:
    """Return in words why jobs could not work on this node; empty if they can.

    Args:
        files: by setting, a file that is there where the caller is, and what it contains.
        program: the Python that jobs are started with.
    """
    for setting, (file, content) in files.items():
        found = None
        with contextlib.suppress(OSError, ValueError), Path(file).open() as opened:
            found = opened.read(len(content) + 1)
        if found != content:
            return f"does not share {setting} ({Path(file).parent}) with the machine that calls"
    if os.getuid() != user:
        return f"runs jobs as user {os.getuid()}, and user {user} calls"
    if not os.access(program, os.X_OK):
        return f"has no {program}, which jobs are started with"
    return ""


def names_of(nodes: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Return the names of the nodes that are alive, by Ray's id of each.

    A name is that of its host. If a host has several nodes, the beginning of the id follows.
    """
    alive = [node for node in nodes if node["Alive"]]
    hosts = [node["NodeManagerHostname"] for node in alive]
    return {
        node["NodeID"]: host if hosts.count(host) == 1 else f"{host}-{node['NodeID'][:8]}"
        for node, host in zip(alive, hosts, strict=True)
    }
