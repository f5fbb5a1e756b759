"""Slurm as a `Cluster`: the command behind each method."""

import contextlib
import math
import os
import pwd
import re
import shutil
import time
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Self

from coordinate_eval.cluster import Busy, Job, JobLimits, Node, ShownJob, TaskStatus
from coordinate_eval.errors import (
    ClusterError,
    ClusterSilent,
    PlaceGone,
    SettingsRefused,
    SubmitRefused,
    UserError,
)
from coordinate_eval.slurm.about import describe
from coordinate_eval.slurm.answers.limits import Accounting, Longest, longest, read_accounting
from coordinate_eval.slurm.answers.nodes import (
    Partition,
    Wanted,
    read_nodes,
    read_partitions,
    read_places,
)
from coordinate_eval.slurm.answers.queue import read_job_id, read_tasks
from coordinate_eval.slurm.answers.refusals import refusal
from coordinate_eval.slurm.answers.reservations import (
    Reservation,
    clock,
    of_this_user,
    read_reservation,
)
from coordinate_eval.slurm.client import SlurmClient
from coordinate_eval.slurm.environment import of_job
from coordinate_eval.slurm.reader import Reader, reader_for
from coordinate_eval.slurm.scripts import LEAST_MINUTES, submission
from coordinate_eval.slurm.settings import SlurmSettings
from coordinate_eval.slurm.shared_queue import SharedQueue
from coordinate_eval.slurm.windows import find_windows

_CONFIGURATIONS = (Path("/etc/slurm/slurm.conf"), Path("/run/slurm/conf/slurm.conf"))
_PROBE_SECONDS = 15.0
_IDS_PER_CANCEL = 500

# Messages of scancel about tasks that have ended or never existed. Some versions exit with 0.
_NOTHING_TO_CANCEL = re.compile(r"invalid job id|already complet", re.IGNORECASE)


