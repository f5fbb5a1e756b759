"""Print nodes or tasks as pyslurm has them: `python -m coordinate_eval.slurm.pyslurm_child nodes`.

In a process of its own: pyslurm ends a process that imports it where Slurm has no configuration,
changes how that process loads other libraries, and waits for the controller as long as it likes.
Nothing but pyslurm is imported, so that the process starts fast.
"""

import json
import os
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

_HOLDING = {"RUNNING", "COMPLETING", "CONFIGURING", "SUSPENDED"}
"""States of a job that has its GPUs."""


def nodes(pyslurm: Any) -> list[dict[str, str]]:  # noqa: ANN401 - it ships no types
    """Return the fields of all nodes, by their names in `scontrol show nodes`.

    Raises:
        PermissionError: The user sees no jobs of others, and so not which GPUs they have.
    """
    if "jobs" in pyslurm.slurmctld.Config.load().private_data:
        raise PermissionError("PrivateData=jobs hides which GPUs other users' jobs have")
    found = pyslurm.Nodes.load()
    # Asked for afterwards: what starts in between is counted. The nodes themselves know how many
    # GPUs are in use only where accounting does.
    used: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for job in pyslurm.Jobs.load().values():
        if job.state in _HOLDING:
            for name, share in job.get_resource_layout_per_node().items():
                used[name].update(_counts(share["gres"]))
    return [
        {
            "NodeName": node.name,
            "State": node.state,
            "Reason": node.reason or "",
            "AvailableFeatures": ",".join(node.available_features or []),
            "ActiveFeatures": ",".join(node.active_features or []),
            "Gres": _gres(_counts(node.configured_gres)),
            "GresUsed": _gres(used[node.name]),
            "CPUTot": str(node.total_cpus),
            "Sockets": str(getattr(node, "sockets", 0) or 0),
            "CoresPerSocket": str(getattr(node, "cores_per_socket", 0) or 0),
            "ThreadsPerCore": str(getattr(node, "threads_per_core", 0) or 0),
            "CPUEfctv": str(node.effective_cpus or 0),
            "CPUAlloc": str(node.allocated_cpus or 0),
            "RealMemory": str(node.real_memory or 0),
            "MemSpecLimit": str(node.memory_reserved_for_system or 0),
            "AllocMem": str(node.allocated_memory or 0),
            "Partitions": ",".join(node.partitions or []),
            "Owner": node.owner or "",
        }
        for node in found.values()
    ]


def tasks(pyslurm: Any) -> list[list[str]]:  # noqa: ANN401 - it ships no types
    """Return id, state, reason, node and job name of each of this user's tasks, as squeue does."""
    return [
        [task, job.state, job.state_reason or "None", job.allocated_nodes or "", job.name or ""]
        for job in pyslurm.Jobs.load().values()
        if job.user_id == os.getuid() and not job.heterogeneous_id
        for task in _tasks_of(job)
    ]


def _counts(gres: Mapping[str, Any]) -> dict[str, int]:
    """Return counts alone: what is in use is listed with its indices."""
    return {kind: n["count"] if isinstance(n, dict) else n for kind, n in gres.items()}


def _gres(counts: Mapping[str, int]) -> str:
    return ",".join(f"{kind}:{count}" for kind, count in counts.items())


def _tasks_of(job: Any) -> Iterator[str]:  # noqa: ANN401 - it ships no types
    """Yield the id of a job, or the ids of the tasks of an array that it stands for."""
    if not job.array_id:
        yield str(job.id)
    elif job.array_tasks_waiting:
        for part in job.array_tasks_waiting.split(","):
            span, _, step = part.partition(":")
            first, _, last = span.partition("-")
            for index in range(int(first), int(last or first) + 1, int(step or 1)):
                yield f"{job.array_id}_{index}"
    else:
        yield f"{job.array_id}_{job.array_task_id or 0}"  # index 0 is None


def main() -> None:
    """Answer one question. An error is one line, and exit status 1."""
    # Else long lists of tasks end in dots. Read by Slurm's library.
    os.environ["SLURM_BITSTR_LEN"] = "0"
    try:
        import pyslurm

        answer = {"nodes": nodes, "tasks": tasks}[sys.argv[1]](pyslurm)
    except Exception as error:
        sys.exit(f"{type(error).__name__}: {error}")
    print(json.dumps(answer))


if __name__ == "__main__":
    main()
