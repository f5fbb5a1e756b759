"""Checkpoints, described from headers and small files without torch and without the weights.

A checkpoint is a folder of safetensors with config and tokenizer, as `save_pretrained` writes it,
or a state dict of torch.save with config and tokenizer beside it. Files that are missing, torn or
still being written are reported before anything is submitted.
"""

import hashlib
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from coordinate_eval import _format
from coordinate_eval._format import brief
from coordinate_eval.coordinator.inputs.checkpoints import (
    checkpoint_files,
    safetensors_file,
    torch_file,
)
from coordinate_eval.errors import UserError
from coordinate_eval.records import Checkpoint, CheckpointFormat

DEFAULT_MAX_LENGTH: Final = 2048
"""Tokens of context if the config gives none, as in older models without that entry."""

_INDEX = "model.safetensors.index.json"
_SINGLE = "model.safetensors"
_TORCH_SUFFIXES = {".pt", ".pth", ".bin"}
# Files that trainers write beside the weights.
_TRAINER_FILES = ("optimizer", "scheduler", "scaler", "rng_state", "random_states", "training_args")
# Read, JSON takes up to thirty times as much. An index of 300,000 tensors fits.
_MOST_CONFIG_BYTES, _MOST_INDEX_BYTES = 4 << 20, 32 << 20
_MOST_WEIGHT_BYTES = 1 << 50
_MOST_TENSORS = 2_000_000
# Above any model's, and small enough that no product of them overflows.
_MOST_TOKENS, _MOST_WIDTH, _MOST_KV_BYTES = 10**9, 10**7, 2**40


def inspect(path: Path, *, config: Path | None = None, tokenizer: Path | None = None) -> Checkpoint:
    """Describe the checkpoint at `path`: a folder, or a .pt, .pth or .bin file.

    Links are resolved here, so a `latest` that moves on later does not matter. `config` and
    `tokenizer` (a file, or its folder) are used instead of those of the checkpoint.

    Raises:
        UserError: A file is missing, torn, malformed, unreadable, or would run code.
    """
    try:
        place = _resolve(path)
        weights, kind, extra = _find_weights(place)
        # Configs may lie beside a link to a file, or beside the file.
        beside = [place] if place.is_dir() else [place.parent, path.absolute().parent]
        config_file = _find_config(place, beside, config)
        files = {
            *extra,
            config_file,
            *checkpoint_files.present(config_file.parent, ["generation_config.json"]),
            *_find_tokenizer(place, beside, tokenizer),
        }
        sides = sorted(files, key=lambda file: file.name)
        _check_sides(sides)
        _check_whole(sides)
        counts = _count(weights, kind, extra)
        identity = _identity(weights, sides)
        size = sum(file.stat().st_size for file in weights)
        if size > _MOST_WEIGHT_BYTES:
            raise UserError(
                f"checkpoint {place} claims {_format.size(size)} of weights, which no disk holds. "
                "Save it again"
            )
        return Checkpoint(
            path=_text(place),
            identity=identity,
            format=kind,
            weights=[_text(file) for file in weights],
            files=[_text(file) for file in sides],
            bytes=size,
            parameters=sum(counts.values()),
            dtype=max(counts, key=lambda dtype: counts[dtype]),
            **_shape(_load_json(config_file, _MOST_CONFIG_BYTES), counts, config_file),
        )
    except OSError as error:
        where = error.filename or path
        raise UserError(
            f"checkpoint {path}: cannot read {where} ({error.strerror or error}). "
            "Check its permissions, and that the run still writes there"
        ) from error


def unchanged(checkpoint: Checkpoint) -> bool:
    """Return whether names, sizes and times of the files are still as inspected."""
    try:
        weights, files = map(Path, checkpoint.weights), map(Path, checkpoint.files)
        return _identity(list(weights), list(files)) == checkpoint.identity
    except OSError:
        return False


def _resolve(path: Path) -> Path:
    try:
        place = path.resolve(strict=True)
    except FileNotFoundError as error:
        raise UserError(
            f"checkpoint {path} does not exist. Check the path, and whether this machine "
            "mounts the file system it is on"
        ) from error
    except (RuntimeError, ValueError) as error:  # a circle of links; a NUL in the name
        raise UserError(f"checkpoint {path!r} is not a usable path: {error}") from error
    _text(place)
    return place


def _text(path: Path) -> str:
    """Return the path as text for records, which are UTF-8."""
    try:
        return str(path).encode().decode()
    except UnicodeEncodeError as error:
        raise UserError(f"the name of {path!r} is not UTF-8: rename it") from error


