"""Runs of checkpoints by a trainer's names whose weights are not the model's: ended in time."""

import importlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests import trainers
from tests.runs import Workspace
from tests.tiny import tiny_model


def saved(user: Workspace, name: str, change: Callable[[dict[str, Any]], None]) -> Path:
    """The tiny model as Megatron-core has it, in a folder with config and tokenizer."""
    torch: Any = importlib.import_module("torch")
    files: Any = importlib.import_module("safetensors.torch")
    folder = user.folder / name / "iter_0000100"
    shutil.copytree(tiny_model(), folder)
    state = files.load_file(folder / "model.safetensors")
    config = json.loads((folder / "config.json").read_text())
    made = trainers.megatron(state, config)
    change(made)
    torch.save(made, folder / "model.pt")
    (folder / "model.safetensors").unlink()
    return folder


@pytest.mark.parametrize(
    ("what", "status", "words"),
    [
        ("lost", 2, "2 tensors of the model are missing: model.layers.0.self_attn.o_proj.weight"),
        ("nan", 1, "not finite in 1 tensor: model.norm.weight: 1 NaN"),
    ],
)
def test_weights_that_are_not_the_models_end_the_run_before_an_engine_starts(
    user: Workspace, what: str, status: int, words: str
) -> None:
    def change(state: dict[str, Any]) -> None:
        if what == "nan":
            state["decoder.final_layernorm.weight"][3] = float("nan")
            return
        for name in [name for name in state if "linear_proj.weight" in name]:
            del state[name]

    run = user.folder / f"{what} names run"
    done = user.call(
        "run", saved(user, f"{what} names", change), "--suite", user.suite("tiny_choice"),
        "--run-dir", run, status=status,
    )  # fmt: skip
    assert words in done.stderr + done.stdout
    assert not list((run / "outputs").glob("*/*.jsonl"))
