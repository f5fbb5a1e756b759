"""The files of a checkpoint: its weights, its config and its tokenizer, wherever they lie.

Files that are missing, torn or still being written are reported before anything is submitted.
"""

import contextlib
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from coordinate_eval import _format
from coordinate_eval._format import brief
from coordinate_eval.coordinator.inputs.checkpoints import (
    checkpoint_files,
    config_file,
    folder_file,
    reading,
    remote,
)
from coordinate_eval.coordinator.inputs.checkpoints.formats import (
    dcp_metadata,
    safetensors_file,
    torch_file,
    unread,
)
from coordinate_eval.coordinator.inputs.checkpoints.formats.sources import Source
from coordinate_eval.coordinator.inputs.checkpoints.mixed import adapter
from coordinate_eval.coordinator.inputs.checkpoints.model.layers import LAYERS
from coordinate_eval.errors import UserError
from coordinate_eval.records import CheckpointFormat

_OR_NAMED: Final = f". A {folder_file.NAME} in the folder of the checkpoints can name it, too: "


class Found(NamedTuple):
    """The weights at a path, as far as they can be told."""

    place: Path
    format: CheckpointFormat
    weights: Sequence[Path]
    source: Source
    """Its tensors by the names that they are stored under."""


def find(path: Path) -> Found:
    """Find the weights at `path`, whatever else is missing there.

    Raises:
        UserError: There are none, or a file is torn.
    """
    place = resolve(path)
    weights, kind, extra = find_weights(place)
    check_weights(weights)
    return Found(place, kind, weights, reading.stored(kind, weights, extra))


def find_beside(
    path: Path, *, config: Path | None = None, tokenizer: Path | None = None
) -> tuple[Path | None, list[Path]]:
    """Return the config of a checkpoint and the files of its tokenizer, where they are found."""
    path = remote.located(path)
    place = resolve(path)
    beside = [*([place] if place.is_dir() else []), place.parent, path.absolute().parent]
    told = folder_file.of(place)
    with contextlib.suppress(UserError):
        config = config or told.unless(without_trainings(beside), "config", [config_file.CONFIG])
    tokenizer = tokenizer or told.unless(beside, "tokenizer", checkpoint_files.TOKENIZERS)
    files: list[Path] = []
    found = None
    with contextlib.suppress(UserError):
        found = find_config(place, beside, config)
    with contextlib.suppress(UserError):
        files = find_tokenizer(place, beside, tokenizer)
    return found, files


def find_weights(place: Path) -> tuple[list[Path], CheckpointFormat, list[Path]]:
    """Return the weight files, their format, and small files that belong to them.

    They may lie in the folder that a trainer's folder names as its last step.
    """
    names = [place.name] if place.is_file() else sorted(entry.name for entry in place.iterdir())
    words, parts = unread.recognized(place, names)
    found = _found(place, names, parts)
    if (found is None or _is_state(found[0][0])) and (own := adapter.find(place)):
        return own, CheckpointFormat.ADAPTER, []
    last = unread.last(place, names)
    if last and last.is_dir() and (found is None or _is_hull(*found)):
        inside = sorted(entry.name for entry in last.iterdir())
        inner, told = unread.recognized(last, inside)
        found = _found(last, inside, told) or found
        found = found or _lone(place, names, parts) or _lone(last, inside, told)
        words, parts = inner or words, parts | told
    if found := found or _lone(place, names, parts):
        return found
    if last and not last.is_dir():
        raise UserError(
            f"checkpoint {place} names {brief(last.name)} as its last step, which is not there. "
            "Copy it there, or give another step"
        )
    if place.is_file():
        raise UserError(
            words
            or f"checkpoint {place} is a file, but not a .safetensors, .pt, .pth or .bin file. "
            "Give its folder"
        )
    below = unread.below(place, names)
    words = words or _none(place, names, torch_file.candidates(place, names, parts), below)
    raise UserError(". ".join(filter(None, (words, below))))


def _found(
    place: Path, names: Sequence[str], parts: Collection[str]
) -> tuple[list[Path], CheckpointFormat, list[Path]] | None:
    for kind, reader in reading.READERS.items():
        if found := reader.find(place, names, parts):
            weights, extra = found
            return weights, kind, extra
    return None


