"""Find what the settings name on a cluster, and how long jobs may run there.

That is partitions, nodes and a reservation of Slurm. Limits are those of partitions, accounting and
reservations. Those of others count too, such as for a maintenance: Slurm starts no job whose time
limit reaches into them.
"""

import math
import time
from collections.abc import Callable, Iterator, Mapping, Set
from functools import cached_property

from coordinate_eval.clusters.protocol import Job, JobLimits, Window
from coordinate_eval.errors import (
    ClusterError,
    ClusterSilent,
    PlaceGone,
    SettingsRefused,
    UserError,
)
from coordinate_eval.slurm.answers.limits import Accounting, Longest, longest, read_accounting
from coordinate_eval.slurm.answers.partitions import (
    ClusterConfig,
    MemoryLimits,
    Partition,
    read_config,
    read_partitions,
)
from coordinate_eval.slurm.answers.reservations import (
    Reservation,
    clock,
    name_of_user,
    next_window,
    of_this_user,
    read_reservation,
    read_reservations,
)
from coordinate_eval.slurm.client import SlurmClient
from coordinate_eval.slurm.scripts import LEAST_MINUTES
from coordinate_eval.slurm.settings import SlurmSettings

_HOSTNAMES = ("scontrol", "show", "hostnames")

KNOWN_SECONDS = 240.0
"""Time for which what partitions and accounting said of limits counts: both are changed rarely."""


class Places:
    """The places in which jobs of these settings may run.

    Partitions are asked for once, and so is what the cluster says of itself. Limits are asked for
    again after a while. Every method raises `ClusterSilent` if Slurm does not answer.
    """

    def __init__(
        self,
        client: SlurmClient,
        settings: SlurmSettings,
        passed: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client = client
        self._settings = settings
        self._partitions: dict[str, Partition] = {}
        self._config: ClusterConfig | None = None
        self._accounting: Accounting | None = None
        self._passed, self._since = passed, passed()

    def hosts(self, names: str) -> frozenset[str]:
        """Return the names in a host list. This command asks no controller."""
        return frozenset(self._client.run(*_HOSTNAMES, names).split()) if names else frozenset()

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

    def check(self, job: Job) -> None:
        """Refuse a job that Slurm would leave pending for ever, for its time or its memory.

        Jobs are made within the limits, which may have been lowered since. A QOS may allow more
        time than the partition, which only sbatch knows.

        Raises:
            SettingsRefused: the job asks for more than is allowed.
        """
        chosen = self._settings.of(job.in_gpu_partition)
        limit = self._longest(gpu_work=job.in_gpu_partition)
        if job.minutes > limit.minutes and not chosen.qos:
            raise SettingsRefused(
                f"{limit.why} allows jobs of {limit.minutes:g} minutes, and {job.name} asks for "
                f"{job.minutes}: a new run keeps to that, or choose another partition or QOS"
            )
        most = self.memory_limits(chosen.partition).most_per_node
        if self._settings.memory and most and job.memory_mib > most:
            raise SettingsRefused(
                f"MaxMemPerNode allows jobs of {most:,} MiB in partition "
                f"{chosen.partition or '(default)'}, and {job.name} asks for {job.memory_mib:,}: "
                "lower [trial] memory_gib, or that of [harness] if it is a job without GPUs, or "
                "choose another partition"
            )

    def limits(self) -> JobLimits:
        """Return how long jobs may run.

        Raises:
            UserError: only jobs that are too short for any work are allowed.
            PlaceGone: the reservation of the settings is not there for this user.
        """
        if self._passed() - self._since >= KNOWN_SECONDS:
            self.forget()
            self._accounting, self._since = None, self._passed()
        gpu, cpu = self._longest(gpu_work=True), self._longest(gpu_work=False)
        for limit in (gpu, cpu):
            if limit.minutes < LEAST_MINUTES:
                raise UserError(
                    f"{limit.why} allows jobs of {limit.minutes:g} minutes, in which no job of a "
                    "run does any work: choose another partition, account or QOS"
                )
        reservation = self.reservation()
        gpu_window, cpu_window = self._windows(reservation)
        ends = reservation is not None and math.isfinite(reservation.end)
        return JobLimits(
            gpu_minutes=int(gpu.minutes) if gpu.why else None,
            gpu_why=gpu.why,
            cpu_minutes=int(cpu.minutes) if cpu.why else None,
            cpu_why=cpu.why,
            until=reservation.end if reservation is not None and ends else None,
            until_why=f"reservation {reservation.name} ends" if reservation and ends else "",
            gpu_window=gpu_window,
            cpu_window=cpu_window,
        )

    def _longest(self, *, gpu_work: bool) -> Longest:
        """Return the longest time limit of a job."""
        chosen = self._settings.of(gpu_work)
        partitions = self.existing(chosen.partition)
        return longest(partitions, chosen.account, chosen.qos, self._known_accounting())

    def _known_accounting(self) -> Accounting:
        """Return the limits of accounting. Many clusters have none, and some show users none."""
        if self._accounting is None:
            user = name_of_user()
            asked = "show", "assoc_mgr", "flags=assoc,qos", f"users={user}"
            text = self._client.answer("scontrol", "--oneliner", *asked)
            self._accounting = read_accounting(text or "", user)
        return self._accounting

    def _windows(self, own: Reservation | None) -> Iterator[Window | None]:
        """Yield the next window of jobs with GPUs, then that of all others.

        Each is None where there is none, or Slurm tells nothing. `own` is the reservation of the
        settings.
        """
        now = time.time()
        found = self._reservations_of_others(now)
        for gpu_work in (True, False):
            first = None
            if found:
                first = next_window(found, self._usable_nodes(own, gpu_work=gpu_work), now)
            if first is None:
                yield None
                continue
            times = " to ".join(map(clock, (first.start, first.end)))
            yield Window(start=first.start, why=f"reservation {first.name} ({times})")

    def _reservations_of_others(self, now: float) -> Mapping[Reservation, Set[str]]:
        """Return the nodes of those reservations that leave nothing of them to these jobs.

        One whose nodes cannot be told keeps no job waiting.
        """
        text = self._client.answer("scontrol", "--oneliner", "show", "reservation")
        return {
            each: frozenset((self._client.answer(*_HOSTNAMES, each.nodes) or "").split())
            for each in read_reservations(text or "")
            if each.whole
            and each.nodes
            and each.end > now
            and each.name != self._settings.reservation
        }

    def _usable_nodes(self, own: Reservation | None, *, gpu_work: bool) -> frozenset[str]:
        """Return the nodes on which jobs may run, now or later."""
        chosen = self._settings.of(gpu_work)
        partitions = self.existing(chosen.partition)
        nodes = self.hosts(",".join(each.nodes for each in partitions if each.nodes))
        if own is not None and chosen.reservation:
            nodes &= self.hosts(own.nodes)
        return nodes - self.excluded

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
