"""Nodes as `scontrol show nodes` describes them."""


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
