"""Formats of checkpoints that engines do not load, told from names in a folder.

Each is said in its own words: what it is, and what turns it into safetensors. None is read.
"""

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from coordinate_eval._format import brief
from coordinate_eval.coordinator.inputs.checkpoints import checkpoint_files, remote
from coordinate_eval.coordinator.inputs.checkpoints.saved import step_of
from coordinate_eval.errors import UserError

OURS: Final = (
    "model.safetensors", "model.safetensors.index.json", "pytorch_model.bin",
    "pytorch_model.bin.index.json", ".metadata", "consolidated.safetensors", "lit_model.pth",
    "adapter_model.safetensors", "adapter_model.bin",
)  # fmt: skip
"""Files that make a folder a checkpoint that can be evaluated: one of them is enough."""

MEGATRON_TRACKER: Final = "latest_checkpointed_iteration.txt"
_TRACKERS: Final = ("latest", MEGATRON_TRACKER)
_MOST_TRACKER_BYTES = 4096
_STEP = re.compile(r"global_step\d+|iter_\d{7}")  # DeepSpeed's and Megatron's folders
_MOST_FOLDERS = 1000  # looked into for checkpoints
_MOST_LISTED = 20  # the same in a store, which is asked for each
_TO_HF = "Convert it to Hugging Face's format first"


@dataclass(frozen=True)
class Format:
    """A format, and the names in a folder that tell it."""

    what: str
    then: str
    """The advice. {path} stands for the folder, for a shell."""
    signs: tuple[str, ...]
    """Regular expressions. A folder is of this format if each of them matches a name in it."""

    def parts(self, names: Sequence[str]) -> set[str] | None:
        """Return the names that tell this format, None if they do not."""
        found = [{name for name in names if re.fullmatch(sign, name)} for sign in self.signs]
        return set().union(*found) if all(found) else None


_MEGATRON = (
    "convert it to Hugging Face's format with Megatron Bridge (AutoBridge.export_ckpt), or with "
    "the trainer's converter"
)
# The first that fits counts: special ones before those that they are made of.
_FORMATS = (
    Format(
        "an adapter (LoRA or alike) that is not whole",
        "It needs adapter_config.json and adapter_model.safetensors (or .bin). If it is being "
        "written, try again afterwards",
        (r"adapter_(?:config\.json|model(?:\..*)?)",),
    ),
    Format(
        "a distributed checkpoint of Megatron Core without .metadata, which torch_dist writes",
        "If it is being written, try again afterwards. If its format is the older zarr, "
        f"{_MEGATRON}",
        (r"common\.pt",),
    ),
    Format(
        "a file of a rank of Megatron-LM",
        "Give the folder above those of the ranks, such as iter_0001000",
        (r"(?:model_optim_rng|distrib_optim|model_rng)\.pt",),
    ),
    Format(
        "a folder of Megatron's checkpoints, whose last step is not told",
        "Give the folder of a step in it, such as {path}/iter_0001000",
        (r"latest_checkpointed_iteration\.txt|iter_\d{7}",),
    ),
    Format(
        "a NeMo 2 checkpoint without weights/.metadata, which torch_dist writes last",
        "If it is being written, try again afterwards. If its format is the older zarr, convert it "
        "to Hugging Face's format: nemo llm export path={path} target=hf output_path=OUT",
        (r"context", r"weights"),
    ),
    Format(
        "an archive of NeMo 1",
        "Unpack the file: tar -xf FILE.nemo -C OUT. Then give OUT/model_weights, or OUT if that is "
        "no folder. If its format is the older zarr, convert it to Hugging Face's format with "
        "NeMo's scripts/checkpoint_converters",
        (r".*\.nemo|model_config\.yaml", r".*\.nemo|model_weights"),
    ),
    Format(
        "a checkpoint of LLM Foundry or Composer, a file for each rank",
        f"{_TO_HF}, with LLM Foundry's scripts/inference/convert_composer_to_hf.py",
        (r"ep\d+-ba\d+-rank0*[1-9]\d*\.pt", r"ep\d+-ba\d+-rank\d+\.pt"),
    ),
    Format(
        "a distributed checkpoint of PyTorch without its .metadata, which is written last",
        "If it is being written, try again afterwards; else the save was interrupted: give an "
        "earlier checkpoint",
        (r".*\.distcp",),
    ),
    Format(
        "a DeepSpeed checkpoint, of which files of ranks are missing",
        "Give the folder of a step, such as global_step1000, with *_model_states.pt of each rank",
        (r"(?:layer_|mp_rank_|expert_|(?:bf16_|fp16_)?zero_pp_rank_)\d.*_states\.pt",),
    ),
    Format(
        "a folder of DeepSpeed's checkpoints, whose last step is not told",
        "Give the folder of a step in it, such as {path}/global_step1000",
        (r"zero_to_fp32\.py|global_step\d+",),
    ),
    Format(
        "a checkpoint of verl, a file for each rank",
        "Merge them, and give OUT: python -m verl.model_merger merge --backend fsdp "
        "--local_dir {path} --target_dir OUT",
        (r"model_world_size_\d+_rank_\d+\.pt",),
    ),
    Format(
        "a Llama checkpoint in Meta's own format, cut into parts of ranks",
        "Convert it, and give OUT: python -m transformers.models.llama.convert_llama_weights_to_hf "
        "--input_dir {path} --output_dir OUT",
        (r"consolidated\.0*[1-9]\d*\.pth", r"consolidated\.\d+\.pth"),
    ),
    Format(
        "a nanotron checkpoint",
        f"{_TO_HF}, with nanotron's examples/llama/convert_nanotron_to_hf.py",
        (r"checkpoint_metadata\.json", r"model"),
    ),
    Format(
        "a GGUF model, in llama.cpp's own format",
        "Give the checkpoint that it was made from, or the same model in Hugging Face's format",
        (r".*\.gguf",),
    ),
    Format(
        "a checkpoint of Orbax (JAX: MaxText, Flax, T5X)",
        f"{_TO_HF} with the trainer's converter, such as MaxText's to_huggingface",
        (r"_CHECKPOINT_METADATA|manifest\.ocdbt|ocdbt\.process_\d+|_METADATA|commit_success\.txt",),
    ),
    Format(
        "a model of Flax or TensorFlow",
        "Save it as safetensors with transformers 4: from_pretrained(…, from_flax=True) or "
        "from_tf=True, then save_pretrained(OUT)",
        (r".*\.msgpack|tf_model.*\.h5|.*\.ckpt\.index|.*\.data-\d+-of-\d+",),
    ),
    Format(
        "an engine of TensorRT-LLM",
        "Give the checkpoint that it was made from",
        (r"rank\d+\.(?:engine|safetensors)",),
    ),
    Format("an ONNX model", "Give the checkpoint that it was made from", (r".*\.onnx",)),
    Format(
        "a program that torch.export wrote",
        "Give the checkpoint that it was made from",
        (r".*\.(?:pt2|pte)",),
    ),
    Format(
        "arrays of NumPy",
        "Save them as safetensors: safetensors.numpy.save_file(dict(numpy.load(FILE)), "
        "'model.safetensors')",
        (r".*\.npz",),
    ),
    Format(
        "a pipeline of diffusers, not a language model",
        "Give a language model",
        (r"model_index\.json|diffusion_pytorch_model.*",),
    ),
    Format(
        "a model of PaddlePaddle",
        _TO_HF,
        (r".*\.pdparams",),
    ),
)  # fmt: skip