def _find_weights(place: Path) -> tuple[list[Path], CheckpointFormat, list[Path]]:
    """Return the weight files, their format, and small files that belong to them."""
    if place.is_file():
        if place.suffix in _TORCH_SUFFIXES:
            return [place], CheckpointFormat.TORCH, []
        raise UserError(
            f"checkpoint {place} is a file, but not a .pt, .pth or .bin file. "
            "Give the folder for safetensors"
        )
    names = sorted(entry.name for entry in place.iterdir())
    index = place / _INDEX
    if _INDEX in names:
        return _shards(index), CheckpointFormat.SAFETENSORS, [index]
    if _SINGLE in names:
        return [place / _SINGLE], CheckpointFormat.SAFETENSORS, []
    if any(name.endswith(".safetensors") for name in names):
        raise UserError(
            f"checkpoint {place} has safetensors, but neither {_SINGLE} nor {_INDEX}, which is "
            "written last. Wait until it is saved, or save it with save_pretrained"
        )
    files = [
        place / name
        for name in names
        if Path(name).suffix in _TORCH_SUFFIXES and not name.startswith(_TRAINER_FILES)
    ]
    if len(files) == 1:
        return files, CheckpointFormat.TORCH, []
    if files:
        shown = ", ".join(repr(file.name) for file in files[:8])
        raise UserError(
            f"checkpoint {place} has {len(files)} files that may hold the weights ({shown}). "
            "Name one of them; shards must be saved again with save_pretrained"
        )
    shown = f"only {', '.join(map(repr, names[:8]))}" if names else "nothing"
    raise UserError(
        f"checkpoint {place} has no weights ({_SINGLE}, {_INDEX}, or one .pt, .pth or .bin): "
        f"it holds {shown}. If it is being written, try again afterwards"
    )


def _shards(index: Path) -> list[Path]:
    mapping = _load_json(index).get("weight_map")
    if not isinstance(mapping, dict) or not mapping:
        raise UserError(f"{index} has no weight_map. Save the checkpoint again")
    for name in mapping.values():
        if not isinstance(name, str) or Path(name).name != name:
            raise UserError(
                f"{index} names a shard {brief(name)} outside its folder. Save it again"
            )
    names = set(mapping.values())
    missing = sorted(name for name in names if not (index.parent / name).is_file())
    if missing:
        raise UserError(
            f"checkpoint {index.parent} is incomplete: {len(missing)} of {len(names)} shards in "
            f"{index.name} are missing, such as {brief(missing[0])}. If it is being written, try "
            "again afterwards"
        )
    return [index.parent / name for name in sorted(names)]


def _find_config(place: Path, beside: list[Path], given: Path | None) -> Path:
    folders, where = beside, place
    if given is not None:
        where = _resolve_given(given)
        folders = [where if where.is_dir() else where.parent]
        if where.is_file() and where.name != "config.json":
            raise UserError(f"config {given} must be named config.json: engines look for that")
    for folder in folders:
        for file in checkpoint_files.present(folder, ["config.json"]):
            return file
    raise UserError(f"{where} has no config.json. Put the model's there, or give --config FILE")


def _find_tokenizer(place: Path, beside: list[Path], given: Path | None) -> list[Path]:
    folders, where = beside, place
    if given is not None:
        where = _resolve_given(given)
        folders = [where if where.is_dir() else where.parent]
    for folder in folders:
        if checkpoint_files.present(folder, checkpoint_files.TOKENIZERS):
            return checkpoint_files.present(folder, checkpoint_files.TOKENIZER_FILES)
    raise UserError(
        f"{where} has no tokenizer (tokenizer.json, tokenizer.model, or vocabulary files). "
        "Put the model's there, or give --tokenizer FOLDER"
    )


def _resolve_given(given: Path) -> Path:
    try:
        return given.resolve(strict=True)
    except (FileNotFoundError, RuntimeError, ValueError) as error:
        raise UserError(f"{given} does not exist") from error


def _check_sides(files: Sequence[Path]) -> None:
    """Refuse more than can be copied to every node."""
    sizes = {file: file.stat().st_size for file in files}
    most = checkpoint_files.MOST_SIDE_BYTES_IN_ALL
    if sum(sizes.values()) > most:
        largest = max(sizes, key=lambda file: sizes[file])
        raise UserError(
            f"the files beside the weights have {_format.size(sum(sizes.values()))}, more than "
            f"the {_format.size(most)} that a checkpoint may have. The largest is {largest}"
        )


def _check_whole(files: Sequence[Path]) -> None:
    """Refuse a torn tokenizer.json, by its ends: to parse one takes seconds and much memory."""
    for file in files:
        if file.name == "tokenizer.json":
            content = checkpoint_files.read(file).strip()
            if not (content.startswith(b"{") and content.endswith(b"}")):
                raise UserError(
                    f"{file} is torn: it is no JSON object. If it is being written, try again "
                    "afterwards; else save the tokenizer again"
                )


