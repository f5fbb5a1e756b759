"""A Ray cluster of several machines as a `Cluster`: KubeRay's, or servers with `ray start`.

Each task is a detached actor that runs a process (`on_node.py`). So jobs outlive the command that
submitted them, and any process of the user can poll and cancel them. A supervisor is such a job;
Ray starts it again when its worker or node is lost.

Ray itself is used by a child process only (`driver.py`), which may end and be started again.
"""

import contextlib
import os
import shlex
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic import Field

from coordinate_eval import _files
from coordinate_eval._engines import CACHE_ROOTS
from coordinate_eval._launchers import is_for_training
from coordinate_eval.clusters.protocol import Busy, Cluster, Job, Node, ShownJob, TaskStatus
from coordinate_eval.clusters.ray.link import Link
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


class RaySettings(Record):
    """The Ray cluster to use."""

    address: str | None = Field(
        default=None,
        pattern=r"^(auto|[A-Za-z0-9_.-]{1,253}:[0-9]{1,5}|\[[0-9A-Fa-f:.]{2,45}\]:[0-9]{1,5})$",
        description="head of the Ray cluster, HOST:PORT, or auto: that of RAY_ADDRESS, as if not "
        "set",
    )


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
