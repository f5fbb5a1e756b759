"""Ray's side of a shared cluster: a process that does what lines on its standard input ask for.

Ray ends the process that uses it when its head is gone for a minute. A supervisor must not end
then, so it asks a child process, which may.

A request is a line of JSON, `[name, arguments]`. The reply is `[null, value]`, or
`[name of an error, its text]`. After an error that Ray did not foresee the process ends.
"""

import contextlib
import importlib
import json
import logging
import os
import re
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from coordinate_eval import _gpus
from coordinate_eval.clusters.protocol import (
    ENDS_WITH_PARENT,
    INDEX_VARIABLE,
    NODE_VARIABLE,
    STARTED_VARIABLE,
    TASK_VARIABLE,
    Busy,
    End,
    Job,
    Node,
    State,
    TaskStatus,
    Waits,
)
from coordinate_eval.clusters.ray import on_node
from coordinate_eval.errors import ClusterSilent, CoordinateError, SubmitRefused, UserError

LOOK_SECONDS = 120.0
"""Time in which a node answers whether jobs could work there. A new worker takes seconds."""

REMEMBERED_SECONDS = 600.0
"""Time for which a task that has ended is in answers, with how it ended."""

TYPE = "accelerator_type:"
"""The beginning of the resource that says which GPUs a node has: `accelerator_type:H100`."""

GIB = 2**30

NEW = "new nodes"
"""Stands in the list of nodes for those that an autoscaler may add."""

Files = Mapping[str, tuple[str, str]]

_NAME = r"[0-9a-f]+ \d{1,9} [^\0]+"
"""The id of a job, the index of a task, and the job's name: what an actor's name goes on with."""

_ENDS = {"NODE_DIED": End.NODE_FAILED}
_FAILED = "Worker exits with an exit code 1."
"""Ray's words on an actor whose process has failed: see `on_node.Task`."""

_STATES = {"ALIVE": State.RUNNING, "RESTARTING": State.PENDING, "DEAD": State.ENDED}


