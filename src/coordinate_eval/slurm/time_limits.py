"""Find how long jobs of these settings may run, and who says so.

The limits are those of partitions, accounting and reservations. Those of others count too, such as
for a maintenance: Slurm starts no job whose time limit reaches into them.
"""

import math
import time
from collections.abc import Callable, Iterator, Mapping, Set

from coordinate_eval.clusters.protocol import Job, JobLimits, Window
from coordinate_eval.errors import SettingsRefused, UserError
from coordinate_eval.slurm.answers.limits import Accounting, Longest, longest, read_accounting
from coordinate_eval.slurm.answers.reservations import (
    Reservation,
    clock,
    name_of_user,
    next_window,
    read_reservations,
)
from coordinate_eval.slurm.client import SlurmClient
from coordinate_eval.slurm.places import Places
from coordinate_eval.slurm.scripts import LEAST_MINUTES
from coordinate_eval.slurm.settings import SlurmSettings

KNOWN_SECONDS = 240.0
"""Time for which what partitions and accounting said counts: both are changed rarely."""


class TimeLimits:
    """The time limits of jobs. Reservations are asked each time, all else rarely."""

    def __init__(
        self,
        client: SlurmClient,
        settings: SlurmSettings,
        places: Places,
        clock: Callable[[], float] = lambda: time.monotonic(),
    ) -> None:
        self._client = client
        self._settings = settings
        self._places = places
        self._accounting: Accounting | None = None
        self._clock, self._since = clock, clock()

    def read(self) -> JobLimits:
        """Return all limits.

        Raises:
            UserError: only jobs that are too short for any work are allowed.
            PlaceGone: the reservation of the settings is not there for this user.
        """
        if self._clock() - self._since >= KNOWN_SECONDS:
            self._places.forget()
            self._accounting, self._since = None, self._clock()
        gpu, cpu = self._longest(gpu_work=True), self._longest(gpu_work=False)
        for limit in (gpu, cpu):
            if limit.minutes < LEAST_MINUTES:
                raise UserError(
                    f"{limit.why} allows jobs of {limit.minutes:g} minutes, in which no job of a "
                    "run does any work: choose another partition, account or QOS"
                )
        reservation = self._places.reservation()
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

    def check(self, job: Job) -> None:
        """Refuse a job that Slurm would leave pending for ever.

        Jobs are made within the limits, which may have been lowered since. A QOS may allow more
        than the partition, which only sbatch knows.

        Raises:
            SettingsRefused: the job asks for more than is allowed.
        """
        limit = self._longest(gpu_work=job.in_gpu_partition)
        if job.minutes > limit.minutes and not self._settings.of(job.in_gpu_partition).qos:
            raise SettingsRefused(
                f"{limit.why} allows jobs of {limit.minutes:g} minutes, and {job.name} asks for "
                f"{job.minutes}: a new run keeps to that, or choose another partition or QOS"
            )

    def _longest(self, *, gpu_work: bool) -> Longest:
        """Return the longest time limit of a job."""
        chosen = self._settings.of(gpu_work)
        partitions = self._places.existing(chosen.partition)
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
        """Return the nodes of those reservations that leave nothing of them to these jobs."""
        text = self._client.answer("scontrol", "--oneliner", "show", "reservation")
        return {
            each: self._places.hosts(each.nodes)
            for each in read_reservations(text or "")
            if each.whole and each.end > now and each.name != self._settings.reservation
        }

    def _usable_nodes(self, own: Reservation | None, *, gpu_work: bool) -> frozenset[str]:
        """Return the nodes on which jobs may run, now or later."""
        chosen = self._settings.of(gpu_work)
        partitions = self._places.existing(chosen.partition)
        nodes = self._places.hosts(",".join(each.nodes for each in partitions if each.nodes))
        if own is not None and chosen.reservation:
            nodes &= self._places.hosts(own.nodes)
        return nodes - self._places.excluded
