"""The scheduler's answers: its version, its queues, and the GPUs that runs could get."""

import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path

from coordinate_eval._format import duration, plural
from coordinate_eval._gpus import memory_gib
from coordinate_eval.clusters.protocol import Busy, Cluster, JobLimits, Node
from coordinate_eval.coordinator.doctor.findings import Finding, failure, ok, warning
from coordinate_eval.coordinator.inputs import cluster_file
from coordinate_eval.errors import ClusterSilent, CoordinateError

SOON_SECONDS = 86_400.0
"""Time before a window within which it is warned of: jobs may be as long."""

_REASONS = 4
"""Reasons of busy nodes that are named, the commonest first."""


def of_cluster(cluster: Cluster) -> Iterator[Finding]:
    """Ask a scheduler that jobs are submitted to."""
    try:
        with cluster:
            for check, said in cluster.about().items():
                yield ok(check, said)
            yield from of_nodes(*cluster.nodes())
            yield from of_limits(cluster.limits())
            if cluster.whole_nodes():
                yield ok("whole nodes", "one job a node runs its keeper and its trials")
    except ClusterSilent as error:
        do = "wait for the scheduler, or have it started: `scontrol ping` or `ray status` asks it"
        yield failure(cluster.name, str(error), do)
    except CoordinateError as error:
        yield failure(cluster.name, str(error), "correct the settings, or ask the administrators")


def of_limits(limits: JobLimits) -> Iterator[Finding]:
    """Return how long jobs may run, where that is limited."""
    for check, minutes, why in (
        ("time limit of jobs with GPUs", limits.gpu_minutes, limits.gpu_why),
        ("time limit of other jobs", limits.cpu_minutes, limits.cpu_why),
    ):
        if minutes is not None:
            yield ok(check, f"{minutes} minutes: {why}")
    yield from _of_windows(limits, time.time())


def _of_windows(limits: JobLimits, now: float) -> Iterator[Finding]:
    """Return when all nodes are next reserved, such as for a maintenance."""
    gpu, cpu = limits.gpu_window, limits.cpu_window
    for check, window in (
        ("maintenance", gpu),
        ("maintenance of nodes for other jobs", None if cpu == gpu else cpu),
    ):
        if window is None or window.start <= now:
            continue
        found = f"{window.why} takes all nodes in {duration(window.start - now)}"
        if window.start - now > SOON_SECONDS:
            yield ok(check, found)
            continue
        before = window.minutes_before(now)
        do = (
            "jobs that do not end before wait until it is over"
            if before is None
            else f"nothing has to be done: until then jobs of runs ask for at most {before} minutes"
        )
        yield warning(check, found, do)


def of_file(path: Path) -> Finding:
    """Look at a cluster file, which only plans need."""
    try:
        described = cluster_file.load(path)
    except CoordinateError as error:
        return failure("cluster", str(error), "correct the file")
    nodes = plural(len(described.nodes), "node")
    return ok("cluster", f"{path} describes {nodes}: plans can be made, and nothing be submitted")


def of_nodes(free: Sequence[Node], busy: Sequence[Busy]) -> Iterator[Finding]:
    """Return what the list of nodes means for runs."""
    wanted = [each for each in busy if not each.excluded]
    if not free and not wanted:
        why = "; ".join(reasons(busy)) or "the scheduler lists no node with GPUs"
        yield failure(
            "GPUs",
            f"no node could ever take a trial: {why}",
            "choose another partition or constraint, or have GPUs configured: as GRES `gpu` in "
            "Slurm, with `ray start --num-gpus` in Ray",
        )
        return
    kinds: dict[str, list[Node]] = defaultdict(list)
    for node in free:
        kinds[node.gpu_type].append(node)
    for kind, nodes in sorted(kinds.items()):
        yield _of_kind(kind, nodes)
    if not free:
        yield ok("GPUs", "none is free now; a run with --queue waits for one")
    if busy:
        yield ok("other nodes", "; ".join(reasons(busy)))


def _of_kind(kind: str, nodes: Sequence[Node]) -> Finding:
    """Return what is free of one type of GPU."""
    gpus = sum(node.free_gpus for node in nodes)
    memory = nodes[0].gpu_memory_gib or memory_gib(kind)
    found = f"{gpus} free on {plural(len(nodes), 'node')}"
    check = f"GPUs {kind}" if kind else "GPUs"
    if memory:
        return ok(check, f"{found}, {memory:.0f} GiB each")
    unknown = "their memory is not known" if kind else "the scheduler names no type"
    return warning(
        check,
        f"{found}; {unknown}",
        "no model that needs more than 16 GiB is planned: set gpu_memory_gib, or [slurm] gpu_type, "
        "or have types configured (in Slurm `Gres=gpu:h100:8`, in Ray the resource "
        "accelerator_type:H100)",
    )


def reasons(busy: Sequence[Busy]) -> list[str]:
    """Return the commonest reasons of busy nodes with their numbers."""
    counts = Counter(each.why for each in busy)
    said = [f"{plural(count, 'node')} {why}" for why, count in counts.most_common(_REASONS)]
    others = sum(counts.values()) - sum(count for _, count in counts.most_common(_REASONS))
    return [*said, f"{plural(others, 'other')}"] if others else said
