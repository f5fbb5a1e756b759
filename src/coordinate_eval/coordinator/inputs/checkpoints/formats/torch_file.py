"""Contents of a file of torch.save, read without torch and without running its pickle.

The file is a zip archive: `<name>/data.pkl` is a pickle of the saved objects, and each storage is
an entry `<name>/data/<key>`. It is believed about sizes only as far as its own: torch.save
compresses nothing, so what a file holds is no larger than the file.
"""

import io
import os
import re
import struct
import zipfile
from collections import Counter
from collections.abc import Collection, Container, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from coordinate_eval import _format
from coordinate_eval.coordinator.inputs.checkpoints import checkpoint_files
from coordinate_eval.coordinator.inputs.checkpoints.formats import (
    safetensors_file,
    state_dicts,
    torch_pickle,
)
from coordinate_eval.coordinator.inputs.checkpoints.formats.layouts import (
    ITEM_BYTES,
    Box,
    Layout,
)
from coordinate_eval.coordinator.inputs.checkpoints.formats.named_classes import TRAINERS
from coordinate_eval.coordinator.inputs.checkpoints.formats.sources import Stored
from coordinate_eval.coordinator.inputs.checkpoints.formats.torch_pickle import (
    HOW_TO_SAVE,
    StoredTensor,
)
from coordinate_eval.errors import UserError

_SUFFIXES = frozenset({".pt", ".pth", ".bin", ".ckpt"})
# Files that trainers write beside the weights.
_TRAINER_FILES = (
    "optim", "scheduler", "scaler", "rng_state", "random_states", "training_args", "meta.pt",
    "trainer_state", "train_state", "train.pt", "recipe_state", "sampler", "dl_state_dict",
    "train_dataloader", "value_head",
)  # fmt: skip
_SHARD = re.compile(r"(.*?)(\d+)-of-(\d+)(\.\w+)")
_MOST_SHARDS = 10_000
_WHOLE = re.compile(r"pytorch_model.*\.bin")
_INDEX, _SINGLE = "pytorch_model.bin.index.json", "pytorch_model.bin"
_MOST_PICKLE_BYTES = 64 << 20
_MOST_DIRECTORY_BYTES = 16 << 20  # 200,000 storages; read, it takes ten times as much
_SLACK_BYTES = 1 << 20
_LOCAL_HEADER_BYTES = 30
# What zipfile raises at one damage or another.
_DAMAGED = (
    zipfile.BadZipFile, EOFError, NotImplementedError, OSError, OverflowError, RuntimeError,
    ValueError, struct.error,
)  # fmt: skip

WRAPPERS: Final = re.compile(
    r"(?:^|(?<=\.))"
    r"(?:_orig_mod|_fsdp_wrapped_module|_checkpoint_wrapped_module|_forward_module)\."
)
"""Names that torch.compile, FSDP and activation checkpointing insert. No module is named so."""

_MOST_BESIDE = 0.1  # of tensors, such as counters and heads of losses, in a module that trains it
# First parts of names in models of Hugging Face, which names of attributes may precede.
_ROOTS = {"model", "lm_head", "transformer", "gpt_neox", "backbone", "embed_out"}


def candidates(
    place: Path,
    names: Sequence[str],
    parts: Collection[str],
    suffixes: Collection[str] = _SUFFIXES,
) -> list[Path]:
    """Return the files that may hold the weights, without the names that tell another format."""
    return [
        place if place.is_file() else place / name
        for name in names
        if Path(name).suffix in suffixes
        and name not in parts
        and (place.is_file() or not (name.startswith(_TRAINER_FILES) or (place / name).is_dir()))
    ]


def find(
    place: Path, names: Sequence[str], parts: Collection[str]
) -> tuple[list[Path], list[Path]] | None:
    """Return the file itself, what its index names, or a folder's `pytorch_model.bin` or shards.

    Raises:
        UserError: Shards are missing, or it cannot be told which of several saves counts.
    """
    if place.name == _INDEX and place.is_file():
        return _indexed(place), []
    files = candidates(place, names, parts)
    if place.is_dir():
        files = [file for file in files if _WHOLE.fullmatch(file.name)]
        if _INDEX in names and len(files) > 1:
            if place / _SINGLE in files:
                raise _mixed(place, [_SINGLE, _INDEX])
            return _indexed(place / _INDEX), []
    found = _chosen(files)
    return (found, []) if found else None


