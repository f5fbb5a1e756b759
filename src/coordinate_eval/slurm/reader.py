"""Readers of nodes and tasks: pyslurm where it is wanted and fits, else Slurm's commands.

pyslurm is an extension of Slurm's own library, of exactly one release of Slurm. Only nodes and
tasks are read with it; all else is done by commands.
"""

import json
import sys
from importlib import metadata
from typing import Any, Protocol

from coordinate_eval._format import brief
from coordinate_eval.errors import ClusterError
from coordinate_eval.slurm.answers.queue import as_printed
from coordinate_eval.slurm.client import SlurmClient
from coordinate_eval.slurm.commands import Commands, release

_CHILD = (sys.executable, "-P", "-m", "coordinate_eval.slurm.pyslurm_child")


class Reader(Protocol):
    """Reads nodes and tasks. Both methods raise `ClusterSilent` if there is no answer."""

    @property
    def name(self) -> str:
        """Say how they are read, for a person."""
        ...

    def nodes(self) -> dict[str, Any]:
        """Return all nodes in one of the forms that `nodes.read_nodes` knows."""
        ...

    def tasks(self) -> str:
        """Return this user's tasks, while Slurm lists them, as `answers/queue.py` reads."""
        ...


class PyslurmReader:
    """Reads with pyslurm, and with Slurm's commands from the first error on, which it says."""

    def __init__(self, client: SlurmClient, commands: Commands, misfit: str = "") -> None:
        self._client = client
        self._commands = commands
        self._why_not = ""
        if misfit:
            self._give_up(misfit)

    @property
    def name(self) -> str:
        """Say how nodes and tasks are read, for a person."""
        if self._why_not:
            return f"{self._commands.name}; not pyslurm: {self._why_not}"
        return f"pyslurm {metadata.version('pyslurm')}"

    def nodes(self) -> dict[str, Any]:
        """Return all nodes. Raises what `Commands.nodes` raises."""
        answer = self._ask("nodes")
        return self._commands.nodes() if answer is None else {"nodes": answer}

    def tasks(self) -> str:
        """Return this user's tasks. Raises what `Commands.tasks` raises."""
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
    commands = Commands(client)
    if wanted == "commands":
        return commands
    misfit = _misfit(client)
    return commands if misfit and wanted == "auto" else PyslurmReader(client, commands, misfit)


def _misfit(client: SlurmClient) -> str:
    """Return the reason for which pyslurm cannot read from this Slurm, or '' if it may."""
    try:
        version = metadata.version("pyslurm")
    except metadata.PackageNotFoundError:
        return "it is not installed: install coordinate-eval[pyslurm]"
    slurm = client.run("sinfo", "-V").strip()
    if release(version) != release(slurm):
        return f"pyslurm {version} is for another release of Slurm than {slurm}"
    return ""
