"""The nodes and limits of a cluster for a run: its `Offer`, live or from a file."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from coordinate_eval.clusters.protocol import Busy, JobLimits, Node
from coordinate_eval.coordinator.inputs.cluster_file import ClusterFile
from coordinate_eval.coordinator.inputs.settings import Settings
from coordinate_eval.coordinator.planning.costs import LINK_GIGABITS, read_priors
from coordinate_eval.priors.predict import Priors


@dataclass(frozen=True)
class Offer:
    """The nodes and cores that a run can be planned on, and the measurements made there."""

    now: float
    """The time at which the cluster was asked, in seconds since the epoch."""
    cluster: str
    """Name of the scheduler."""
    nodes: Sequence[Node]
    busy: Sequence[Busy]
    metric_cpus: int
    """Cores for all metric jobs together."""
    priors: Priors
    exclusive: bool = False
    """Jobs of the GPU partition take whole nodes."""
    limits: JobLimits = field(default_factory=JobLimits)
    """Time limits of jobs there."""
    described: ClusterFile | None = None
    """The cluster file, where one stands in for a cluster."""

    @property
    def link_gigabits(self) -> float:
        """Return the bandwidth of one node's storage link before any copy was measured."""
        return self.described.storage_gigabits_per_node if self.described else LINK_GIGABITS


def offer_of_file(cluster: str, described: ClusterFile, now: float) -> Offer:
    """Return what a cluster file describes. Measurements made on other clusters do not count."""
    nodes, busy = described.free()
    return Offer(
        now,
        cluster,
        nodes,
        busy,
        metric_cpus=described.cores_for_metrics,
        priors=Priors(),
        described=described,
    )


def offer_of_cluster(
    cluster: str,
    found: tuple[list[Node], list[Busy]],
    settings: Settings,
    now: float,
    *,
    exclusive: bool = False,
    limits: JobLimits | None = None,
) -> Offer:
    """Return what a live cluster has now: its nodes, free and busy, and measurements on it."""
    nodes, busy = found
    return Offer(
        now,
        cluster,
        nodes,
        busy,
        metric_cpus=settings.metrics.cpus,
        priors=read_priors(settings, now),
        exclusive=exclusive,
        limits=limits or JobLimits(),
    )
