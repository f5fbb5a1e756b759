"""Write checkpoints with DeepSpeed itself, and compare what is read from them bit for bit.

Run by hand where deepspeed is installed; it needs no GPU:

    DS_ACCELERATOR=cpu python -m tests.scripts.compare_deepspeed FOLDER
"""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

CASES = (
    (0, 2, "bf16"),
    (1, 2, "bf16"),
    (1, 2, "fp32"),
    (2, 2, "bf16", "groups", "tied"),
    (2, 4, "fp32", "groups", "frozen"),
    (3, 2, "fp32"),
    (3, 2, "bf16", "groups", "tied"),
    (3, 4, "bf16", "groups", "frozen"),
)
"""Stages of ZeRO, numbers of ranks, and what else differs."""


def train(stage: int, out: str, *more: str) -> None:
    """Train a small model for two steps, and save it; called in each rank."""
    import deepspeed
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    deepspeed.init_distributed("gloo")
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=101, hidden_size=24, intermediate_size=40, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, tie_word_embeddings="tied" in more,
    )  # fmt: skip
    build: Any = LlamaForCausalLM
    model = build(config)
    model.register_buffer("extra", torch.arange(5.0))
    for name, parameter in model.named_parameters():
        parameter.requires_grad = not ("frozen" in more and "layers.0.mlp" in name)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    groups = [
        {"params": [p for p in trained if (p.ndim > 1) == matrix]} for matrix in (True, False)
    ]
    settings = {
        "train_micro_batch_size_per_gpu": 1,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-2, "torch_adam": True}},
        "zero_optimization": {"stage": stage},
        "zero_force_ds_cpu_optimizer": False,
        "bf16": {"enabled": "bf16" in more},
    }
    engine, *_ = deepspeed.initialize(
        model=model, model_parameters=groups if "groups" in more else trained, config=settings
    )
    for _ in range(2):
        tokens = torch.randint(0, 101, (1, 16)).to(engine.device)
        engine.backward(engine(input_ids=tokens, labels=tokens).loss)
        engine.step()
    engine.save_checkpoint(out)


def compare(folder: Path) -> str:
    """Compare a checkpoint with what DeepSpeed's own tool makes of it; return words."""
    import torch
    from deepspeed.utils.zero_to_fp32 import get_fp32_state_dict_from_zero_checkpoint

    from coordinate_eval.coordinator.inputs.checkpoints.formats import deepspeed_zero

    (step,) = folder.glob("global_step*")
    found = deepspeed_zero.find(step, sorted(entry.name for entry in step.iterdir()), ())
    assert found is not None
    read = deepspeed_zero.open_source(*found)
    if "stage-0" in folder.name:
        expected = torch.load(found[0][0], weights_only=False)["module"]
    else:
        expected = get_fp32_state_dict_from_zero_checkpoint(str(folder))
    assert expected.keys() == read.tensors.keys()
    different = [name for name, t in expected.items() if not torch.equal(t, read.read(name))]
    return f"differ: {different}" if different else f"{len(expected)} tensors are equal"


def main() -> None:
    """Write and compare all cases below a folder."""
    top = Path(sys.argv[1])
    for stage, ranks, *more in CASES:
        folder = top / "-".join(map(str, ("stage", stage, "ranks", ranks, *more)))
        arguments = ["-m", "tests.scripts.compare_deepspeed", "--train", str(stage), str(folder)]
        command = [sys.executable, "-m", "torch.distributed.run", f"--nproc-per-node={ranks}"]
        subprocess.run([*command, *arguments, *map(str, more)], check=True, env=dict(os.environ))
        print(folder.name, compare(folder), flush=True)


if __name__ == "__main__":
    if sys.argv[1] == "--train":
        train(int(sys.argv[2]), *sys.argv[3:])
    else:
        main()
