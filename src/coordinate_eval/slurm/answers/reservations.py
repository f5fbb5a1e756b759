"""Reservations: Slurm's text about them, which this user's jobs may run in, and which end jobs.

`scontrol --oneliner show reservation` prints the same fields in all versions from 20.11 on. Nothing
here runs a command.
"""

import contextlib
import grp
import math
import os
import pwd
import time
from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass


@dataclass(frozen=True)
class Reservation:
    """A reservation. `nodes` is a host list; times are seconds since the epoch.

    `users` and `groups` are lists as Slurm prints them: names that may use it or, each after a
    minus sign, names that may not. A `whole` one leaves nothing of its nodes to others.
    """

    name: str
    nodes: str
    start: float
    end: float
    users: str = ""
    groups: str = ""
    whole: bool = False


def read_reservation(text: str, name: str) -> Reservation | None:
    """Return the reservation of this name; None where the text has none."""
    return next((found for found in read_reservations(text) if found.name == name), None)


def read_reservations(text: str) -> Iterator[Reservation]:
    """Yield all reservations of a text."""
    for line in text.splitlines():
        fields: dict[str, str] = {}
        for word in line.split():  # the first of a name counts: comments come last
            key, _, value = word.partition("=")
            fields.setdefault(key, "" if value == "(null)" else value)
        if name := fields.get("ReservationName", ""):
            yield Reservation(
                name=name,
                nodes=fields.get("Nodes", ""),
                start=_seconds(fields.get("StartTime", ""), -math.inf),
                end=_seconds(fields.get("EndTime", ""), math.inf),
                users=fields.get("Users", ""),
                groups=fields.get("Groups", ""),
                whole=_is_whole(fields),
            )


def _is_whole(fields: Mapping[str, str]) -> bool:
    """Return whether a reservation has its nodes whole.

    One of some cores or of some number of nodes is in a partition, of which it is not all.
    """
    flags = set(fields.get("Flags", "").split(","))
    if flags & {"MAINT", "PART_NODES"}:
        return True
    return bool(flags & {"SPEC_NODES", "ALL_NODES"}) and not fields.get("PartitionName")


def next_window(
    found: Mapping[Reservation, Set[str]], nodes: Set[str], now: float
) -> Reservation | None:
    """Return the reservation before which jobs have to end if they are to start now.

    It takes the last of those nodes that none has now; None if one of them stays free, or if there
    is none.

    Args:
        found: reservations of others, with the names of their nodes.
        nodes: on which the jobs may run.
    """
    firsts = []
    for node in nodes:
        of_node = [each for each, names in found.items() if node in names and each.end > now]
        if any(each.start <= now for each in of_node):
            continue
        if not of_node:
            return None
        firsts.append(min(of_node, key=lambda each: (each.start, each.name)))
    return max(firsts, key=lambda each: (each.start, each.name), default=None)


def of_this_user(found: Reservation | None, now: float) -> Reservation:
    """Return a reservation in which jobs of this user can run, now or later.

    Which accounts may use it, only sbatch knows: that of a job may be below one of them.

    Raises:
        ValueError: there is none; the text says why, as the end of a sentence.
    """
    if found is None:
        raise ValueError("does not exist, or is hidden from you")
    if found.end <= now:
        raise ValueError(f"ended at {clock(found.end)}")
    user = name_of_user()
    for what, listed, mine in (
        ("users", found.users, {user}),
        ("groups", found.groups, _groups_of_user()),
    ):
        names = {name for name in listed.split(",") if name}
        denied = {name[1:] for name in names if name.startswith("-")}
        if denied & mine or (names and not denied and not names & mine):
            raise ValueError(f"is not for {user}: it has {what} {listed}")
    return found


def clock(seconds: float) -> str:
    """Return a time as Slurm writes it: local, without a zone."""
    if math.isinf(seconds):
        return "unknown"
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(seconds))


def name_of_user() -> str:
    """Return the name of this user, the number where there is no name."""
    with contextlib.suppress(KeyError):
        return pwd.getpwuid(os.getuid()).pw_name
    return str(os.getuid())


def _groups_of_user() -> set[str]:
    """Return the names of those groups of this user that have one."""
    groups = set()
    for number in {os.getgid(), *os.getgroups()}:
        with contextlib.suppress(KeyError):
            groups.add(grp.getgrgid(number).gr_name)
    return groups


def _seconds(text: str, otherwise: float) -> float:
    """Return the seconds since the epoch of such a time."""
    try:
        return time.mktime(time.strptime(text, "%Y-%m-%dT%H:%M:%S"))
    except (ValueError, OverflowError):
        return otherwise