def recognized(place: Path, names: Sequence[str]) -> tuple[str, set[str]]:
    """Return what a folder or file with these names is, in words, and the names that tell it.

    Args:
        place: the folder, or the file.
        names: in the folder, or of the file.

    Returns:
        Empty words and no names if it is of no format that is known here.
    """
    words, told = "", set[str]()
    path = shlex.quote(str(place))
    for known in _FORMATS:
        if parts := known.parts(names):
            told |= parts
            then = known.then.format(path=path)
            words = words or f"checkpoint {place} is {known.what}. {then}"
    return words, told


def last(place: Path, names: Sequence[str]) -> Path | None:
    """Return the folder that a trainer names as its last step, or the only one of a step.

    DeepSpeed writes `latest`, and Megatron `latest_checkpointed_iteration.txt`, after the step.
    """
    for tracker in (name for name in _TRACKERS if name in names and (place / name).is_file()):
        content = checkpoint_files.read(place / tracker, _MOST_TRACKER_BYTES)
        name = content.decode(errors="replace").strip()
        if tracker == MEGATRON_TRACKER and name.isdecimal():
            name = f"iter_{int(name):07}"
        if not name:
            continue
        if name != Path(name).name or name == ".." or not name.isprintable():
            raise UserError(f"{place / tracker} names no folder: it holds {brief(repr(name))}")
        return place / name
    steps = [name for name in names if _STEP.fullmatch(name)]
    return place / steps[0] if len(steps) == 1 else None


def below(place: Path, names: Sequence[str]) -> str:
    """Return words about checkpoints that lie in folders of a folder, empty if there are none."""
    stored = isinstance(place, remote.RemotePath)
    most = _MOST_LISTED if stored else _MOST_FOLDERS
    inside = [name for name in names[:most] if _holds_weights(place / name)]
    if not inside:
        return ""
    inside.sort(key=lambda name: (step_of(name) or -1, name))
    if len(inside) == 1:
        return f"Weights are in its folder {brief(inside[0])}: give {place / inside[0]}"
    return (
        f"It holds {len(inside)}{' or more' if len(names) > most else ''} checkpoints: give one of "
        f"them, such as {place / inside[-1]}, or evaluate all with: coordinate-eval watch "
        f"{shlex.quote(str(place))}"
    )


def _holds_weights(folder: Path) -> bool:
    return any((folder / name).is_file() for name in OURS)
