"""Time limits of jobs: those of partitions, of QOS and of associations, and which of them holds.

Slurm takes the first that is set of: the QOS of the partition, that of the job, the association
(https://slurm.schedmd.com/resource_limits.html). The partition's own limit holds besides. A job
that asks for more is refused, or stays pending for ever. Nothing here runs a command.
"""

import itertools
import math
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from coordinate_eval.slurm.answers.partitions import Partition

DEFAULT_QOS = "normal"
"""The QOS of a job that names none, unless its association has another default."""


class Longest(NamedTuple):
    """The longest time limit of a job, in minutes, and what sets it."""

    minutes: float = math.inf
    why: str = ""


@dataclass(frozen=True)
class Association:
    """A user's link to an account, perhaps only for one partition."""

    account: str
    partition: str
    default: bool
    minutes: float


@dataclass(frozen=True)
class Accounting:
    """Limits that the controller enforces; none on a cluster without accounting."""

    associations: list[Association] = field(default_factory=list)
    qos: dict[str, float] = field(default_factory=dict)


def read_accounting(text: str, user: str) -> Accounting:
    """Return what `scontrol --oneliner show assoc_mgr flags=assoc,qos` prints of a user.

    A limit that an account has is in the association of each of its users, too.
    """
    found = Accounting()
    for line in text.splitlines():
        fields: dict[str, str] = {}
        for word in line.split():
            key, equals, value = word.partition("=")
            if equals:
                fields.setdefault(key, value)
        minutes = _minutes(fields.get("MaxWallPJ", ""))
        if line.startswith("QOS="):
            found.qos[_name(fields["QOS"])] = minutes
        elif line.startswith("ClusterName=") and _name(fields.get("UserName", "")) == user:
            association = Association(
                account=fields.get("Account", ""),
                partition=fields.get("Partition", ""),
                default=fields.get("DefAssoc") == "Yes",
                minutes=minutes,
            )
            found.associations.append(association)
    return found


def longest(
    partitions: Iterable[Partition], account: str, qos: str, accounting: Accounting
) -> Longest:
    """Return how long a job may be that can start in each of these partitions, with each QOS.

    Args:
        account: of the job; '' for the user's default.
        qos: of the job, separated by commas; '' for the default.
        accounting: what the controller enforces.
    """
    choice = itertools.product(partitions, qos.split(","))
    each = [_in_partition(partition, account, name, accounting) for partition, name in choice]
    shortest = min(each, key=lambda limit: limit.minutes, default=Longest())
    return shortest if math.isfinite(shortest.minutes) else Longest()


def _in_partition(partition: Partition, account: str, qos: str, accounting: Accounting) -> Longest:
    own = Longest(partition.minutes, f"MaxTime of partition {partition.name}")
    walls = [
        Longest(accounting.qos.get(name, math.inf), f"MaxWall of QOS {name}")
        for name in (partition.qos, qos or DEFAULT_QOS)
    ]
    mine = _association(partition.name, account, accounting)
    if mine is not None:
        walls.append(Longest(mine.minutes, f"MaxWall of account {mine.account}"))
    wall = next((limit for limit in walls if math.isfinite(limit.minutes)), Longest())
    return min(own, wall, key=lambda limit: limit.minutes)


def _association(partition: str, account: str, accounting: Accounting) -> Association | None:
    """Return the user's association for jobs in a partition: one for it alone goes first."""
    mine = [
        each
        for each in accounting.associations
        if (each.account == account if account else each.default)
        and each.partition in ("", partition)
    ]
    return max(mine, key=lambda each: each.partition, default=None)


def _minutes(text: str) -> float:
    return float(text) if re.fullmatch(r"\d{1,9}", text) else math.inf


def _name(text: str) -> str:
    """Return a name without the number that Slurm prints after it."""
    return re.sub(r"\(\d+\)$", "", text)
