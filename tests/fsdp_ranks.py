"""Saves a model from several ranks: `python -m tests.fsdp_ranks OUT RANKS [GROUPS]`.

The tiny model is cut by FSDP2 among the ranks of a group, or copied between groups (HSDP). It is
saved by torch.distributed.checkpoint with its optimizer's state, as trainers do.
"""
# Torch and transformers have no types here: they may be absent while types are checked.

import importlib
import os
import sys
import tempfile
from typing import Any

from tests.tiny import tiny_model


def save(rank: int, out: str, ranks: int, groups: int, meeting: str) -> None:
    """Save as one of the ranks."""
    torch: Any = importlib.import_module("torch")
    dcp: Any = importlib.import_module("torch.distributed.checkpoint")
    states: Any = importlib.import_module("torch.distributed.checkpoint.state_dict")
    fsdp: Any = importlib.import_module("torch.distributed.fsdp")
    meshes: Any = importlib.import_module("torch.distributed.device_mesh")
    transformers: Any = importlib.import_module("transformers")
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{meeting}", rank=rank, world_size=ranks
    )
    shape = (ranks,) if groups == 1 else (groups, ranks // groups)
    mesh = meshes.init_device_mesh("cpu", shape, mesh_dim_names=("a", "b")[: len(shape)])
    model = transformers.AutoModelForCausalLM.from_pretrained(tiny_model())
    for layer in model.model.layers:
        fsdp.fully_shard(layer, mesh=mesh)
    fsdp.fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.0, weight_decay=0.0)
    model(torch.arange(8).reshape(1, 8)).logits.sum().backward()
    optimizer.step()
    found, kept = states.get_state_dict(model, optimizer)
    dcp.save({"model": found, "optimizer": kept}, checkpoint_id=out)
    torch.distributed.destroy_process_group()


def main() -> None:
    """Start all ranks, and wait for them."""
    out, ranks, groups = sys.argv[1], int(sys.argv[2]), int((*sys.argv[3:], "1")[0])
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    processes: Any = importlib.import_module("torch.multiprocessing")
    with tempfile.TemporaryDirectory() as folder:
        processes.spawn(save, args=(out, ranks, groups, f"{folder}/meeting"), nprocs=ranks)


if __name__ == "__main__":
    main()
