"""Find what the settings name on a cluster: partitions, nodes and a reservation of Slurm."""

import time
from functools import cached_property

from coordinate_eval.clusters.protocol import Job
from coordinate_eval.errors import (
    ClusterError,
    ClusterSilent,
    PlaceGone,
    SettingsRefused,
    UserError,
)
from coordinate_eval.slurm.answers.partitions import (
    ClusterConfig,
    MemoryLimits,
    Partition,
    read_config,
    read_partitions,
)
from coordinate_eval.slurm.answers.reservations import (
    Reservation,
    of_this_user,
    read_reservation,
)
from coordinate_eval.slurm.client import SlurmClient
from coordinate_eval.slurm.settings import SlurmSettings


class Places:
    """The places in which jobs of these settings may run.

    Partitions are asked for once, and so is what the cluster says of itself.
    Every method raises `ClusterSilent` if Slurm does not answer.
    """

    def __init__(self, client: SlurmClient, settings: SlurmSettings) -> None:
        self._client = client
        self._settings = settings
        self._partitions: dict[str, Partition] = {}
        self._config: ClusterConfig | None = None

    def hosts(self, names: str) -> frozenset[str]:
        """Return the names in a host list. This command asks no controller."""
        if not names:
            return frozenset()
        return frozenset(self._client.run("scontrol", "show", "hostnames", names).split())

    @cached_property
    def excluded(self) -> frozenset[str]:
        """Return the nodes that the settings exclude from all jobs."""
        return self.hosts(self._settings.exclude)

    def reservation(self) -> Reservation | None:
        """Return the reservation of the settings as it is now, None if they name none.

        Raises:
            PlaceGone: it is not there for this user.
        """
        name = self._settings.reservation
        if not name:
            return None
        try:
            text = self._client.run("scontrol", "--oneliner", "show", "reservation", name)
        except ClusterSilent:
            raise
        except ClusterError as error:
            if "not found" not in str(error):
                raise
            text = ""
        try:
            return of_this_user(read_reservation(text, name), time.time())
        except ValueError as error:
            raise PlaceGone(
                f"reservation {name} {error}: correct --reservation or [slurm] reservation; "
                "`scontrol show reservation` lists those that there are"
            ) from error

    def named(self, setting: str) -> list[Partition]:
        """Return the partitions in a setting: names separated by commas, or '' for the default.

        Raises:
            UserError: one does not exist, or none takes jobs now.
        """
        known = self._known_partitions()
        unknown = [name for name in setting.split(",") if name not in known]
        if setting and unknown:
            raise UserError(f"Slurm has no partition {unknown[0]!r}: {self._advice()}")
        found = self.existing(setting)
        if not found:
            raise UserError(f"Slurm has no default partition: {self._advice()}")
        if all(partition.state not in ("UP", "DOWN") for partition in found):
            self.forget()
            states = ", ".join(f"{p.name} is {p.state}" for p in found)
            raise UserError(f"Slurm takes no jobs now: partition {states}; try again later")
        return found

    def existing(self, setting: str) -> list[Partition]:
        """Return those partitions in a setting that exist."""
        known, wanted = self._known_partitions(), setting.split(",")
        return [p for p in known.values() if (p.name in wanted if setting else p.default)]

    def forget(self) -> None:
        """Ask for partitions again when they are needed: one that is down may be up by then."""
        self._partitions = {}

    def take_whole_nodes(self) -> bool:
        """Return whether jobs with GPUs get whole nodes: by `extra_args`, partition or cluster.

        Raises:
            UserError: the partition does not exist, or takes no jobs now.
        """
        settings = self._settings
        # `--exclusive=user` and the like share a node among jobs of one user.
        if any(option.strip() == "--exclusive" for option in settings.extra_args):
            return True
        partitions = self.named(settings.partition)
        if any(partition.whole for partition in partitions):
            return True
        return not all(partition.shared for partition in partitions) and self._known_config().linear

    def memory_limits(self, setting: str) -> MemoryLimits:
        """Return the limits on the memory of jobs in the partitions of a setting.

        Of several partitions the strictest ones count, but a job that is too large for one of them
        may run in another.
        """
        cluster = self._known_config().memory
        each = [partition.memory.within(cluster) for partition in self.existing(setting)]
        most = [limits.most_per_node for limits in each]
        return MemoryLimits(
            most_per_cpu=min((n for m in each if (n := m.most_per_cpu)), default=0),
            most_per_node=max(most) if most and all(most) else 0,
            default_per_cpu=max((m.default_per_cpu for m in each), default=0),
        )

    def check_memory(self, job: Job, setting: str) -> None:
        """Refuse a job that Slurm would leave pending for ever, for its memory.

        Raises:
            SettingsRefused: the job asks for more than a node's jobs may have.
        """
        most = self.memory_limits(setting).most_per_node
        if self._settings.memory and most and job.memory_mib > most:
            raise SettingsRefused(
                f"MaxMemPerNode allows jobs of {most:,} MiB in partition {setting or '(default)'}, "
                f"and {job.name} asks for {job.memory_mib:,}: lower [trial] memory_gib, or that of "
                "[harness] if it is a job without GPUs, or choose another partition"
            )

    def _known_config(self) -> ClusterConfig:
        if self._config is None:
            self._config = read_config(self._client.answer("scontrol", "show", "config") or "")
        return self._config

    def _known_partitions(self) -> dict[str, Partition]:
        if not self._partitions:
            text = self._client.run("scontrol", "--all", "--oneliner", "show", "partition")
            self._partitions = read_partitions(text)
        return self._partitions

    def _advice(self) -> str:
        return f"choose one of {', '.join(self._partitions)} with --partition or [slurm] partition"
