"""A Ray cluster of several machines as a `Cluster`: KubeRay's, or servers with `ray start`.

Each task is a detached actor that runs a process (`on_node.py`). So jobs outlive the command that
submitted them, and any process of the user can poll and cancel them. A supervisor is such a job;
Ray starts it again when its worker or node is lost.

Ray itself is used by a child process only (`driver.py`), which `Link` starts again when it ends.
"""

import contextlib
import json
import os
import select
import shlex
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any

from pydantic import Field

from coordinate_eval import _files, errors
from coordinate_eval._engines import CACHE_ROOTS
from coordinate_eval._format import brief
from coordinate_eval._launchers import is_for_training
from coordinate_eval._no_telemetry import NO_TELEMETRY
from coordinate_eval.clusters.protocol import Busy, Cluster, Job, Node, ShownJob, TaskStatus
from coordinate_eval.errors import ClusterSilent, CoordinateError
from coordinate_eval.records import Record

_OF_JOBS_BEGIN = (
    "COORDINATE_EVAL_",
    "HF_",
    "HUGGINGFACE_",
    "PYTHON",
    "TRANSFORMERS_",
    "VLLM_",
    "XDG_CACHE_HOME",
)
"""Beginnings of variables that jobs get from the caller. All else they have from their node."""

ANSWER_SECONDS = 300.0
"""Time for one answer: from a busy file system, the import of Ray takes a minute."""

END_SECONDS = 10.0
"""Time for the process to leave Ray when it is no longer needed."""


class RaySettings(Record):
    """The Ray cluster to use."""

    address: str | None = Field(
        default=None,
        pattern=r"^(auto|[A-Za-z0-9_.-]{1,253}:[0-9]{1,5}|\[[0-9A-Fa-f:.]{2,45}\]:[0-9]{1,5})$",
        description="head of the Ray cluster, HOST:PORT, or auto: that of RAY_ADDRESS, as if not "
        "set",
    )


class Link:
    """Calls of `driver.Driver` in a child process.

    Args:
        first: the arguments with which a driver is made.
        command: the argv of the child.
        seconds: time for one answer.
    """

    def __init__(
        self,
        first: Mapping[str, Any],
        command: tuple[str, ...] = (
            sys.executable, "-P", "-m", "coordinate_eval.clusters.ray.driver",
        ),
        seconds: float = ANSWER_SECONDS,
    ) -> None:  # fmt: skip
        self._first, self._command, self._seconds = first, command, seconds
        self._child: subprocess.Popen[bytes] | None = None
        self._notices: IO[bytes] | None = None

    def call(self, name: str, **arguments: Any) -> Any:  # noqa: ANN401 - any JSON value
        """Return what the driver's method of this name returns.

        Raises:
            ClusterSilent: no answer. The next call starts another driver.
            CoordinateError: the driver's own error.
        """
        if self._child is None:
            self._start()
            self._ask("connect", self._first)
        return self._ask(name, arguments)

    def close(self) -> None:
        """End the child."""
        if self._child is None or self._notices is None:
            return
        child, self._child = self._child, None
        assert child.stdin is not None and child.stdout is not None
        with contextlib.suppress(OSError):  # it has ended, and did not read all
            child.stdin.close()
        try:
            child.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
        child.stdout.close()
        self._notices.close()

    def _start(self) -> None:
        self._notices = tempfile.TemporaryFile()  # noqa: SIM115 - `close` closes it
        self._child = subprocess.Popen(
            self._command,
            env=os.environ | NO_TELEMETRY,
            cwd="/",
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._notices,
            start_new_session=True,  # Ctrl-C is for the one who supervises
        )

    def _ask(self, name: str, arguments: Mapping[str, Any]) -> Any:  # noqa: ANN401
        try:
            error, value = json.loads(self._answer(json.dumps([name, arguments])))
        except (OSError, ValueError) as problem:
            said = self._last_notice()
            self._end()
            raise ClusterSilent(f"Ray does not answer: {said or problem}") from problem
        if error is None:
            return value
        kind = getattr(errors, error)
        if kind is ClusterSilent or name == "connect":
            self._end()
        assert issubclass(kind, CoordinateError)
        raise kind(value)

    def _answer(self, line: str) -> bytes:
        """Send a line and return the answer.

        Raises:
            OSError: the child has ended, or does not answer in time.
        """
        assert self._child is not None
        assert self._child.stdin is not None and self._child.stdout is not None
        self._child.stdin.write(line.encode() + b"\n")
        self._child.stdin.flush()
        found, end = b"", time.monotonic() + self._seconds
        while not found.endswith(b"\n"):
            ready, _, _ = select.select(
                [self._child.stdout], [], [], max(0.0, end - time.monotonic())
            )
            if not ready:
                raise TimeoutError(f"no answer in {self._seconds:g} s")
            some = os.read(self._child.stdout.fileno(), 1 << 20)
            if not some:
                raise BrokenPipeError("its process has ended")
            found += some
        return found

    def _end(self) -> None:
        """End a child that is of no more use, at once."""
        assert self._child is not None
        self._child.kill()
        self.close()

    def _last_notice(self) -> str:
        """Return the last line that the child wrote to its standard error."""
        assert self._notices is not None
        self._notices.seek(max(0, self._notices.seek(0, os.SEEK_END) - 4096))
        lines = self._notices.read().decode(errors="replace").strip().splitlines()
        return brief(lines[-1]) if lines else ""