class Driver:
    """A connection to a Ray cluster.

    Args:
        address: `HOST:PORT` of the cluster's head, or `auto` for that of `RAY_ADDRESS`.
    """

    def __init__(self, address: str) -> None:
        ray = _import_ray()
        # Without it Ray would take the cluster that any user's process on this machine names.
        if address == "auto" and not (address := os.environ.get("RAY_ADDRESS", "")):
            raise UserError("[ray] address auto needs RAY_ADDRESS: set that, or give HOST:PORT")
        try:
            ray.init(
                address=address,
                namespace=_namespace(),
                log_to_driver=False,
                logging_level=logging.ERROR,
                configure_logging=False,
            )
        except Exception as error:  # Ray raises plain exceptions
            raise _why_not(address, error) from error
        ray.cloudpickle.register_pickle_by_value(on_node)
        self._ray = ray
        # Ray's public functions that tell as much ask its dashboard, which may not be there.
        self._state: Any = importlib.import_module("ray._private.state")
        self._task = ray.remote(on_node.Task)
        self._look = ray.remote(num_cpus=0, max_retries=0)(on_node.what_is_missing)
        self._good: set[str] = set()
        """Nodes where jobs can work, by Ray's id."""

    def about(self) -> str:
        """Return Ray's version, the cluster's address, and whether it asks for a token."""
        address = self._ray.get_runtime_context().gcs_address
        # One that asks for a token does not speak to whoever sends none.
        token = os.environ.get("RAY_AUTH_MODE", "").lower() == "token"
        open_to = "with a token" if token else "without a token: whoever reaches it can run code"
        return f"Ray {self._ray.__version__} at {address}, {open_to}"

    def nodes(
        self, files: Files, gpu_memory_gib: float, gpu_type: str
    ) -> list[list[dict[str, Any]]]:
        """Return the nodes with free GPUs, and all others that have GPUs.

        `files` are such that each node must see, with their content, by setting. GPUs whose type
        does not tell it have the memory given. Where none has GPUs, those that may come with GPUs
        of the type are among the others.
        """
        nodes = self._ray.nodes()
        problems = self._look_at(nodes, files)
        available = self._state.available_resources_per_node()
        free, busy = read_nodes(nodes, available, problems, gpu_memory_gib)
        if not free and not busy:
            from ray.util import accelerators

            types = (each for each in vars(accelerators).values() if isinstance(each, str))
            busy = [to_come(gpu_type, types, gpu_memory_gib)]
        return [[each.model_dump() for each in some] for some in (free, busy)]

    def submit(
        self, given: Mapping[str, Any], job_id: str, environment: Mapping[str, str], files: Files
    ) -> None:
        """Create an actor for each task of a job."""
        job = Job.model_validate(given)
        options = options_of(job) | self._place(job, files)
        for index in range(job.count):
            log = f"{job.log}_{index}.log" if job.count > 1 else f"{job.log}.log"
            place = {
                "folder": job.folder,
                "log": log,
                "task": f"{job_id}_{index}",
                "task variable": TASK_VARIABLE,
                "node variable": NODE_VARIABLE,
                "started variable": STARTED_VARIABLE,
            }
            made = self._task.options(
                name=f"{_prefix()}{job_id} {index} {job.name}",
                lifetime="detached",
                max_concurrency=2,
                **options,
            )
            own = {INDEX_VARIABLE: str(index), **ENDS_WITH_PARENT}
            made.remote(
                job.command, {**environment, **own}, job.without, place, job.minutes, job.requeue
            )

    def poll(self, prefix: str) -> list[dict[str, Any]]:
        """Return the tasks of this user whose job name has this prefix."""
        names = on_node.names_of(self._ray.nodes())
        return [
            status.model_dump()
            for actor in self._actors()
            if (status := read_task(actor, names)).name.startswith(prefix)
        ]

    def cancel(self, job_ids: Sequence[str]) -> None:
        """End jobs and tasks. One that has not begun is withdrawn."""
        ids, told = {*job_ids}, []
        for actor in self._actors():
            status = read_task(actor, {})
            if status.state is State.ENDED or not status.ids & ids:
                continue
            with contextlib.suppress(ValueError):  # it has ended meanwhile
                handle = self._ray.get_actor(actor["Name"])
                if status.state is State.RUNNING:
                    told.append(handle.cancel.remote())
                else:
                    self._ray.kill(handle)
        if told:
            self._ray.wait(told, num_returns=len(told), timeout=LOOK_SECONDS)

    def _actors(self) -> list[dict[str, Any]]:
        """Return Ray's entries of this user's tasks, without those that ended a while ago."""
        since = (time.time() - REMEMBERED_SECONDS) * 1000
        return [
            actor
            for actor in self._state.actors().values()
            if re.fullmatch(f"{_prefix()}{_NAME}", actor["Name"])
            and (actor["State"] != "DEAD" or actor["EndTime"] > since)
        ]

    def _place(self, job: Job, files: Files) -> dict[str, Any]:
        """Return the options that say on which nodes a job may start."""
        nodes = self._ray.nodes()
        names = on_node.names_of(nodes)
        if job.node is not None:
            from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

            found = next((node for node, name in names.items() if name == job.node), None)
            if found is None:
                raise SubmitRefused(f"node {job.node} is not in the Ray cluster now")
            return {"scheduling_strategy": NodeAffinitySchedulingStrategy(found, soft=False)}
        problems = self._look_at(nodes, files)
        if names.keys() <= problems.keys():
            raise SubmitRefused(
                "no node of the Ray cluster can run jobs: "
                + "; ".join(f"{names[node]} {why}" for node, why in sorted(problems.items()))
            )
        avoided = {node for node, name in names.items() if name in job.avoid}
        if job.requeue:  # asks for no core, and shall not burden a head that gives none
            avoided |= {each["NodeID"] for each in nodes if not each["Resources"].get("CPU")}
        without = {*problems} | avoided
        if names.keys() <= without:
            without -= avoided  # better there than never
        options: dict[str, Any] = {}
        if without:
            options["label_selector"] = {"ray.io/node-id": f"!in({','.join(sorted(without))})"}
        if job.gpu_type:
            options["resources"] = {f"{TYPE}{job.gpu_type}": 0.001}
        return options

    def _look_at(self, nodes: Sequence[Mapping[str, Any]], files: Files) -> dict[str, str]:
        """Return why jobs cannot work on nodes, by Ray's id. Those that were good are not asked."""
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        asked = {
            self._look.options(
                scheduling_strategy=NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
            ).remote(files, sys.executable, os.getuid()): node["NodeID"]
            for node in nodes
            if node["Alive"] and node["NodeID"] not in self._good
        }
        if asked:
            handles = list(asked)
            self._ray.wait(handles, num_returns=len(handles), timeout=LOOK_SECONDS)
        found = {}
        for handle, node in asked.items():
            try:
                found[node] = self._ray.get(handle, timeout=0)
            except self._ray.exceptions.RayError as error:
                self._ray.cancel(handle)
                found[node] = f"runs no task of Ray's ({str(error).splitlines()[0]})"
        self._good |= {node for node, why in found.items() if not why}
        return {node: why for node, why in found.items() if why}


