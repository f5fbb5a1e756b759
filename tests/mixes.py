"""Checkpoints that are made of others: adapters of the tiny model, and what PEFT makes of them."""

import importlib
import json
import shutil
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from coordinate_eval.coordinator.inputs.checkpoints.formats.layouts import Tensor
from coordinate_eval.coordinator.inputs.checkpoints.formats.sources import Source
from coordinate_eval.coordinator.workers.on_node.staging import StagedWeights
from coordinate_eval.records import Checkpoint
from tests.tiny import need, tiny_model


class Held(Source):
    """A source of tensors that are in memory."""

    def __init__(self, held: dict[str, Any]) -> None:
        self._held = held
        self._tensors = {
            name: Tensor(str(each.dtype).removeprefix("torch."), tuple(each.shape))
            for name, each in held.items()
        }

    @property
    def tensors(self) -> Mapping[str, Tensor]:
        """Return their types and shapes."""
        return self._tensors

    def read(self, name: str) -> Any:
        """Return a copy of one."""
        return self._held[name].clone()

    def layout(self, name: str) -> None:
        """Return None: the tensors are in no file."""


def saved(folder: Path, seed: int, dtype: str = "bfloat16") -> Path:
    """Return a folder with the tiny model, moved a little from where it was."""
    torch: Any = importlib.import_module("torch")
    files: Any = importlib.import_module("safetensors.torch")
    shutil.copytree(tiny_model(), folder)
    torch.manual_seed(seed)
    kind = getattr(torch, dtype)
    moved = {
        name: (tensor + torch.randn_like(tensor) * 0.02).to(kind)
        for name, tensor in files.load_file(folder / "model.safetensors").items()
    }
    files.save_file(moved, folder / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "dtype": dtype}))
    return folder


def adapted(base: Path, adapter: Path, **config: Any) -> Path:
    """Write a trained adapter of a base. Return the folder of what PEFT merges both to."""
    need("peft", "dev")
    peft: Any = importlib.import_module("peft")
    torch: Any = importlib.import_module("torch")
    transformers: Any = importlib.import_module("transformers")
    merged = adapter.with_name(f"{adapter.name}-merged")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = transformers.AutoModelForCausalLM.from_pretrained(base, dtype="auto")
        given = {"target_modules": ["q_proj", "down_proj"], **config}
        made = peft.get_peft_model(model, peft.LoraConfig(task_type="CAUSAL_LM", **given))
        torch.manual_seed(3)
        for name, parameter in made.named_parameters():
            if "lora_" in name:
                parameter.data.add_(torch.randn_like(parameter) * 0.1)
        made.save_pretrained(adapter)
        again = transformers.AutoModelForCausalLM.from_pretrained(base, dtype="auto")
        peft.PeftModel.from_pretrained(again, adapter).merge_and_unload().save_pretrained(merged)
    for file in base.iterdir():
        if "token" in file.name:
            shutil.copy(file, merged)
    return merged


def written_adapter(folder: Path, base: Path, held: dict[str, Any], **config: Any) -> Path:
    """Write an adapter with these tensors. Return its folder."""
    files: Any = importlib.import_module("safetensors.torch")
    folder.mkdir(parents=True)
    told = {"peft_type": "LORA", "r": 2, "lora_alpha": 2, "target_modules": ["q_proj"], **config}
    text = json.dumps({**told, "base_model_name_or_path": str(base)})
    (folder / "adapter_config.json").write_text(text)
    files.save_file(held, folder / "adapter_model.safetensors")
    return folder


def reconfigured(source: Path, folder: Path, **changes: Any) -> Path:
    """Copy a checkpoint into a new folder, with another config. Return the folder."""
    shutil.copytree(source, folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **changes}))
    return folder


def staged(checkpoint: Checkpoint, root: Path) -> Path:
    """Return the folder that a keeper has written of a checkpoint."""
    weights = StagedWeights(str(root), "run", "node")
    with weights.hold():
        assert weights.copy(checkpoint)
        shutil.copytree(weights.folder, root / "kept")
    return root / "kept"


def tensors(folder: Path) -> dict[str, Any]:
    """Return all tensors in the safetensors files of a folder."""
    files: Any = importlib.import_module("safetensors.torch")
    found: dict[str, Any] = {}
    for file in folder.glob("*.safetensors"):
        found |= files.load_file(file)
    return found