def _lone(
    place: Path, names: Sequence[str], parts: Collection[str]
) -> tuple[list[Path], CheckpointFormat, list[Path]] | None:
    if found := torch_file.lone(place, names, parts):
        return found, CheckpointFormat.TORCH, []
    named = _of_other_names(place, names, parts)
    return (named, CheckpointFormat.SAFETENSORS, []) if len(named) == 1 else None


def _of_other_names(place: Path, names: Sequence[str], parts: Collection[str]) -> list[Path]:
    """Return the safetensors that may hold a whole model, whatever they are called."""
    files = torch_file.candidates(place, names, parts, {safetensors_file.SUFFIX})
    return [file for file in files if not safetensors_file.is_part(file.name)]


def _is_state(file: Path) -> bool:
    """Return whether a file is of what accelerate saves with FSDP to go on from."""
    return any(name.startswith("pytorch_model_fsdp") for name in (file.name, file.parent.name))


def _is_hull(weights: Sequence[Path], kind: CheckpointFormat, extra: Sequence[Path]) -> bool:
    """Return whether files have empty tensors: ZeRO 3 saves some where it gathers no weights."""
    tensors = reading.READERS[kind].open_source(weights, extra).tensors.values()
    return any(tensor.shape == (0,) for tensor in tensors)


def _none(place: Path, names: Sequence[str], files: Sequence[Path], below: str) -> str:
    """Return words about a folder in which the weights are not found, but may be `below`."""
    single, index = safetensors_file.SINGLE, safetensors_file.INDEX
    if own := [name for name in names if name.endswith(safetensors_file.SUFFIX)]:
        return (
            f"checkpoint {place} has {_shown(own)}, but neither {single} nor {index}, which is "
            "written last. Wait until it is saved, or save it with save_pretrained. If one of its "
            "files is a whole model, give that file"
        )
    if files:
        shown = _shown([file.name for file in files])
        return (
            f"checkpoint {place} has {len(files)} files that may hold the weights ({shown}). "
            "Give the path of one of them. If they are parts of one model, save it again with "
            "save_pretrained"
        )
    if below:
        return f"checkpoint {place} has no weights itself"
    shown = f"only {_shown(names)}" if names else "nothing"
    return (
        f"checkpoint {place} has no weights ({single}, {index}, or one .pt, .pth or .bin): "
        f"it holds {shown}. If it is being written, try again afterwards"
    )


def _shown(names: Sequence[str]) -> str:
    return ", ".join(map(repr, names[:8]))


def find_config(
    place: Path, beside: list[Path], given: Path | None, weights: Sequence[Path] = ()
) -> Path:
    """Return the config.json of a checkpoint: in `given`, else the first of a model beside it.

    If there is none, return the params.json beside `weights` of Meta's or Mistral's own.
    """
    where, folders = _where_to_look(place, beside, given)
    if given is not None and where.is_file() and where.name != config_file.CONFIG:
        raise UserError(f"config {given} must be named config.json: engines look for that")
    found = [each for f in folders for each in checkpoint_files.present(f, [config_file.CONFIG])]
    if found:  # a trainer's own may lie beside a checkpoint, and the model's above it
        return next(filter(_is_of_model, found), found[0]) if len(found) > 1 else found[0]
    if given is None and weights and weights[0].name.startswith("consolidated"):
        params = weights[0].with_name(config_file.PARAMS)
        if params.exists():
            return params
    raise UserError(
        f"{where} has no config.json. Put the model's there in Hugging Face's format, or give "
        f"--config FILE{_OR_NAMED}config: FILE"
    )


def without_trainings(folders: Sequence[Path]) -> list[Path]:
    """Return folders but those whose config.json is a trainer's own, such as OLMo-core's.

    Raises:
        UserError: One is malformed.
    """
    configs = ((f, checkpoint_files.present(f, [config_file.CONFIG])) for f in folders)
    return [folder for folder, found in configs if all(map(_is_of_model, found))]


def _is_of_model(file: Path) -> bool:
    """Return whether a config describes a model in Hugging Face's format, not a training."""
    whole = config_file.read(file)
    return any(key in whole for key in ("model_type", "architectures", "text_config", *LAYERS))