class SlurmCluster:
    """Slurm as a `Cluster`. Each method runs one Slurm command, at first a few more.

    Every method that runs a command raises `UserError` if SLURM_CONF names a missing file.

    Args:
        settings: of the site.
        shared: folder in which processes of the user that `look` tell each other what they saw.
    """

    name = "slurm"
    local = False

    def __init__(self, settings: SlurmSettings, shared: Path | None = None) -> None:
        self._settings = settings
        self._shared = shared
        self._partitions: dict[str, Partition] = {}
        self._places: dict[str, frozenset[str]] = {}
        self._accounting: Accounting | None = None

    def __enter__(self) -> Self:
        """Do nothing: Slurm needs no connection."""
        return self

    def __exit__(self, *exc_info: object) -> None:
        """Do nothing: Slurm needs no connection."""

    @cached_property
    def client(self) -> SlurmClient:
        """Return the runner of Slurm's commands."""
        return SlurmClient(self._settings.timeout_seconds)

    @cached_property
    def _reader(self) -> Reader:
        return reader_for(self._settings.reader, self.client)

    @cached_property
    def _queue(self) -> SharedQueue:
        # Slurm sets it in every job; a process outside of one has no other's answer.
        cluster = os.environ.get("SLURM_CLUSTER_NAME", "") if self._shared is not None else ""
        folder = (self._shared or Path()).expanduser()
        return SharedQueue(folder, cluster, lambda: self._reader.tasks())

    @cached_property
    def _excluded(self) -> frozenset[str]:
        """Return the nodes that the settings exclude."""
        return self._names(self._settings.exclude)

    def _names(self, hosts: str) -> frozenset[str]:
        """Return the names of a host list. This command asks no controller."""
        if not hosts:
            return frozenset()
        return frozenset(self.client.run("scontrol", "show", "hostnames", hosts).split())

    def _reservation(self) -> Reservation | None:
        """Return the reservation of the settings as it is now, None if they name none.

        Raises:
            PlaceGone: it is not there for this user.
        """
        name = self._settings.reservation
        if not name:
            return None
        try:
            text = self.client.run("scontrol", "--oneliner", "show", "reservation", name)
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

    @property
    def calls(self) -> Mapping[str, int]:
        """Count the commands run so far, by name."""
        return self.client.calls

    def here(self) -> bool:
        """Return whether this machine belongs to a Slurm cluster, reachable or not."""
        return slurm_configured()

    def shown(self, job: Job) -> ShownJob:
        """Return the sbatch command and the script of `job`.

        Raises:
            UserError: sbatch would not understand a setting.
        """
        made = submission(job, self._settings, self._places.get(job.node or "", ()))
        return ShownJob(job.name, made.command(), made.script, made.text())

    def about(self) -> Mapping[str, str]:
        """Return version, controller, how nodes are read, and what the settings name for jobs.

        Raises:
            UserError: a partition of the settings does not exist or takes no jobs.
            PlaceGone: their reservation is not there for this user.
            ClusterSilent: no answer.
        """
        version, ping = self.client.run("sinfo", "-V"), self.client.run("scontrol", "ping")
        names = (self._settings.partition, self._settings.cpu_partition)
        # Without a partition for jobs on CPUs, they run in the other one.
        chosen = {p.name: p for name in names if name or not names[0] for p in self._chosen(name)}
        self._reader.nodes()  # finds out how
        reservation = self._reservation()
        return describe(version, ping, self._reader.name, chosen.values(), reservation)

    def nodes(self) -> tuple[list[Node], list[Busy]]:
        """Return the nodes on which a trial can start, and all others with GPUs with the reason.

        Raises:
            UserError: the partition of the settings does not exist or takes no jobs.
            PlaceGone: their reservation is not there for this user.
            ClusterSilent: no answer.
        """
        partitions = self._chosen(self._settings.partition)
        if self._settings.cpu_partition:
            self._chosen(self._settings.cpu_partition)
        reservation = self._reservation()
        wanted = Wanted(
            partitions=frozenset(partition.name for partition in partitions),
            constraint=self._settings.constraint,
            whole=self._takes_whole(),
            gpu_type=self._settings.gpu_type,
            gpu_memory_gib=self._settings.gpu_memory_gib or 0.0,
            memory=self._settings.memory,
            wake=self._settings.wake_nodes,
            excluded=self._excluded,
            reserved=self._names(reservation.nodes) if reservation is not None else None,
        )
        answer = self._reader.nodes()
        free, busy = read_nodes(answer, wanted)
        self._places = read_places(answer)
        why = ""
        if all(partition.state == "DOWN" for partition in partitions):
            # Slurm queues jobs for such a partition, and starts none.
            self._partitions = {}
            names = ", ".join(partition.name for partition in partitions)
            why = f"partition {names} is down"
        elif reservation is not None and reservation.start > time.time():
            why = f"reservation {reservation.name} begins at {clock(reservation.start)}"
        if why:
            return [], [*(Busy(name=node.name, why=why) for node in free), *busy]
        return free, busy

    def limits(self) -> JobLimits:
        """Return how long jobs with these settings may run.

        Partitions and accounting are asked once, reservations each time.

        Raises:
            UserError: only jobs that are too short for any work are allowed.
            PlaceGone: the reservation of the settings is not there for this user.
            ClusterSilent: no answer.
        """
        gpu, cpu = self._longest(gpu_work=True), self._longest(gpu_work=False)
        for limit in (gpu, cpu):
            if limit.minutes < LEAST_MINUTES:
                raise UserError(
                    f"{limit.why} allows jobs of {limit.minutes:g} minutes, in which no job of a "
                    "run does any work: choose another partition, account or QOS"
                )
        reservation = self._reservation()
        gpu_window, cpu_window = find_windows(
            self.client,
            self._settings.reservation,
            self._names,
            lambda: self._usable(reservation, gpu_work=True),
            lambda: self._usable(reservation, gpu_work=False),
        )
        ends = reservation is not None and math.isfinite(reservation.end)
        return JobLimits(
            gpu_minutes=int(gpu.minutes) if gpu.why else None,
            gpu_why=gpu.why,
            cpu_minutes=int(cpu.minutes) if cpu.why else None,
            cpu_why=cpu.why,
            until=reservation.end if reservation is not None and ends else None,
            until_why=f"reservation {self._settings.reservation} ends" if ends else "",
            gpu_window=gpu_window,
            cpu_window=cpu_window,
        )

    def _usable(self, own: Reservation | None, *, gpu_work: bool) -> frozenset[str]:
        """Return the nodes on which jobs may run, now or later; `own` is their reservation."""
        settings = self._settings
        alone = not gpu_work and settings.cpu_partition not in ("", settings.partition)
        chosen = self._of_setting(settings.cpu_partition if alone else settings.partition)
        nodes = self._names(",".join(each.nodes for each in chosen if each.nodes))
        if own is not None and not alone:
            nodes &= self._names(own.nodes)
        return nodes - self._excluded

    def _longest(self, *, gpu_work: bool) -> Longest:
        """Return the longest time limit of a job."""
        settings = self._settings
        own = gpu_work or not settings.cpu_partition
        return longest(
            self._of_setting(settings.partition if own else settings.cpu_partition),
            (not gpu_work and settings.cpu_account) or settings.account,
            (not gpu_work and settings.cpu_qos) or settings.qos,
            self._known_accounting(),
        )

    def _known_accounting(self) -> Accounting:
        """Return the limits of accounting, which is asked once.

        Many clusters have none, and some tell users nothing of it.
        """
        if self._accounting is None:
            self._accounting = self._read_accounting()
        return self._accounting

    def _read_accounting(self) -> Accounting:
        user = str(os.getuid())
        with contextlib.suppress(KeyError):
            user = pwd.getpwuid(os.getuid()).pw_name
        asked = "show", "assoc_mgr", "flags=assoc,qos", f"users={user}"
        try:
            return read_accounting(self.client.run("scontrol", "--oneliner", *asked), user)
        except ClusterSilent:
            raise
        except ClusterError:
            return Accounting()

    def submit(self, job: Job) -> str:
        """Submit `job`. Creates the folder of its log, without which Slurm starts no job.

        Raises:
            SubmitRefused: Slurm refused, and the message has its words.
            ArrayRefused: it takes no array of so many tasks.
            SubmitLater: it takes no more jobs now.
            SettingsRefused: it takes no job of these settings, such as one whose time limit is
                longer than its partition's.
            ClusterSilent: no answer. The job may exist: look it up by its name.
            UserError: sbatch would not understand a setting.
        """
        made = submission(job, self._settings, self._partitions_of(job))
        self._check_minutes(job)
        Path(job.log).parent.mkdir(exist_ok=True)
        try:
            environment = of_job(os.environ, self._settings.environment, job.needs, job.without)
            answer = self.client.run(
                "sbatch", *made.args, script=made.script, environment=environment
            )
            job_id = read_job_id(answer)
        except SubmitRefused as error:
            gpus = job.gpu_work or job.gpus > 0
            raise refusal(str(error), made.command(), gpus=gpus) from error
        except ClusterSilent:
            self._queue.distrust()
            raise
        self._queue.expect(job_id, job.name)
        return job_id

    def poll(self, prefix: str) -> list[TaskStatus]:
        """Return this user's tasks whose job name has this prefix, for as long as Slurm lists them.

        Raises:
            ClusterSilent: no answer.
        """
        return read_tasks(self._reader.tasks(), prefix)

    def look(self, prefix: str, *, patient: bool = False) -> list[TaskStatus] | None:
        """Return what `poll` does, of an answer that another process may have asked for.

        With `patient` return None where nothing new is known and another one is asking.

        Raises:
            ClusterSilent: no answer.
        """
        return self._queue.look(prefix, patient=patient)

    def cancel(self, job_ids: list[str]) -> None:
        """End jobs (`123`) and tasks (`123_4`). Ignores those that have ended or never existed.

        Raises:
            ClusterSilent: no answer.
            ClusterError: Slurm refused; the message has its words.
        """
        # scancel stops at the first malformed id, and takes some words for options.
        ids = [job_id for job_id in job_ids if re.fullmatch(r"\d+(_\d+)?", job_id)]
        for start in range(0, len(ids), _IDS_PER_CANCEL):
            try:
                self.client.run("scancel", *ids[start : start + _IDS_PER_CANCEL])
            except ClusterSilent:
                raise
            except ClusterError as error:
                if not all(map(_NOTHING_TO_CANCEL.search, str(error).splitlines())):
                    raise

    def whole_nodes(self) -> bool:
        """Return whether a job gets whole nodes in the partition of the settings.

        Raises:
            UserError: jobs get whole nodes and `cpu_partition` is not set, or the partition does
                not exist.
            ClusterSilent: no answer.
        """
        if not self._takes_whole():
            return False
        if not self._settings.cpu_partition:
            name = self._settings.partition or "by default"
            raise UserError(
                f"jobs of partition {name} get whole nodes: set "
                "[slurm] cpu_partition to another partition, for the jobs that need no GPU"
            )
        return True

    def _takes_whole(self) -> bool:
        """Return whether jobs with GPUs get whole nodes: by the settings, or by their partition."""
        settings = self._settings
        if settings.whole_nodes is not None:
            return settings.whole_nodes
        # `--exclusive=user` and the like share a node among jobs of one user.
        asked = any(option.strip() == "--exclusive" for option in settings.extra_args)
        return asked or any(chosen.whole for chosen in self._chosen(settings.partition))

    def _check_minutes(self, job: Job) -> None:
        """Refuse a job that Slurm would leave pending for ever.

        Jobs are made within the limits, which may have been lowered since. A QOS may allow more
        than the partition, which only sbatch knows.
        """
        gpu_work, settings = job.gpu_work or job.gpus > 0, self._settings
        limit = self._longest(gpu_work=gpu_work)
        qos = (not gpu_work and settings.cpu_qos) or settings.qos
        if job.minutes > limit.minutes and not qos:
            raise SettingsRefused(
                f"{limit.why} allows jobs of {limit.minutes:g} minutes, and {job.name} asks for "
                f"{job.minutes}: a new run keeps to that, or choose another partition or QOS"
            )

    def _of_setting(self, names: str) -> list[Partition]:
        """Return those partitions of a setting that exist; '' means the default."""
        known, wanted = self._known_partitions(), names.split(",")
        return [p for p in known.values() if (p.name in wanted if names else p.default)]

    def _partitions_of(self, job: Job) -> frozenset[str]:
        """Return the partitions of the node that a job is pinned to, if the settings name several.

        They are asked for where no list of nodes has been read that has it.
        """
        several = "," in f"{self._settings.partition}{self._settings.cpu_partition}"
        if job.node is None or not several:
            return frozenset()
        if job.node not in self._places:
            self._places = read_places(self._reader.nodes())
        return self._places.get(job.node, frozenset())

    def _known_partitions(self) -> dict[str, Partition]:
        """Return all partitions by name. They are asked for once."""
        if not self._partitions:
            text = self.client.run("scontrol", "--all", "--oneliner", "show", "partition")
            self._partitions = read_partitions(text)
        return self._partitions

    def _chosen(self, names: str) -> list[Partition]:
        """Return the partitions in a setting: names separated by commas, or '' for the default."""
        known = self._known_partitions()
        unknown = [name for name in names.split(",") if name not in known]
        if names and unknown:
            raise UserError(f"Slurm has no partition {unknown[0]!r}: {self._advice()}")
        chosen = self._of_setting(names)
        if not chosen:
            raise UserError(f"Slurm has no default partition: {self._advice()}")
        if all(partition.state not in ("UP", "DOWN") for partition in chosen):
            self._partitions = {}  # it may be up when it is asked for again
            states = ", ".join(f"{p.name} is {p.state}" for p in chosen)
            raise UserError(f"Slurm takes no jobs now: partition {states}; try again later")
        return chosen

    def _advice(self) -> str:
        return f"choose one of {', '.join(self._partitions)} with --partition or [slurm] partition"


def slurm_configured() -> bool:
    """Return whether this machine belongs to a Slurm cluster, reachable or not.

    The answer is yes even if the configuration is missing or the controller is silent. The user
    should then see that error, and not get a run on another scheduler.
    """
    if os.environ.get("SLURM_CONF") or os.environ.get("SLURM_CONF_SERVER"):
        return True
    if any(path.exists() for path in _CONFIGURATIONS):
        return True
    if shutil.which("scontrol") is None:
        return False
    # The configuration may have another path, or be found through DNS: scontrol knows.
    try:
        SlurmClient(_PROBE_SECONDS).run("scontrol", "ping")
    except ClusterError as error:
        return "configuration source" not in str(error)
    return True