def lone(place: Path, names: Sequence[str], parts: Collection[str]) -> list[Path] | None:
    """Return the only file of a folder that may hold the weights, of whatever name, or its shards.

    Raises:
        UserError: As for `find`.
    """
    return _chosen(candidates(place, names, parts))


def _chosen(files: Sequence[Path]) -> list[Path] | None:
    """Return the only one of files, or the shards among them."""
    sets: dict[tuple[str, ...], list[Path]] = {}
    for file in files:
        match = _SHARD.fullmatch(file.name)
        if match and (shards := _shards(file)):
            sets[match[1], match[3], match[4]] = shards
    found = list(sets.values())
    single = [file for file in files if file.name == _SINGLE]
    if len(found) > 1 or (found and single):
        raise _mixed(
            files[0].parent, [*(each[0].name for each in found), *(each.name for each in single)]
        )
    return found[0] if found else list(files) if len(files) == 1 else None


def _mixed(folder: Path, names: Sequence[str]) -> UserError:
    return UserError(
        f"checkpoint {folder} has the files of several saves ({', '.join(map(repr, names[:8]))}), "
        "and it cannot be told which counts. Remove those of the others"
    )


def _indexed(index: Path) -> list[Path]:
    """Return the shards that an index names.

    Raises:
        UserError: It is no index, or one is missing.
    """
    names = sorted(set(safetensors_file.weight_map(index).values()))
    found = [index.parent / name for name in names]
    _check_there(found)
    return found


def _shards(file: Path) -> list[Path] | None:
    """Return all shards of the model that a file is a shard of; None if it is none, or alone.

    Raises:
        UserError: Shards are missing.
    """
    match = _SHARD.fullmatch(file.name)
    if match is None or not 1 < int(match[3]) <= _MOST_SHARDS:
        return None
    names = (
        f"{match[1]}{number:0{len(match[2])}}-of-{match[3]}{match[4]}"
        for number in range(1, int(match[3]) + 1)
    )
    found = [file.parent / name for name in names]
    _check_there(found)
    return found


def _check_there(shards: Sequence[Path]) -> None:
    missing = [each.name for each in shards if not each.is_file()]
    if missing:
        raise UserError(
            f"checkpoint {shards[0].parent} is incomplete: {len(missing)} of {len(shards)} shards "
            f"are missing, such as {_format.brief(missing[0])}. If it is being written, try again "
            "afterwards"
        )


def open_source(weights: Sequence[Path], files: Sequence[Path]) -> Stored:
    """Return the tensors of the model in a file, or in shards, under the model's own names.

    Raises:
        UserError: As for `read`, a file has no state dict, or several have the same tensor.
    """
    layouts: dict[str, Layout] = {}
    for path in weights:
        tree, storages = read(path, classes=TRAINERS)
        tensors = state_dicts.leaves(tree, path, StoredTensor)
        check_total((t.elements * ITEM_BYTES[t.dtype] for t in tensors.values()), path)
        if twice := layouts.keys() & tensors.keys():
            raise UserError(f"{path} has {_format.brief(min(twice))}, as another shard does")
        layouts |= {name: layout_of(tensor, storages, path) for name, tensor in tensors.items()}
    names = own_names(layouts)
    if len(set(names.values())) < len(names):
        raise UserError(f"{weights[0]} has tensors that differ only in the names of wrappers")
    return Stored({own: layouts[name] for name, own in names.items()})


class Storage(NamedTuple):
    """The places of the elements of tensors in a file."""

    at: int
    bytes: int