def options_of(job: Job) -> dict[str, Any]:
    """Return what Ray sets aside for each task of a job, and how often it starts one again.

    For a job that is started again it sets nothing aside: else a lost one would wait until others
    give back its core. Such an actor hears from Ray that it is being started again. If it hears so
    before its first call of itself, `Task.run`, is on its way, Ray drops that call, unless it may
    try it again.
    """
    if job.requeue:
        return {"num_cpus": 0, "max_restarts": -1, "max_task_retries": -1}
    return {"num_cpus": job.cpus, "num_gpus": job.gpus, "memory": job.memory_mib << 20}


def read_nodes(
    nodes: Sequence[Mapping[str, Any]],
    available: Mapping[str, Mapping[str, float]],
    problems: Mapping[str, str],
    memory_gib: float = 0.0,
) -> tuple[list[Node], list[Busy]]:
    """Return the nodes with a free GPU, and all others that have GPUs with the reason.

    Args:
        nodes: the answer of `ray.nodes()`.
        available: resources that are free now, by Ray's id of a node.
        problems: why no job can work on a node, by its id.
        memory_gib: of a GPU whose type does not tell it.
    """
    names = on_node.names_of(nodes)
    free: list[Node] = []
    busy: list[Busy] = []
    for node in sorted(nodes, key=lambda node: names.get(node["NodeID"], "")):
        found = node["NodeID"]
        has, left = node["Resources"], available.get(found, {})
        gpus = int(has.get("GPU", 0))
        if found not in names or not gpus:
            continue
        kind = gpu_type(has)
        what: dict[str, Any] = {
            "name": names[found],
            "gpus": gpus,
            "gpu_type": kind,
            "gpu_memory_gib": _gpus.memory_gib(kind, memory_gib),
        }
        if found in problems:
            busy.append(Busy(**what, why=problems[found], excluded=True))
        elif left.get("GPU", 0) < 1:
            busy.append(Busy(**what, why=f"{gpus} of {gpus} GPUs in use"))
        else:
            free.append(
                Node(
                    **what,
                    free_gpus=int(left["GPU"]),
                    cpus=int(left.get("CPU", 0)),
                    memory_gib=left.get("memory", 0) / GIB,
                )
            )
    return free, busy


