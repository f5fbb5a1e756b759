"""Turn what `scontrol` prints for people into what it prints as JSON. Nothing here runs a command.

Slurm has no JSON before 21.08, and later only where it was built with it.
"""

import re
from typing import Any

from coordinate_eval._format import brief
from coordinate_eval.errors import ClusterError, ClusterSilent

SHOW_NODES = ("scontrol", "--all", "--details", "show", "nodes")
"""Not in the one-line form, in which nothing tells where a text with spaces ends."""

_INDENT = " " * 3
_WITHIN_REASON = _INDENT + " " * len("Reason=")
# They fill their lines, with spaces and equals signs of their own. All others are single words.
_TEXTS = {"OS", "Comment", "Extra", "Reason"}

_WORDS = {
    "name": "NodeName",
    "features": "AvailableFeatures",
    "active_features": "ActiveFeatures",
    "gres": "Gres",
    "gres_used": "GresUsed",
    "cpus": "CPUTot",
    "effective_cpus": "CPUEfctv",
    "specialized_cores": "CoreSpecCount",
    "sockets": "Sockets",
    "cores": "CoresPerSocket",
    "threads": "ThreadsPerCore",
    "alloc_cpus": "CPUAlloc",
    "real_memory": "RealMemory",
    "specialized_memory": "MemSpecLimit",
    "alloc_memory": "AllocMem",
    "owner": "Owner",
}
"""Names in the JSON, and in the text."""


def read_nodes_text(text: str) -> dict[str, Any]:
    """Return the output of `SHOW_NODES` in the form of `scontrol show nodes --json`.

    Only what `nodes.read_nodes` reads is there, and only as far as the output has it.

    Raises:
        ClusterSilent: the output is empty.
        ClusterError: it lists no node.
    """
    if not text.strip():
        raise ClusterSilent(f"{' '.join(SHOW_NODES)} printed nothing; try again later")
    nodes = [_entry(fields) for fields in _records(text)]
    if not nodes:
        raise ClusterError(f"{' '.join(SHOW_NODES)} lists no nodes: {brief(text)}")
    return {"nodes": nodes}


def _records(text: str) -> list[dict[str, str]]:
    """Return the fields of each node. The first of a name counts: texts come last."""
    records: list[dict[str, str]] = []
    # Not `splitlines`: an administrator's text may have other characters that end a line.
    for line in text.split("\n"):
        if line.startswith("NodeName="):
            records.append({})
        elif not records or not line.startswith(_INDENT):
            continue
        fields, content = records[-1], line.removeprefix(_INDENT)
        name, _, value = content.partition("=")
        if line.startswith(_WITHIN_REASON) and "Reason" in fields:
            fields["Reason"] += "\n" + line.removeprefix(_WITHIN_REASON)
        elif name in _TEXTS:
            fields.setdefault(name, value)
        else:
            for word in content.split():
                name, _, value = word.partition("=")
                fields.setdefault(name, value)
    return records


def _entry(fields: dict[str, str]) -> dict[str, Any]:
    entry: dict[str, Any] = {
        name: "" if fields[word] == "(null)" else fields[word]
        for name, word in _WORDS.items()
        if word in fields
    }
    if "State" in fields:
        entry["state"] = fields["State"]
    # Nodes without GPUs or partitions may lack these.
    entry.setdefault("gres_used", "")
    entry["partitions"] = fields.get("Partitions", "").split(",")
    entry["reason"] = _without_author(fields.get("Reason", ""))
    return entry


def _without_author(reason: str) -> str:
    """Return a reason without who gave it, and when, at the end of its first line."""
    first, *others = reason.split("\n")
    return "\n".join([re.sub(r" \[[^\[\]]*@[^\[\]]*\]$", "", first), *others])