def read(
    path: Path,
    begin: int = 0,
    length: int = -1,
    classes: Container[tuple[str, str]] = frozenset(),
) -> tuple[object, dict[str, Storage]]:
    """Return what torch.save wrote, as `torch_pickle.walk` does, and its storages by key.

    It is a whole file, or `length` bytes of a file from `begin` on. Besides those of state dicts,
    it may name these `classes`.

    Raises:
        UserError: The file is torn, of the old format, or would run code.
    """
    with checkpoint_files.opened(path, weights=True) as opened:
        size = checkpoint_files.size(opened)
        length = size - begin if length < 0 else length
        try:
            if not 0 <= begin <= begin + length <= size:
                raise zipfile.BadZipFile
            with zipfile.ZipFile(_Portions(opened, begin, length)) as archive:
                name, entries = _contents(archive, path, length)
                tree = torch_pickle.walk(_pickle(archive, name), path, classes)
                storages = _places(opened, begin, entries)
        except _DAMAGED as error:
            raise UserError(_why_no_archive(path, opened)) from error
    return tree, storages


def layout_of(tensor: StoredTensor, storages: Mapping[str, Storage], path: Path) -> Layout:
    """Return where the elements of a tensor lie in its file.

    Raises:
        UserError: Its storage is not there, or ends before the tensor does.
    """
    storage = storages.get(tensor.key)
    if storage is None:
        raise UserError(
            f"{path} is incomplete: it lacks the data of storage {_format.brief(tensor.key)}"
        )
    if tensor.end > storage.bytes:
        raise UserError(
            f"{path} is damaged: a tensor of shape {list(tensor.shape)} ends beyond its storage "
            f"{_format.brief(tensor.key)}"
        )
    at = storage.at + tensor.offset * ITEM_BYTES[tensor.dtype]
    begin = (0,) * len(tensor.shape)
    box = Box(path, at, tensor.shape, tensor.strides, begin)
    return Layout(tensor.dtype, tensor.shape, (box,))


def own_names(names: Iterable[str]) -> dict[str, str]:
    """Return the model's own names of tensors, without those of training wrappers.

    Such as `module.`, or the attribute of a LightningModule in which the model is. What few tensors
    such a module has beside the model are left out.
    """
    own = {name: WRAPPERS.sub("", name) for name in names}
    while prefix := _attribute(own.values()):
        own = {old: n.removeprefix(prefix) for old, n in own.items() if n.startswith(prefix)}
    return own


def _attribute(names: Collection[str]) -> str:
    """Return the name of the attribute in which the model is, with a dot; empty if in none."""
    firsts = Counter(name.partition(".")[0] for name in names)
    first, count = firsts.most_common(1)[0] if firsts else ("", 0)
    inner = [name.split(".") for name in names if name.startswith(f"{first}.")]
    roots, levels = ({"model", "lm_head"}, 1) if first == "model" else (_ROOTS, 2)
    wraps = first == "module" or any(roots & {*parts[1:-1][:levels]} for parts in inner)
    share = 0 if first == "language_model" else _MOST_BESIDE  # a tower of images may be beside it
    few = len(inner) == count and len(names) - count <= len(names) * share
    return f"{first}." if wraps and few else ""


def check_total(sizes: Iterable[int], path: Path) -> None:
    """Check that tensors with these bytes fit into the memory that a file's size asks for.

    A tensor may be larger than what it is stored as, and several may be stored as one. Twice the
    file is enough for embeddings that are also the output layer.

    Raises:
        UserError: The tensors are larger than that.
    """
    total, stored = sum(sizes), path.stat().st_size
    if total > 2 * stored + _SLACK_BYTES:
        raise UserError(
            f"{path} has {_format.size(stored)}, but its tensors would have "
            f"{_format.size(total)}: they share memory. Save them without: "
            "torch.save({name: tensor.clone() for name, tensor in model.state_dict().items()}, "
            "PATH)"
        )


