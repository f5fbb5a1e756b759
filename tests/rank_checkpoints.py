"""Checkpoints that are cut by ranks, laid out as the libraries that write them do.

`deepspeed` lays files out as DeepSpeed 0.19.8. `python -m tests.scripts.compare_deepspeed` writes
such checkpoints with the library at several numbers of ranks, and compares what is read from them
with what `zero_to_fp32.py` makes of them.
"""

import math
import sys
import types
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import torch

Tensors = Mapping[str, torch.Tensor]


def _of_library(module: str, name: str) -> tuple[type, Any]:
    """A class of a library that is not there, and what makes it importable while it is pickled."""
    made = type(name, (), {"__module__": module})
    parts = module.split(".")
    stubs = {n: types.ModuleType(n) for n in (".".join(parts[: i + 1]) for i in range(len(parts)))}
    setattr(stubs[module], name, made)
    return made, mock.patch.dict(sys.modules, stubs)


def deepspeed(
    folder: Path,
    trained: Tensors,
    *,
    stage: int,
    ranks: int,
    frozen: Tensors = types.MappingProxyType({}),
    buffers: Tensors = types.MappingProxyType({}),
    shared: Mapping[str, str] = types.MappingProxyType({}),
    groups: int = 1,
    steps: int = 100,
) -> Path:
    """Write a checkpoint of a step as DeepSpeed does, with the file that names it; its folder."""
    step = folder / f"global_step{steps}"
    step.mkdir(parents=True)
    scaler, importable = _of_library("deepspeed.runtime.fp16.loss_scaler", "LossScaler")
    names = list(trained)
    each = [OrderedDict((n, trained[n]) for n in names[g::groups]) for g in range(groups)]
    cut = _cut_3 if stage == 3 else _cut_2
    vectors = [cut(list(group.values()), ranks) for group in each]
    for rank in range(ranks):
        model = {
            "module": {**{n: _seen(t, stage) for n, t in trained.items()}, **buffers},
            "buffer_names": list(buffers),
            "param_shapes": [OrderedDict((n, t.shape) for n, t in g.items()) for g in each],
            "frozen_param_shapes": OrderedDict((n, t.shape) for n, t in frozen.items()),
            "frozen_param_fragments": OrderedDict(
                (n, _cut_3([t], ranks)[rank] if stage == 3 else t) for n, t in frozen.items()
            ),
            "shared_params": dict(shared),
            "optimizer": None,
            "global_steps": steps,
            "ds_version": "0.19.8",
        }
        key = "fp32_flat_groups" if stage == 3 else "single_partition_of_fp32_groups"
        inner = {"state": {0: {"step": torch.tensor(float(steps))}}, "param_groups": [{"lr": 0.1}]}
        states = {
            "loss_scaler": scaler(),
            "zero_stage": stage,
            "partition_count": ranks if stage == 3 else [ranks] * groups,
            "optimizer_state_dict" if stage == 3 else "base_optimizer_state": inner,
            key: [vector[rank] for vector in vectors],
        }
        name = f"zero_pp_rank_{rank}_mp_rank_00"
        with importable:
            if stage == 3 or not rank:
                own = name if stage == 3 else "mp_rank_00"
                torch.save(model, step / f"{own}_model_states.pt")
            if stage:
                torch.save(
                    {"optimizer_state_dict": states, "ds_version": "0.19.8"},
                    step / f"{'bf16_' * (stage == 1)}{name}_optim_states.pt",
                )
    (folder / "latest").write_text(step.name)
    (folder / "zero_to_fp32.py").write_text("# of DeepSpeed\n")
    return step


def _seen(tensor: torch.Tensor, stage: int) -> torch.Tensor:
    """What a rank's module has of a parameter: with ZeRO 3 nothing."""
    return tensor.new_empty(0).bfloat16() if stage == 3 else tensor.bfloat16()


def _cut_2(tensors: Sequence[torch.Tensor], ranks: int) -> list[torch.Tensor]:
    """The parts of all tensors, one after another, padded to a multiple of twice the ranks."""
    flat = torch.cat([tensor.flatten() for tensor in tensors])
    align = 2 * ranks
    padded = torch.cat([flat, flat.new_zeros(-len(flat) % align)])
    return [part.clone() for part in padded.chunk(ranks)]


def _cut_3(tensors: Sequence[torch.Tensor], ranks: int) -> list[torch.Tensor]:
    """The parts of each tensor, padded by itself, those of a rank one after another."""
    parts: list[list[torch.Tensor]] = [[] for _ in range(ranks)]
    for tensor in tensors:
        part = math.ceil(tensor.numel() / ranks)
        flat = torch.cat([tensor.flatten(), tensor.new_zeros(part * ranks - tensor.numel())])
        for rank, piece in enumerate(flat.chunk(ranks)):
            parts[rank].append(piece)
    return [torch.cat(each) for each in parts]