def find_tokenizer(place: Path, beside: list[Path], given: Path | None) -> list[Path]:
    """Return the files of a checkpoint's tokenizer: in `given`, else beside it."""
    where, folders = _where_to_look(place, beside, given)
    for folder in folders:
        if checkpoint_files.present(folder, checkpoint_files.TOKENIZERS):
            return checkpoint_files.present(folder, checkpoint_files.TOKENIZER_FILES)
    raise UserError(
        f"{where} has no tokenizer (tokenizer.json, tokenizer.model, or vocabulary files). Put "
        f"the model's there, or give --tokenizer FOLDER{_OR_NAMED}tokenizer: FOLDER"
    )


def _where_to_look(place: Path, beside: list[Path], given: Path | None) -> tuple[Path, list[Path]]:
    """Return a place for messages, and its folders: that of a given file, else the checkpoint's."""
    if given is None:
        return place, beside
    try:
        where = remote.located(given).resolve(strict=True)
    except (FileNotFoundError, RuntimeError, ValueError) as error:
        raise UserError(f"{given} does not exist") from error
    return where, [where if where.is_dir() else where.parent]


def resolve(path: Path) -> Path:
    """Return where a checkpoint is, without links: of its safetensors and index, their folder."""
    path = remote.located(path)
    try:
        ends = (safetensors_file.SUFFIX, ".index.json")
        if path.name.endswith(ends) and path.is_file() and not safetensors_file.alone(path):
            path = path.absolute().parent
        place = path.resolve(strict=True)
    except FileNotFoundError as error:
        if isinstance(path, remote.RemotePath):
            raise UserError(
                f"checkpoint {path} does not exist: the store has no such bucket, or nothing under "
                "that key. Check the name, and whether the save has ended"
            ) from error
        raise UserError(
            f"checkpoint {path} does not exist. Check the path, and whether this machine "
            "mounts the file system it is on"
        ) from error
    except (RuntimeError, ValueError) as error:  # a circle of links; a NUL in the name
        raise UserError(f"checkpoint {path!r} is not a usable path: {error}") from error
    as_text(place)
    return place


def check_weights(weights: Sequence[Path]) -> None:
    """Check the first bytes of each weight file.

    Raises:
        UserError: A file is empty, or something else stands in its place.
    """
    remote.read_heads(weights)
    for file in weights:
        if isinstance(file, remote.RemotePath) and not file.version():
            raise UserError(
                f"the store tells no version of {file}, neither a tag nor a time, so nobody could "
                "notice that it changes. Copy the checkpoint to a file system, and give that path"
            )
        checkpoint_files.check_link(file)
        with checkpoint_files.opened(file, weights=True) as opened:
            head = opened.read(checkpoint_files.HEAD_BYTES)
            # A rank may have had nothing to save.
            if not head and file.suffix != dcp_metadata.SUFFIX:
                raise UserError(f"{file} is empty. If it is being written, try again afterwards")
            if head:
                checkpoint_files.check_head(file, head)


def check_files(files: Sequence[Path]) -> None:
    """Check the small files of a checkpoint.

    A torn tokenizer.json is known by its ends: to parse the file takes seconds and much memory.

    Raises:
        UserError: They have more bytes than a node gets, or the tokenizer is empty or torn.
    """
    sizes = {file: file.stat().st_size for file in files}
    most = checkpoint_files.MOST_SIDE_BYTES_IN_ALL
    if sum(sizes.values()) > most:
        largest = max(sizes, key=lambda file: sizes[file])
        raise UserError(
            f"the files beside the weights have {_format.size(sum(sizes.values()))}, more than "
            f"the {_format.size(most)} that a checkpoint may have. The largest is {largest}"
        )
    for file in files:
        if file.name in checkpoint_files.TOKENIZERS and file.is_file() and not file.stat().st_size:
            raise UserError(f"{file} is empty. Copy it again, or save the tokenizer again")
        if file.name == "tokenizer.json":
            content = checkpoint_files.read(file).strip()
            if not (content.startswith(b"{") and content.endswith(b"}")):
                raise UserError(
                    f"{file} is torn: it is no JSON object. If it is being written, try again "
                    "afterwards; else save the tokenizer again"
                )


def as_text(path: Path) -> str:
    """Return the path as text for records, which are UTF-8."""
    try:
        return str(path).encode().decode()
    except UnicodeEncodeError as error:
        raise UserError(f"the name of {path!r} is not UTF-8: rename it") from error