class _Portions(io.RawIOBase):
    """A part of a file, read in small parts: a zip file itself says how long its directory is."""

    def __init__(self, file: checkpoint_files.Opened, begin: int, length: int) -> None:
        super().__init__()
        self._file, self._begin, self._length = file, begin, length
        self._at = 0

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self._at = offset + {os.SEEK_CUR: self._at, os.SEEK_END: self._length}.get(whence, 0)
        if self._at < 0:
            raise zipfile.BadZipFile
        return self._at

    def read(self, count: int = -1) -> bytes:
        left = max(0, self._length - self._at)
        count = left if count < 0 else min(count, left)
        if count > _MOST_DIRECTORY_BYTES:
            raise zipfile.BadZipFile
        found = checkpoint_files.pread(self._file, count, self._begin + self._at)
        self._at += len(found)
        return found


def _places(
    file: checkpoint_files.Opened, begin: int, entries: Mapping[str, zipfile.ZipInfo]
) -> dict[str, Storage]:
    """Return where the contents of entries begin: behind header, name and what pads it.

    `begin` is the byte of the file where the archive begins.

    Raises:
        BadZipFile: One has no such header.
    """
    begins = [begin + entry.header_offset for entry in entries.values()]
    heads = checkpoint_files.pread_all(file, _LOCAL_HEADER_BYTES, begins)
    places: dict[str, Storage] = {}
    for (key, entry), at, head in zip(entries.items(), begins, heads, strict=True):
        if len(head) < _LOCAL_HEADER_BYTES or not head.startswith(b"PK\3\4"):
            raise zipfile.BadZipFile
        names = int.from_bytes(head[26:28], "little") + int.from_bytes(head[28:30], "little")
        places[key] = Storage(at + _LOCAL_HEADER_BYTES + names, entry.file_size)
    return places


def _contents(
    archive: zipfile.ZipFile, path: Path, size: int
) -> tuple[str, dict[str, zipfile.ZipInfo]]:
    """Return the name of the pickle, and the entry of each storage by key. It has `size` bytes.

    Raises:
        UserError: It is not an archive that torch.save wrote.
    """
    entries = archive.infolist()
    # torch takes the first of two names, zipfile the last; and to torch case does not matter.
    names = {entry.filename.lower() for entry in entries}
    pickles = [entry for entry in entries if entry.filename.lower().endswith("/data.pkl")]
    whole = all(
        entry.compress_type == zipfile.ZIP_STORED and entry.compress_size == entry.file_size
        for entry in entries
    )
    length = sum(entry.file_size for entry in entries)
    if (
        not (len(pickles) == 1 and whole and len(names) == len(entries))
        or pickles[0].filename.count("/") != 1
        or not pickles[0].filename.endswith("data.pkl")
        or length > size
    ):
        raise UserError(f"{path} is a zip file, but not one of torch.save. {HOW_TO_SAVE}")
    if pickles[0].file_size > _MOST_PICKLE_BYTES:
        raise UserError(f"{path} holds more than tensors. {HOW_TO_SAVE}")
    for entry in entries:
        if not entry.CRC:  # see torch.serialization.set_crc32_options
            del entry.CRC
    name = pickles[0].filename
    top = name.removesuffix("data.pkl")
    if f"{top}byteorder" in archive.namelist() and archive.read(f"{top}byteorder") != b"little":
        raise UserError(f"{path} was saved on a machine of another byte order: save it on this one")
    prefix = f"{top}data/"
    return name, {
        entry.filename.removeprefix(prefix): entry
        for entry in entries
        if entry.filename.startswith(prefix)
    }


def _pickle(archive: zipfile.ZipFile, name: str) -> bytes:
    with archive.open(name) as file:
        return b"".join(iter(lambda: file.read(1 << 20), b""))


def _why_no_archive(path: Path, opened: checkpoint_files.Opened) -> str:
    opened.seek(0)
    begin = opened.read(4)
    if begin.startswith(b"PK"):
        return (
            f"{path} is incomplete: its zip directory is missing or damaged. "
            "Wait until it is written, or copy it again"
        )
    return (
        f"{path} is not a zip file, as torch.save writes since torch 1.6. If it is older, "
        "load it with torch.load(PATH, weights_only=True) and save it again with torch.save"
    )
