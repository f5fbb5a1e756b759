"""Readers of nodes and tasks: pyslurm where it is wanted and fits, else Slurm's commands.

pyslurm is an extension of Slurm's own library, of exactly one release of Slurm. Only nodes and
tasks are read with it; all else is done by commands.
"""

import json
import os
import re
import sys
from collections.abc import Sequence
from importlib import metadata
from typing import Any, Protocol

from coordinate_eval._format import brief
from coordinate_eval.errors import ClusterError, UserError
from coordinate_eval.slurm.answers.nodes import SHOW_NODES, Fields, read_fields
from coordinate_eval.slurm.answers.queue import SQUEUE_FORMAT, as_printed
from coordinate_eval.slurm.client import SlurmClient

_CHILD = (sys.executable, "-P", "-m", "coordinate_eval.slurm.pyslurm_child")


class Reader(Protocol):
    """Reads nodes and tasks. Both methods raise `ClusterSilent` if there is no answer."""

    @property
    def name(self) -> str:
        """Say how they are read, for a person."""
        ...

    def nodes(self) -> Sequence[Fields]:
        """Return what Slurm says of each node.

        Raises:
            ClusterError: Slurm refused; the message has its words.
            UserError: Slurm shows this user no nodes.
        """
        ...

    def tasks(self) -> str:
        """Return this user's tasks, while Slurm lists them, as `answers/queue.py` reads."""
        ...


class Commands:
    """Reads what Slurm's commands print, which is the same text in each version and build."""

    name = "Slurm's commands"

    def __init__(self, client: SlurmClient) -> None:
        self._client = client

    def nodes(self) -> Sequence[Fields]:
        """Return what `scontrol` says of each node."""
        try:
            return read_fields(self._client.run(*SHOW_NODES))
        except ClusterError as error:
            if "permission denied" not in str(error).lower():
                raise
            raise UserError(
                "Slurm shows you no nodes (PrivateData=nodes), and without them nothing can be "
                "planned: ask the administrators to take `nodes` out of PrivateData, or to make "
                "you an operator in Slurm's accounting"
            ) from error

    def tasks(self) -> str:
        """Return what `squeue` prints of this user's tasks."""
        # Of no other user, whose names of jobs might imitate other records.
        user = str(os.getuid())
        return self._client.run(
            "squeue", "-h", "-a", "-r", "-t", "all", "-u", user, "-o", SQUEUE_FORMAT
        )


class PyslurmReader:
    """Reads with pyslurm, and with Slurm's commands from the first error on, which it says."""

    def __init__(self, client: SlurmClient, misfit: str = "") -> None:
        self._client = client
        self._commands = Commands(client)
        self._why_not = ""
        if misfit:
            self._give_up(misfit)

    @property
    def name(self) -> str:
        """Say how nodes and tasks are read, for a person."""
        if self._why_not:
            return f"{self._commands.name}; not pyslurm: {self._why_not}"
        return f"pyslurm {metadata.version('pyslurm')}"

    def nodes(self) -> Sequence[Fields]:
        """Return what pyslurm says of each node."""
        answer = self._ask("nodes")
        return self._commands.nodes() if answer is None else answer

    def tasks(self) -> str:
        """Return this user's tasks as `squeue` would print them."""
        answer = self._ask("tasks")
        return self._commands.tasks() if answer is None else as_printed(answer)

    def _ask(self, what: str) -> list[Any] | None:
        """Return pyslurm's answer from a child process; None if Slurm's commands are to be used."""
        if not self._why_not:
            try:
                answer: list[Any] = json.loads(self._client.run(*_CHILD, what, counted="pyslurm"))
                return answer
            except (ClusterError, ValueError) as error:
                self._give_up(brief(error))
        return None

    def _give_up(self, why: str) -> None:
        self._why_not = why
        sys.stderr.write(f"pyslurm is not used, but Slurm's commands: {why}\n")


def reader_for(wanted: str, client: SlurmClient) -> Reader:
    """Return what to read with, as the setting `[slurm] reader` says.

    Raises:
        ClusterError: Slurm's version cannot be found out.
    """
    misfit = "" if wanted == "commands" else _misfit(client)
    if wanted == "commands" or (wanted == "auto" and misfit):
        return Commands(client)
    return PyslurmReader(client, misfit)


def _misfit(client: SlurmClient) -> str:
    """Return the reason for which pyslurm cannot read from this Slurm, or '' if it may."""
    try:
        version = metadata.version("pyslurm")
    except metadata.PackageNotFoundError:
        return "it is not installed: install coordinate-eval[pyslurm]"
    slurm = client.run("sinfo", "-V").strip()
    if _release(version) != _release(slurm):
        return f"pyslurm {version} is for another release of Slurm than {slurm}"
    return ""


def _release(version: str) -> list[str]:
    """Return the two numbers of the release in a text such as `slurm 24.11.5`."""
    return re.findall(r"\d+", version)[:2]