def to_come(wanted: str, known: Iterable[str], memory_gib: float) -> Busy:
    """Return what stands for the nodes that an autoscaler may add to a cluster without GPUs.

    Nobody but the user can know that there is an autoscaler, and which GPUs it has.

    Args:
        wanted: the GPU type that the user asks for, empty for any.
        known: Ray's own names of types: in them case counts.
        memory_gib: of a GPU whose type does not tell it; 0 if that is not known.
    """
    if not wanted:
        why = (
            "if Ray's autoscaler adds some with GPUs, name their --gpu-type, and wait with --queue"
        )
        return Busy(name=NEW, why=why, excluded=True)
    kind = next((each for each in known if each.lower() == wanted.lower()), wanted)
    why = f"not there yet; Ray's autoscaler may add some with {kind}"
    memory = _gpus.memory_gib(kind, memory_gib)
    return Busy(name=NEW, why=why, gpu_type=kind, gpu_memory_gib=memory)


def gpu_type(resources: Mapping[str, float]) -> str:
    """Return the type of a node's GPUs, empty if Ray does not know it."""
    return min((name[len(TYPE) :] for name in resources if name.startswith(TYPE)), default="")


def read_task(actor: Mapping[str, Any], names: Mapping[str, str]) -> TaskStatus:
    """Return an actor as a task. `names` are those of the nodes, by Ray's id."""
    job_id, index, name = actor["Name"].removeprefix(_prefix()).split(" ", 2)
    state = _STATES.get(actor["State"], State.PENDING)
    pending = state is State.PENDING
    return TaskStatus(
        name=name,
        job_id=job_id,
        index=int(index),
        state=state,
        end=_end(actor["DeathCause"]) if state is State.ENDED else End.UNKNOWN,
        reason="waits for resources of the Ray cluster" if pending else "",
        waits=Waits.TURN if pending else Waits.NOTHING,
        node="" if pending else names.get(actor["Address"]["NodeID"], ""),
    )


def _end(cause: Any) -> End:  # noqa: ANN401 - one of Ray's own messages
    """Return how an actor ended, as far as Ray tells."""
    if cause.HasField("oom_context"):
        return End.OUT_OF_MEMORY
    if cause.HasField("actor_unschedulable_context"):
        return End.NODE_FAILED  # it was pinned to a node that is gone
    died = cause.actor_died_error_context
    if _FAILED in died.error_message:
        return End.FAILED
    return _ENDS.get(type(died).Reason.Name(died.reason), End.UNKNOWN)


def _namespace() -> str:
    return f"coordinate-eval-{os.getuid()}"


def _prefix() -> str:
    """Return the beginning of the names of this user's actors. Ray's list has no namespaces."""
    return f"{_namespace()} "


def _import_ray() -> Any:  # noqa: ANN401 - Ray is optional
    try:
        import ray
    except ImportError as error:
        raise UserError("Ray is not installed: pip install 'coordinate-eval[ray]'") from error
    return ray


def _why_not(address: str, error: Exception) -> CoordinateError:
    """Return why there is no connection: what the user has to change, or silence."""
    said = " ".join(str(error).split())
    what = f"[ray] address {address}: {said}"
    if "ersion mismatch" in said:
        return UserError(f"{what}; nodes and this program need the same Ray and the same Python")
    if type(error).__name__ == "AuthenticationError" or isinstance(error, ValueError):
        return UserError(what)
    return ClusterSilent(
        f"{what} (is it the head's address, and does a node of the cluster run on this machine?)"
    )


def serve() -> None:
    """Answer until the end of standard input."""
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # libraries print notices
    driver: Driver | None = None
    for line in sys.stdin:
        name, arguments = json.loads(line)
        unforeseen = False
        try:
            if driver is None:
                driver = Driver(**arguments)
                value = None
            else:
                call: Callable[..., Any] = getattr(driver, name)
                value = call(**arguments)
            reply = [None, value]
        except CoordinateError as error:
            reply = [type(error).__name__, str(error)]
        except Exception as error:  # whatever Ray raises when its head is gone
            unforeseen = True
            reply = [ClusterSilent.__name__, f"{type(error).__name__}: {error}"]
        replies.write(json.dumps(reply) + "\n")
        replies.flush()
        if unforeseen:
            break


if __name__ == "__main__":
    serve()