class RayCluster(Cluster):
    """A Ray cluster that others have started.

    Args:
        address: `HOST:PORT` of its head, or `auto`: that of RAY_ADDRESS.
        folders: by setting, the folders that all nodes must share with this machine.
        gpu_memory_gib: memory of a GPU whose type does not tell it, 0 if unknown.
        gpu_type: that of the GPUs to use, empty for any.
    """

    name = "ray"

    def __init__(
        self,
        address: str,
        folders: Mapping[str, Path],
        gpu_memory_gib: float = 0.0,
        gpu_type: str = "",
    ) -> None:
        self._folders = folders
        self._gpus = {"gpu_memory_gib": gpu_memory_gib, "gpu_type": gpu_type}
        self._calls: Counter[str] = Counter()
        self._link = Link({"address": address})

    def __exit__(self, *exc_info: object) -> None:
        """Leave Ray. Jobs go on."""
        self._link.close()

    @property
    def calls(self) -> Mapping[str, int]:
        """Count the calls so far, by name."""
        return self._calls

    def shown(self, job: Job) -> ShownJob:
        """Return the argv of `job`, the number of its tasks, and what each of them asks for."""
        where = f" on {job.node}" if job.node else ""
        what = f"{job.gpus} GPU, {job.cpus} CPU, {job.memory_mib} MiB"
        if job.requeue:
            what = "no resources"
        text = f"{job.count} ×{where} ({what}): {shlex.join(job.command)}"
        return ShownJob(job.name, text, None, text)

    def about(self) -> Mapping[str, str]:
        """Return Ray's version and address, and whether it asks for a token.

        Raises:
            UserError: there is no Ray here, it has another version, or it asks for a token.
        """
        return {"scheduler": self._call("about")}

    def nodes(self) -> tuple[list[Node], list[Busy]]:
        """Return the nodes with free GPUs, and all others that have GPUs with the reason.

        A node where jobs could not work is among the others: one that does not share the folders,
        runs jobs as another user, or lacks this Python. Where no node has GPUs, an entry stands for
        those that an autoscaler may add: they can be waited for if their type is known.
        """
        with _laid_out(self._folders) as files:
            free, busy = self._call("nodes", files=files, **self._gpus)
        return [Node.model_validate(each) for each in free], [
            Busy.model_validate(each) for each in busy
        ]

    def submit(self, job: Job) -> str:
        """Have Ray start the job's tasks when there are resources for them.

        Raises:
            SubmitRefused: its node is gone, or jobs could work on no node.
            ClusterSilent: no answer. The job may exist, with some of its tasks.
        """
        job_id = _files.token()
        Path(job.log).parent.mkdir(exist_ok=True)
        environment = of_job(os.environ, job)
        with _laid_out(self._folders) as files:
            self._call(
                "submit",
                given=job.model_dump(),
                job_id=job_id,
                environment=environment,
                files=files,
            )
        return job_id

    def poll(self, prefix: str) -> list[TaskStatus]:
        """Return this user's tasks whose job name has this prefix, also many that have ended."""
        return [TaskStatus.model_validate(each) for each in self._call("poll", prefix=prefix)]

    def cancel(self, job_ids: list[str]) -> None:
        """End jobs and tasks. Those that have ended are ignored."""
        self._call("cancel", job_ids=job_ids)

    def _call(self, name: str, **arguments: object) -> Any:  # noqa: ANN401 - any JSON value
        self._calls[name] += 1
        return self._link.call(name, **arguments)


def of_job(environ: Mapping[str, str], job: Job) -> dict[str, str]:
    """Return what a job gets from the environment of whoever submits it."""
    return {
        name: value
        for name, value in environ.items()
        if name not in job.without
        and (
            name in job.needs
            or (
                name.startswith(_OF_JOBS_BEGIN)
                and name not in CACHE_ROOTS
                and not is_for_training(name)
            )
        )
    }


@contextlib.contextmanager
def _laid_out(folders: Mapping[str, Path]) -> Iterator[dict[str, tuple[str, str]]]:
    """Write a file with a random text into each folder; yield paths and texts by setting.

    A folder that is missing is not made: the nearest one above it has the file. One that cannot
    be written has none, and whoever needs it says so.
    """
    files: dict[str, tuple[str, str]] = {}
    with contextlib.ExitStack() as made:
        for setting, folder in folders.items():
            place = next(each for each in (folder, *folder.parents) if each.is_dir())
            file, content = place / f".{_files.token()}.tmp", _files.token()
            with contextlib.suppress(OSError), file.open("x") as opened:
                made.callback(file.unlink, missing_ok=True)
                opened.write(content)
                files[setting] = str(file), content
        yield files
