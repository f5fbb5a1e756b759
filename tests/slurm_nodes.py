"""Nodes as `scontrol show nodes` describes them, and tasks as `squeue` does."""

from coordinate_eval.clusters.protocol import TaskStatus
from coordinate_eval.slurm.answers.queue import SQUEUE_FORMAT, read_tasks


def task_of(*fields: str) -> TaskStatus:
    """The task with this id, state, reason, node and job name."""
    (task,) = read_tasks(f"{SQUEUE_FORMAT[0]}{'|'.join(fields)}\n", "ce-")
    return task


def node(name: str = "n1", **fields: object) -> dict[str, str]:
    """The fields of a node with eight GPUs, all free; numbers may be given as such."""
    made: dict[str, object] = {
        "NodeName": name,
        "State": "IDLE",
        "AvailableFeatures": "",
        "ActiveFeatures": "",
        "Gres": "gpu:h200:8",
        "GresUsed": "gpu:h200:0(IDX:N/A)",
        "CPUTot": 128,
        "CPUAlloc": 0,
        "RealMemory": 1024000,
        "AllocMem": 0,
        "FreeMem": 7,
        "Owner": "N/A",
        "Partitions": "high,low",
        "Reason": "",
        **fields,
    }
    return {field: str(value) for field, value in made.items()}
