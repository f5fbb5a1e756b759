"""What the settings name on a cluster: partitions, nodes and a reservation, as Slurm has them."""

import re
import time
from functools import cached_property

from coordinate_eval.errors import ClusterError, ClusterSilent, PlaceGone, UserError
from coordinate_eval.slurm.answers.partitions import Partition, read_partitions
from coordinate_eval.slurm.answers.reservations import (
    Reservation,
    of_this_user,
    read_reservation,
)
from coordinate_eval.slurm.client import SlurmClient
from coordinate_eval.slurm.settings import SlurmSettings


class Places:
    """The places in which jobs of these settings may run.

    Partitions are asked for once, and so is whether Slurm hands out whole nodes.
    Every method raises `ClusterSilent` if Slurm does not answer.
    """

    def __init__(self, client: SlurmClient, settings: SlurmSettings) -> None:
        self._client = client
        self._settings = settings
        self._partitions: dict[str, Partition] = {}
        self._linear: bool | None = None

    def hosts(self, names: str) -> frozenset[str]:
        """Return the names in a host list. This command asks no controller."""
        if not names:
            return frozenset()
        return frozenset(self._client.run("scontrol", "show", "hostnames", names).split())

    @cached_property
    def excluded(self) -> frozenset[str]:
        """Return the nodes that the settings exclude."""
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
        """Return whether jobs with GPUs get whole nodes: by the settings, partition or cluster.

        Raises:
            UserError: the partition does not exist, or takes no jobs now.
        """
        settings = self._settings
        if settings.whole_nodes is not None:
            return settings.whole_nodes
        # `--exclusive=user` and the like share a node among jobs of one user.
        if any(option.strip() == "--exclusive" for option in settings.extra_args):
            return True
        partitions = self.named(settings.partition)
        if any(partition.whole for partition in partitions):
            return True
        return not all(partition.shared for partition in partitions) and self._is_linear()

    def _is_linear(self) -> bool:
        """Return whether Slurm selects nodes, and not parts of them, for jobs that share none."""
        if self._linear is None:
            try:
                text = self._client.run("scontrol", "show", "config")
            except ClusterSilent:
                raise
            except ClusterError:
                text = ""
            found = re.search(r"^SelectType\s*=\s*select/linear\s*$", text, re.MULTILINE)
            self._linear = found is not None
        return self._linear

    def _known_partitions(self) -> dict[str, Partition]:
        if not self._partitions:
            text = self._client.run("scontrol", "--all", "--oneliner", "show", "partition")
            self._partitions = read_partitions(text)
        return self._partitions

    def _advice(self) -> str:
        return f"choose one of {', '.join(self._partitions)} with --partition or [slurm] partition"
