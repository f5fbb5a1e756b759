"""Slurm as a `Cluster`: the command behind each method."""

import os
import re
import time
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path

from coordinate_eval.clusters.protocol import (
    TASK_VARIABLE,
    Busy,
    Cluster,
    Job,
    JobLimits,
    Node,
    ShownJob,
    TaskStatus,
)
from coordinate_eval.errors import (
    ClusterError,
    ClusterSilent,
    NotFromHere,
    SubmitRefused,
    UserError,
)
from coordinate_eval.slurm.answers.nodes import (
    SHOW_NODES,
    Fields,
    Wanted,
    read_fields,
    read_nodes,
    read_places,
)
from coordinate_eval.slurm.answers.partitions import Partition
from coordinate_eval.slurm.answers.queue import SQUEUE_FORMAT, read_job_id, read_tasks, with_choice
from coordinate_eval.slurm.answers.refusals import refusal
from coordinate_eval.slurm.answers.reservations import Reservation, clock
from coordinate_eval.slurm.client import SlurmClient, slurm_configured
from coordinate_eval.slurm.environment import of_job
from coordinate_eval.slurm.places import Places
from coordinate_eval.slurm.scripts import submission
from coordinate_eval.slurm.settings import SlurmSettings

_IDS_PER_CANCEL = 500

# Messages of scancel about tasks that have ended or never existed. Some versions exit with 0.
_NOTHING_TO_CANCEL = re.compile(r"invalid job id|already complet", re.IGNORECASE)

_NOT_FROM_HERE = re.compile("access/permission denied", re.IGNORECASE)


