"""Checkpoints that are cut by ranks, laid out as the libraries that write them do.

`deepspeed` lays files out as DeepSpeed 0.19.8. `python -m tests.scripts.compare_deepspeed` writes
such checkpoints with the library at several numbers of ranks, and compares what is read from them
with what `zero_to_fp32.py` makes of them. `megatron` lays files out as Megatron-core 0.16.1 does:
files that it wrote with 1 to 4 tensor, pipeline and expert ranks were compared once, bit for bit,
with the distributed checkpoints that it wrote of the same weights.
"""

import argparse
import itertools
import math
import re
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


def megatron(
    folder: Path,
    tensors: Tensors,
    *,
    tensor: int = 1,
    pipeline: int = 1,
    virtual: int = 1,
    expert: int = 1,
    old: bool = False,
    steps: int = 100,
    **arguments: object,
) -> Path:
    """Write a checkpoint of a step as Megatron-LM does, a file for each rank; its folder.

    Args:
        folder: gets the step's folder, and the file that names it.
        tensors: those of a model on one rank, as Megatron-core names them.
        tensor: number of tensor ranks.
        pipeline: number of pipeline ranks.
        virtual: number of parts of the model that each pipeline rank has.
        expert: number of expert ranks.
        old: whether names are those before Megatron-core.
        steps: made so far.
        arguments: of training, besides the numbers of ranks.
    """
    step = folder / f"iter_{steps:07}"
    layers = 1 + max(int(n.split(".")[2]) for n in tensors if n.startswith("decoder.layers."))
    sizes = {f"{k}_model_parallel_size": n for k, n in
             (("tensor", tensor), ("pipeline", pipeline), ("expert", expert))}  # fmt: skip
    args = argparse.Namespace(num_layers=layers, **sizes, **arguments)
    stages = [range(layers * n // (pipeline * virtual), layers * (n + 1) // (pipeline * virtual))
              for n in range(pipeline * virtual)]  # fmt: skip
    for t, p, e in itertools.product(range(tensor), range(pipeline), range(expert)):
        saved: dict[str, Any] = {"args": args, "checkpoint_version": 3.0, "iteration": steps}
        for v in range(virtual):
            stage = v * pipeline + p
            part = {}
            for name, whole in tensors.items():
                here = _in_stage(name, stages[stage], stage, pipeline * virtual)
                if here and (own := _of_expert(here, e, expert, tensors)):
                    part[own] = _cut(name, whole, t, tensor)
            saved["model" if virtual == 1 else f"model{v}"] = _nested(part) if old else part
        rank = f"mp_rank_{t:02}" + f"_{p:03}" * (pipeline > 1) + f"_{e:03}" * (expert > 1)
        (step / rank).mkdir(parents=True)
        torch.save(saved, step / rank / "model_optim_rng.pt")
    (folder / "latest_checkpointed_iteration.txt").write_text(str(steps))
    return step


def _in_stage(name: str, layers: range, stage: int, stages: int) -> str:
    """The name of a tensor in a stage of the pipeline, empty if it is in another."""
    if match := re.fullmatch(r"decoder\.layers\.(\d+)\.(.*)", name):
        number = int(match[1])
        return f"decoder.layers.{number - layers.start}.{match[2]}" if number in layers else ""
    return name if stage == (0 if name.startswith("embedding.") else stages - 1) else ""


def _of_expert(name: str, rank: int, ranks: int, tensors: Tensors) -> str:
    """The name of a tensor on an expert rank, empty if another one has it."""
    match = re.fullmatch(r"(.*\.local_experts\.)(\d+)(\..*)", name)
    if not match:
        return name
    found = (re.search(r"\.local_experts\.(\d+)\.", each) for each in tensors)
    count = (1 + max(int(each[1]) for each in found if each)) // ranks
    number = int(match[2]) - rank * count
    return f"{match[1]}{number}{match[3]}" if 0 <= number < count else ""


def _cut(name: str, whole: torch.Tensor, rank: int, ranks: int) -> torch.Tensor:
    """What a tensor rank has of a tensor."""
    if re.search(r"linear_fc1\.weight$", name):  # half of it is the gate
        return torch.cat([half.chunk(ranks)[rank] for half in whole.chunk(2)])
    if re.search(r"word_embeddings|output_layer|linear_qkv\.(?:weight|bias)$", name):
        return whole.chunk(ranks)[rank].clone()
    if re.search(r"(?:linear_proj|linear_fc2)\.weight$", name):
        return whole.chunk(ranks, 1)[rank].clone()
    return whole


_BEFORE_CORE = (
    ("decoder.final_layernorm", "encoder.final_norm"),
    ("decoder.", "encoder."),
    ("self_attention.linear_qkv", "self_attention.query_key_value"),
    ("self_attention.linear_proj", "self_attention.dense"),
    ("mlp.linear_fc1", "mlp.dense_h_to_4h"),
    ("mlp.linear_fc2", "mlp.dense_4h_to_h"),
    ("input_layernorm", "input_norm"),
    ("pre_mlp_layernorm", "post_attention_norm"),
)


def _nested(tensors: Tensors) -> dict[str, Any]:
    """Tensors as Megatron-LM kept them before Megatron-core, in nested dicts."""
    model: dict[str, Any] = {}
    for name, value in tensors.items():
        for new, before in _BEFORE_CORE:
            name = name.replace(new, before)
        top, _, rest = name.partition(".")
        if top == "embedding":
            model.setdefault(top, {}).setdefault("word_embeddings", {})["weight"] = value
        else:
            model.setdefault(top, {})[rest] = value
    return {"language_model": model}
