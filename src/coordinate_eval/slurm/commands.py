"""Nodes and tasks as Slurm's commands print them, in each version and build of Slurm."""

import os
import re
from typing import Any

from coordinate_eval._format import brief
from coordinate_eval.errors import ClusterError, ClusterSilent, UserError
from coordinate_eval.slurm.answers.queue import SQUEUE_FORMAT
from coordinate_eval.slurm.answers.text_answers import SHOW_NODES, read_nodes_text
from coordinate_eval.slurm.client import SlurmClient

_TELLS_NOTHING = "unspecified error"
"""Error in the JSON of 22.05 for whatever is wrong: the text form says what it is."""


class Commands:
    """Reads nodes and tasks. Whether nodes can be read as JSON is found out once."""

    def __init__(self, client: SlurmClient) -> None:
        self._client = client
        self._of_version: tuple[str, ...] = ()
        self._no_json = ""

    @property
    def name(self) -> str:
        """Say how nodes are read, for a person."""
        if self._no_json:
            return f"Slurm's commands, as text without JSON: {self._no_json}"
        return "Slurm's commands"

    def nodes(self) -> dict[str, Any]:
        """Return all nodes in one of the forms that `nodes.read_nodes` knows.

        Raises:
            ClusterSilent: no answer.
            ClusterError: Slurm refused; the message has its words.
            UserError: Slurm shows this user no nodes.
        """
        if self._no_json:
            return self._nodes_as_text()
        try:
            return self._client.json(*self._json_command())
        except ClusterSilent as error:
            if _TELLS_NOTHING not in str(error).lower():
                raise
            return self._nodes_as_text()
        except ClusterError as error:
            answer = self._nodes_as_text()  # fails as well if this was no matter of JSON
            self._no_json = brief(error)
            return answer

    def tasks(self) -> str:
        """Return this user's tasks, while Slurm lists them, as `answers/queue.py` reads.

        Raises:
            ClusterSilent: no answer.
        """
        # Of no other user, whose names of jobs might imitate other records.
        user = str(os.getuid())
        return self._client.run(
            "squeue", "-h", "-a", "-r", "-t", "all", "-u", user, "-o", SQUEUE_FORMAT
        )

    def _nodes_as_text(self) -> dict[str, Any]:
        try:
            return read_nodes_text(self._client.run(*SHOW_NODES))
        except ClusterError as error:
            if "permission denied" not in str(error).lower():
                raise
            raise UserError(
                "Slurm shows you no nodes (PrivateData=nodes), and without them nothing can be "
                "planned: ask the administrators to take `nodes` out of PrivateData, or to make "
                "you an operator in Slurm's accounting"
            ) from error

    def _json_command(self) -> tuple[str, ...]:
        """Return the command that prints one JSON entry per node in this version of Slurm."""
        if not self._of_version:
            version = release(self._client.run("sinfo", "-V"))
            old = version is not None and version < (23, 2)
            # In later versions sinfo groups similar nodes. In old ones scontrol has no JSON.
            self._of_version = (
                ("sinfo", "--all", "--json")
                if old
                else ("scontrol", "--all", "show", "nodes", "--json")
            )
        return self._of_version


def release(version: str) -> tuple[int, int] | None:
    """Return the two numbers of a release in a text such as `slurm 24.11.5`; None without them."""
    found = re.search(r"(\d+)\.(\d+)", version)
    return (int(found[1]), int(found[2])) if found else None