class SlurmCluster(Cluster):
    """Slurm as a `Cluster`. Each method runs one Slurm command, at first a few more.

    Every method that runs a command raises `UserError` if SLURM_CONF names a missing file.
    """

    name = "slurm"

    def __init__(self, settings: SlurmSettings, gpu_memory_gib: float = 0.0) -> None:
        """Make it, for GPUs that have this memory where their type does not tell it."""
        self._settings, self._gpu_memory_gib = settings, gpu_memory_gib
        places = settings.partition, settings.cpu_partition, settings.qos, settings.cpu_qos
        self._choice = any("," in names for names in places)
        """Jobs may start in several partitions, or with several QOS."""
        self._partitions_of: dict[str, frozenset[str]] = {}  # by node, as it was last seen
        self._most_mib_per_cpu: dict[str, int] = {}  # by partition, as far as it is known

    @cached_property
    def client(self) -> SlurmClient:
        """Return the runner of Slurm's commands."""
        return SlurmClient()

    @cached_property
    def _places(self) -> Places:
        return Places(self.client, self._settings)

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
        within = self._known_partitions(job)
        setting = self._settings.of(job.in_gpu_partition).partition
        most = self._most_mib_per_cpu.get(setting, 0)
        made = submission(job, self._settings, within, most)
        return ShownJob(job.name, made.command(), made.script, made.text())

    def about(self) -> Mapping[str, str]:
        """Return version, controller, and what the settings name for jobs.

        Raises:
            UserError: a partition of the settings does not exist or takes no jobs, or Slurm shows
                this user no nodes.
            PlaceGone: their reservation is not there for this user.
        """
        # Packages put their name where Slurm has its own: `slurm-wlm 24.11.5`.
        version = self.client.run("sinfo", "-V").strip().rpartition(" ")[2]
        ping = self.client.run("scontrol", "ping")
        controller = ", ".join(line.strip() for line in ping.splitlines() if line.strip())
        names = (self._settings.partition, self._settings.cpu_partition)
        # Without a partition for jobs on CPUs, they run in the other one.
        settings = [name for name in names if name or not names[0]]
        chosen = {p.name: p for name in settings for p in self._places.named(name)}
        self._show_nodes()
        said = {"controller": f"Slurm {version}: {controller}"}
        for name, partition in chosen.items():
            said[f"partition {name}{' (default)' * partition.default}"] = partition.words()
        if reservation := self._places.reservation():
            times = " to ".join(map(clock, (reservation.start, reservation.end)))
            said[f"reservation {reservation.name}"] = f"nodes {reservation.nodes}, {times}"
        return said

    def nodes(self) -> tuple[list[Node], list[Busy]]:
        """Return the nodes on which a trial can start, and all others with GPUs with the reason.

        Raises:
            UserError: the partition of the settings does not exist or takes no jobs.
            PlaceGone: their reservation is not there for this user.
        """
        places = self._places
        partitions = places.named(self._settings.partition)
        if self._settings.cpu_partition:
            places.named(self._settings.cpu_partition)
        reservation = places.reservation()
        wanted = Wanted(
            partitions=frozenset(partition.name for partition in partitions),
            constraint=self._settings.constraint,
            whole=places.take_whole_nodes(),
            gpu_type=self._settings.gpu_type,
            gpu_memory_gib=self._gpu_memory_gib,
            memory=bool(self._settings.memory),
            excluded=places.excluded,
            reserved=places.hosts(reservation.nodes) if reservation is not None else None,
            jobs_memory=places.memory_limits(self._settings.partition),
            most_cpus=max(partition.most_cpus for partition in partitions),
        )
        for gpu_work in (True, False):
            self._learn_memory_limit(self._settings.of(gpu_work).partition)
        answer = self._show_nodes()
        free, busy = read_nodes(answer, wanted)
        self._partitions_of = read_places(answer)
        if why := self._none_starts(partitions, reservation):
            return [], [*(node.busy(why) for node in free), *busy]
        return free, busy

    def _show_nodes(self) -> Sequence[Fields]:
        """Return what `scontrol` says of each node.

        Raises:
            ClusterError: Slurm refused; the message has its words.
        """
        try:
            return read_fields(self.client.run(*SHOW_NODES))
        except ClusterError as error:
            if "permission denied" not in str(error).lower():
                raise
            raise UserError(
                "Slurm shows you no nodes (PrivateData=nodes), and without them nothing can be "
                "planned: ask the administrators to take `nodes` out of PrivateData, or to make "
                "you an operator in Slurm's accounting"
            ) from error

    def _none_starts(self, partitions: Sequence[Partition], own: Reservation | None) -> str:
        """Return why no job starts now that Slurm would queue, '' if some may."""
        if all(partition.state == "DOWN" for partition in partitions):
            self._places.forget()
            return f"partition {', '.join(partition.name for partition in partitions)} is down"
        if own is not None and own.start > time.time():
            return f"reservation {own.name} begins at {clock(own.start)}"
        return ""

    def whole_nodes(self) -> bool:
        """Return whether a job gets whole nodes in the partition of the settings.

        Raises:
            UserError: jobs get whole nodes and `cpu_partition` is not set, or the partition does
                not exist.
        """
        if not self._places.take_whole_nodes():
            return False
        if not self._settings.cpu_partition:
            name = self._settings.partition or "by default"
            raise UserError(
                f"jobs of partition {name} get whole nodes: set "
                "[slurm] cpu_partition to another partition, for the jobs that need no GPU"
            )
        return True

    def limits(self) -> JobLimits:
        """Return how long jobs with these settings may run.

        Partitions and accounting are asked once, reservations each time.

        Raises:
            UserError: only jobs that are too short for any work are allowed.
            PlaceGone: the reservation of the settings is not there for this user.
        """
        return self._places.limits()

    def submit(self, job: Job) -> str:
        """Submit `job`. Creates the folder of its log, without which Slurm starts no job.

        Raises:
            ArrayRefused: it takes no array of so many tasks.
            SubmitLater: it takes no more jobs now.
            NotFromHere: this process is a job, and Slurm takes jobs from other nodes (`AllocNodes`
                of a partition).
            SettingsRefused: it takes no job of these settings, such as one whose time limit is
                longer than its partition's.
            ClusterSilent: no answer. The job may exist: look it up by its name.
            UserError: sbatch would not understand a setting.
        """
        setting = self._settings.of(job.in_gpu_partition).partition
        most = self._learn_memory_limit(setting)
        made = submission(job, self._settings, self._partitions_with_node_of(job), most)
        self._places.check(job)
        Path(job.log).parent.mkdir(exist_ok=True)
        try:
            environment = of_job(os.environ, self._settings.environment, job.needs, job.without)
            answer = self.client.run(
                "sbatch", *made.args, script=made.script, environment=environment
            )
        except SubmitRefused as error:
            refused = refusal(
                str(error),
                made.command(),
                gpus=job.in_gpu_partition,
                bare=job.in_gpu_partition and not job.gpus,
            )
            if os.environ.get(TASK_VARIABLE) and _NOT_FROM_HERE.search(str(error)):
                raise NotFromHere(str(refused)) from error
            raise refused from error
        return read_job_id(answer)

    def _learn_memory_limit(self, setting: str) -> int:
        """Return the most memory of a CPU in MiB for jobs of a partition, 0 without a limit."""
        most = self._places.memory_limits(setting).most_per_cpu
        self._most_mib_per_cpu[setting] = most
        return most

    def _partitions_with_node_of(self, job: Job) -> frozenset[str]:
        """Return the partitions of the node that a job is pinned to, if the settings name several.

        They are asked for where no list of nodes has been read that has it.
        """
        if job.node is None or "," not in self._settings.of(job.in_gpu_partition).partition:
            return frozenset()
        if not self._partitions_of.keys() >= {*job.node.split(",")}:
            self._partitions_of = read_places(self._show_nodes())
        return self._known_partitions(job)

    def _known_partitions(self, job: Job) -> frozenset[str]:
        """Return the partitions that are known to have all nodes that a job is pinned to."""
        names = (job.node or "").split(",")
        return frozenset.intersection(*(self._partitions_of.get(n, frozenset()) for n in names))

    def poll(self, prefix: str) -> list[TaskStatus]:
        """Return this user's tasks whose job name has this prefix, while Slurm lists them."""
        # Of no other user, whose names of jobs might imitate other records.
        who = ("-u", str(os.getuid()))
        text = self.client.run("squeue", "-h", "-a", "-r", "-t", "all", *who, "-o", SQUEUE_FORMAT)
        tasks = read_tasks(text, prefix)
        return with_choice(tasks) if self._choice else tasks

    def cancel(self, job_ids: list[str]) -> None:
        """End jobs (`123`) and tasks (`123_4`). Ignores those that have ended or never existed."""
        # scancel stops at the first malformed id, and takes some words for options.
        ids = [job_id for job_id in job_ids if re.fullmatch(r"[0-9]+(_[0-9]+)?", job_id)]
        for start in range(0, len(ids), _IDS_PER_CANCEL):
            try:
                self.client.run("scancel", *ids[start : start + _IDS_PER_CANCEL])
            except ClusterSilent:
                raise
            except ClusterError as error:
                if not all(map(_NOTHING_TO_CANCEL.search, str(error).splitlines())):
                    raise