def _count(
    weights: Sequence[Path], kind: CheckpointFormat, extra: Sequence[Path]
) -> dict[str, int]:
    """Count parameters by type, from headers alone.

    Raises:
        UserError: A file is torn, empty, or not what its name says.
    """
    for file in weights:
        with checkpoint_files.opened(file, weights=True) as opened:
            if not opened.seek(0, os.SEEK_END):
                raise UserError(f"{file} is empty. If it is being written, try again afterwards")
    if kind is CheckpointFormat.TORCH:
        counts = torch_file.read(weights[0])
    else:
        held: dict[str, str] = {}
        counts = {}
        for file in weights:
            for tensor, (dtype, size) in safetensors_file.read(file).items():
                held[tensor] = file.name
                counts[dtype] = counts.get(dtype, 0) + size
            if len(held) > _MOST_TENSORS:
                raise UserError(f"{file.parent} has more than {_MOST_TENSORS:,} tensors")
        for index in extra:
            for tensor, shard in _load_json(index)["weight_map"].items():
                if held.get(tensor) != shard:
                    raise UserError(
                        f"{index} promises {brief(tensor)} in {brief(shard)}, which lacks it"
                    )
    if not sum(counts.values()):
        raise UserError(f"{weights[0].parent} has no parameters: its weight files hold no tensors")
    return counts


def _load_json(file: Path, most: int = _MOST_INDEX_BYTES) -> dict[str, Any]:
    try:
        value = json.loads(checkpoint_files.read(file, most))
    except (ValueError, RecursionError) as error:  # malformed JSON, or no UTF-8
        raise UserError(
            f"{file} is not JSON: {brief(error)}. If it is being written, try again afterwards"
        ) from error
    if not isinstance(value, dict):
        raise UserError(f"{file} must hold a JSON object, not a {type(value).__name__}")
    return value


def _shape(config: dict[str, Any], counts: dict[str, int], file: Path) -> dict[str, int]:
    """Return the fields of `Checkpoint` that the config gives; families use different names.

    Raises:
        UserError: A number is larger than any model's.
    """

    def number(*names: str, most: int = _MOST_WIDTH) -> int | None:
        return _integer(merged, names, most, file)

    nested = config.get("text_config")
    merged = config | nested if isinstance(nested, dict) else config
    max_length = number(
        "max_position_embeddings",
        "n_positions",
        "max_sequence_length",
        "max_seq_len",
        "seq_length",
        "n_ctx",
        "model_max_length",
        most=_MOST_TOKENS,
    )
    heads = number("num_attention_heads", "n_head", "n_heads", "num_heads") or 1
    layers = number("num_hidden_layers", "n_layer", "n_layers", "num_layers") or 0
    width = number("hidden_size", "n_embd", "d_model", "dim") or 0
    kv_heads = number("num_key_value_heads", "n_head_kv", "num_kv_heads")
    if kv_heads is None:
        kv_heads = 1 if merged.get("multi_query") is True else heads
    head_size = number("head_dim", "kv_channels") or width // heads
    # Engines keep keys and values in 16 bits, or in 32 when the weights are.
    item = 4 if max(counts, key=lambda dtype: counts[dtype]) in ("float32", "float64") else 2
    kv_bytes = 2 * layers * kv_heads * head_size * item
    if latent := number("kv_lora_rank"):
        # Multi-head latent attention keeps one compressed vector for all heads, and a rotated key
        # (DeepSeek-AI, "DeepSeek-V2", 2024, section 2.1).
        kv_heads = 1
        kv_bytes = layers * (latent + (number("qk_rope_head_dim") or 0)) * item
    if kv_bytes > _MOST_KV_BYTES:
        raise UserError(
            f"{file}: {_format.size(kv_bytes)} of keys and values a token, as no model has"
        )
    return {
        "max_length": max_length or DEFAULT_MAX_LENGTH,
        # Engines take the nested one, too. Some models pad it, and name both.
        "vocabulary": number("padded_vocab_size", "vocab_size", most=_MOST_TOKENS) or 0,
        "attention_heads": heads,
        "kv_bytes_per_token": kv_bytes,
        "kv_heads": kv_heads,
        "activation_bytes_per_token": layers * width * item,
    }


def _integer(config: dict[str, Any], names: Sequence[str], most: int, file: Path) -> int | None:
    """Return the first of these that is a positive number; the largest if layers differ.

    Raises:
        UserError: The number is more than `most`.
    """
    for name in names:
        value = config.get(name)
        values = value if isinstance(value, list) else [value]
        numbers = [each for each in values if type(each) is int and each > 0]
        if numbers:
            if max(numbers) > most:
                raise UserError(f"{file}: {name} is larger than {most:,}, which no model has")
            return max(numbers)
    return None


def _identity(weights: Sequence[Path], files: Sequence[Path]) -> str:
    digest = hashlib.sha256()
    for file in sorted(weights):
        status = file.stat()
        digest.update(json.dumps([file.name, status.st_size, status.st_mtime_ns]).encode())
    for file in sorted(files, key=lambda file: file.name):
        content = hashlib.sha256(checkpoint_files.read(file)).hexdigest()
        digest.update(json.dumps([file.name, content]).encode())
    return digest.hexdigest()


def staged_bytes(source: Checkpoint) -> int:
    """Return the bytes of the staged copy: weights and small files."""
    return source.bytes + sum(Path(f).stat().st_size for f in source.files)
