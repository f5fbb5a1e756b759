"""Nodes as Slurm prints them in JSON, in the shapes of several versions."""

from typing import Any


def old(**fields: object) -> dict[str, Any]:
    """A node as `sinfo --json` of 22.05 prints it."""
    return {
        "name": "n1",
        "state": "idle",
        "state_flags": [],
        "features": "",
        "active_features": "",
        "gres": "gpu:h200:8",
        "gres_used": "gpu:h200:0(IDX:N/A)",
        "cpus": 128,
        "alloc_cpus": 0,
        "real_memory": 1024000,
        "alloc_memory": 0,
        "free_memory": 7,
        "partitions": ["high", "low"],
        "reason": "",
        **fields,
    }


def new(**fields: object) -> dict[str, Any]:
    """A node as `scontrol show nodes --json` of 24.11 and 26.05 prints it."""
    return old() | {
        "state": ["IDLE"],
        "state_flags": None,
        "features": [],
        "active_features": [],
        "effective_cpus": 128,
        "specialized_memory": 0,
        **fields,
    }
