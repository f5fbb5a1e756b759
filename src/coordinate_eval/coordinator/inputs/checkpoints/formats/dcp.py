"""Checkpoints of torch.distributed.checkpoint (DCP), which are cut into parts of ranks.

`.metadata` is a pickle, which is followed without being run: it lists the tensors, the parts that
ranks have saved of each, and where these lie in the `.distcp` files. It is written last. Each part
is what torch.save writes of a tensor. Its place in the file is only known once it is read, so that
nothing else is read when a checkpoint is described.

Where ranks have written safetensors (`HuggingFaceStorageWriter`), their headers say which part of
a tensor each of them has.
"""

import contextlib
import dataclasses
import json
import os
import re
import struct
from collections.abc import Collection, Container, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from coordinate_eval._format import brief, plural
from coordinate_eval.coordinator.inputs.checkpoints import checkpoint_files
from coordinate_eval.coordinator.inputs.checkpoints.formats import (
    safetensors_file,
    torch_file,
    torch_pickle,
)
from coordinate_eval.coordinator.inputs.checkpoints.formats.layouts import (
    ITEM_BYTES,
    Box,
    Layout,
    contiguous,
)
from coordinate_eval.coordinator.inputs.checkpoints.formats.sources import Stored
from coordinate_eval.coordinator.inputs.checkpoints.formats.torch_pickle import Object, StoredTensor
from coordinate_eval.errors import UserError

METADATA: Final = ".metadata"
"""The file that is written last."""

FOLDERS: Final = re.compile(r"pytorch_model_fsdp_0|model_and_optim|model|dcp|sharded")
"""Folders of checkpoints in which trainers have the parts: Accelerate and Trainer, OLMo-core, …"""

_SHARD = re.compile(r"shard-\d+-model-\d+-of-\d+\.safetensors")
_OF_OPTIMIZERS = ("optimizer.", "chained_")  # names in Megatron's, which has no nested dicts
_SHARDING = "DCP_SHARDING_INFO"  # torch/distributed/checkpoint/_hf_utils.py
_COUNTER = re.compile(r"(?:.*\.)?optim(?:izer)?(?:_\d+)?\..*\.step", re.DOTALL)
_COUNTERS = 3  # that are read of each file whose steps are in doubt
_FLOAT = struct.Struct("<f")
_MOST_METADATA_BYTES = 64 << 20
_MOST_OPCODES = 8_000_000  # 110,000 parts of tensors; what they make takes up to a GiB
_MOST_PARTS, _MOST_TENSORS = 1_000_000, 500_000
_MOST_NAME_CHARACTERS, _MOST_KEYS = 1024, 64  # of a tensor, and of the dicts that it was in
_MOST_DIMENSIONS, _MOST_SIZE = 64, 1 << 60  # of a tensor
SUFFIX: Final = ".distcp"
"""Of files of ranks."""

_SUFFIXES = (SUFFIX, ".safetensors")
_PACKAGE = "torch.distributed.checkpoint"
_CLASSES = {
    *(
        (f"{_PACKAGE}.metadata", name)
        for name in (
            "Metadata", "MetadataIndex", "TensorStorageMetadata", "BytesStorageMetadata",
            "ChunkStorageMetadata", "TensorProperties", "StorageMeta", "_MEM_FORMAT_ENCODING",
        )
    ),
    # What Megatron-core adds: the plans of its ranks.
    *(
        (f"{_PACKAGE}.planner", name)
        for name in (
            "SavePlan", "WriteItem", "WriteItemType", "TensorWriteData", "BytesIOWriteData",
        )
    ),
    # Of torch 2.0 to 2.2.
    *(
        ("torch.distributed._shard.sharded_tensor.metadata", name)
        for name in ("TensorProperties", "MEM_FORMAT_ENCODING")
    ),
    (f"{_PACKAGE}.filesystem", "_StorageInfo"),
    (f"{_PACKAGE}._fsspec_filesystem", "_StorageInfo"),
    ("olmo_core.distributed.checkpoint.filesystem", "_StorageInfo"),
    *((module, name) for module in ("pathlib", "pathlib._local")
      for name in ("Path", "PosixPath", "PurePosixPath")),
}  # fmt: skip
"""Names that a `.metadata` file may have besides those of state dicts."""


class _Part(NamedTuple):
    """The place of a part of a tensor that torch.save wrote."""

    file: str
    at: int
    length: int


_Place = tuple[str, tuple[int, ...]]
"""The name of a tensor, and where a part begins in it."""


class _Saved(NamedTuple):
    """The contents of a `.metadata` file."""

    tensors: dict[str, Layout]
    """Tensors by name; the places of their parts are not known yet."""
    parts: dict[_Place, _Part]
    paths: Mapping[str, Sequence[str]]
    """The keys of nested dicts that each name is made of."""


def find(
    place: Path, names: Sequence[str], parts: Collection[str]
) -> tuple[list[Path], list[Path]] | None:
    """Return the `.metadata` of a folder, or of one inside it, and the files of its ranks."""
    if place.is_file():
        return None
    if METADATA in names and METADATA not in parts:
        return _files(place, names), []
    shards = [name for name in names if _SHARD.fullmatch(name)]
    if shards and safetensors_file.INDEX not in names and safetensors_file.SINGLE not in names:
        return [place / name for name in shards], []
    inside = [name for name in names if FOLDERS.fullmatch(name) and (place / name).is_dir()]
    for folder in (place / name for name in inside):
        below = sorted(entry.name for entry in folder.iterdir())
        if METADATA in below and not {"common.pt", "metadata.json"} & set(below):
            return _files(folder, below), []
        if any(name.endswith(".distcp") for name in below):
            raise UserError(
                f"checkpoint {folder} has no {METADATA}, which is written last. If it is being "
                "written, try again afterwards; else the save was interrupted: give an earlier one"
            )
    return None


def _files(folder: Path, names: Sequence[str]) -> list[Path]:
    parts = [folder / name for name in names if name.endswith(_SUFFIXES)]
    return [folder / METADATA, *parts]


def lacking(place: Path) -> str | None:
    """Return the name of a metadata file that a save at a place lacks; None if it lacks none."""
    for folder in (place, *(f for f in _inside(place) if FOLDERS.fullmatch(f.name))):
        names = {entry.name for entry in _inside(folder)}
        if METADATA not in names and any(name.endswith(".distcp") for name in names):
            return str((folder / METADATA).relative_to(place))
    return None


def _inside(folder: Path) -> list[Path]:
    with contextlib.suppress(OSError):  # it is a file, closed, or gone
        return sorted(folder.iterdir())
    return []


def open_source(weights: Sequence[Path], files: Sequence[Path]) -> Stored:
    """Return the tensors of the model, under the model's own names.

    Raises:
        UserError: The metadata is damaged or would run code, has no model, or the files of ranks
            are missing, cut short or of another save.
    """
    metadata = next((file for file in weights if file.name == METADATA), None)
    if metadata is None:
        return _of_shards(weights)
    saved = _read(metadata)
    tree: dict[str, Any] = {}
    prefixed = not saved.paths and any(name.startswith("optim") for name in saved.tensors)
    for name in saved.tensors:
        keys = saved.paths.get(name) or [name]
        if len(keys) == 1 and name.startswith(_OF_OPTIMIZERS):
            continue
        _insert(tree, name.split(".", 1) if prefixed else keys, _Name(name))
    found = torch_file.leaves(tree, metadata, _Name)
    own = torch_file.own_names(found)
    if len(set(own.values())) < len(own):
        raise UserError(f"{metadata} has tensors that differ only in the names of wrappers")
    folder = metadata.parent
    layouts = {name: _placed(folder, found[n], saved) for n, name in own.items()}
    _check_files(folder, layouts.values(), {file.name for file in weights})
    _check_steps(folder, saved)
    return Stored(layouts)


class _Name(str):
    """The name of a tensor in the metadata, as a leaf of nested dicts."""

    __slots__ = ()


def _insert(tree: dict[str, Any], keys: Sequence[str], leaf: object) -> None:
    for key in keys[:-1]:
        below = tree.setdefault(key, {})
        if not isinstance(below, dict):
            return
        tree = below
    tree[keys[-1]] = leaf


def _placed(folder: Path, name: str, saved: _Saved) -> Layout:
    """Return the layout of a tensor with the places of what was saved of its parts."""
    layout = saved.tensors[name]
    if not layout.boxes and 0 not in layout.shape:
        raise UserError(f"{folder / METADATA} lists no part of {brief(name)}. Save it again")
    boxes = []
    for box in layout.boxes:
        part = saved.parts.get((name, box.begin)) or saved.parts.get((name, ()))
        if part is None:
            raise UserError(
                f"{folder / METADATA} does not say where a part of {brief(name)} is. Save it again"
            )
        boxes.append(box._replace(file=folder / part.file, at=part.at, length=part.length))
    return dataclasses.replace(layout, boxes=tuple(boxes))


def _check_files(folder: Path, layouts: Collection[Layout], listed: Container[str]) -> None:
    """Check that files of ranks are among those listed, and as long as the metadata says.

    Raises:
        UserError: They are not.
    """
    ends: dict[Path, int] = {}
    for layout in layouts:
        for box in layout.boxes:
            ends[box.file] = max(ends.get(box.file, 0), box.at + box.length)
    missing = sorted(file.name for file in ends if file.name not in listed or not file.is_file())
    if missing:
        raise UserError(
            f"checkpoint {folder} is incomplete: {len(missing)} of "
            f"{plural(len(ends), 'file')} of ranks are missing, such as {brief(missing[0])}. "
            "Copy all ranks' files into the folder"
        )
    for file, end in ends.items():
        there = file.stat().st_size
        if there < end:
            raise UserError(
                f"{file} has {there:,} of the {end:,} bytes that {METADATA} promises: it was cut "
                "short, or is of another save. Copy it again, or save the checkpoint again"
            )


def _check_steps(folder: Path, saved: _Saved) -> None:
    """Check that the optimizer has made as many steps in the files of all ranks.

    A parameter that was trained later has a smaller counter. So a file counts whose counters are
    several and alike.

    Raises:
        UserError: Files of two steps are mixed.
    """
    counters: dict[str, list[str]] = {}
    for (name, _), part in saved.parts.items():
        layout = saved.tensors.get(name) if _COUNTER.fullmatch(name) else None
        if layout and (layout.dtype, layout.shape) == ("float32", ()):
            counters.setdefault(part.file, []).append(name)
    files = {file: sorted(names) for file, names in counters.items() if len(names) >= _COUNTERS}
    if len({_counter(folder, names[0], saved) for names in files.values()}) < 2:
        return
    told: dict[float, str] = {}
    for file, names in sorted(files.items()):
        some = {_counter(folder, n, saved) for n in names[:: len(names) // _COUNTERS]}
        if len(some) == 1 and (step := some.pop()) is not None:
            told.setdefault(step, file)
    if len(told) > 1:
        (first, one), (later, other) = sorted(told.items())[:: len(told) - 1]
        raise UserError(
            f"the checkpoint mixes files of two steps: in {folder / one} the optimizer has made "
            f"{first:g} steps, in {other} {later:g}. Save it again, into an empty folder"
        )


def _counter(folder: Path, name: str, saved: _Saved) -> float | None:
    """Return how many steps an optimizer has made of a parameter; None if that cannot be read."""
    with contextlib.suppress(OSError, UserError, struct.error):  # it is not needed
        for saved_part in _placed(folder, name, saved).boxes:
            box = _in_blob(saved_part, "float32")
            with checkpoint_files.opened(box.file, weights=True) as opened:
                value: float = _FLOAT.unpack(os.pread(opened.fileno(), _FLOAT.size, box.at))[0]
                return value
    return None


def _in_blob(box: Box, dtype: str) -> Box:
    """Return a part with the place of its elements in what torch.save wrote of it."""
    tensor, storages = torch_file.read(box.file, box.at, box.length)
    saved = box.saved or box.shape
    if not isinstance(tensor, StoredTensor) or (tensor.dtype, tensor.shape) != (dtype, saved):
        raise UserError(
            f"{box.file} has something else at byte {box.at:,} than {METADATA} promises: it is of "
            "another save. Save the checkpoint again"
        )
    (place,) = torch_file.layout_of(tensor, storages, box.file).boxes
    skipped = sum(n * stride for n, stride in zip(box.first, place.strides, strict=False))
    more = len(box.shape) - len(saved)
    strides = (1,) * more + place.strides[max(0, -more) :]
    return box._replace(at=place.at + skipped * ITEM_BYTES[dtype], strides=strides, length=0)


def _read(path: Path) -> _Saved:
    """Return what a `.metadata` file says.

    Raises:
        UserError: It is damaged, would run code, or its parts are compressed.
    """
    with checkpoint_files.opened(path, weights=True) as opened:
        content = opened.read(_MOST_METADATA_BYTES + 1) or b""
    checkpoint_files.check_size(path, len(content), _MOST_METADATA_BYTES)
    top = torch_pickle.walk(content, path, _CLASSES, most_opcodes=_MOST_OPCODES)
    try:
        fields = _fields(top, "Metadata")
        tensors = _tensors(path.parent, fields["state_dict_metadata"])
        parts = dict(_parts(path, fields["storage_data"].objects))
        paths = _paths(fields.get("planner_data"), tensors)
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        raise UserError(
            f"{path} is damaged: it does not describe a checkpoint ({brief(error)}). If it is "
            "being written, try again afterwards"
        ) from error
    return _Saved(tensors, parts, paths)


def _tensors(folder: Path, described: Mapping[Any, Any]) -> dict[str, Layout]:
    """Return the tensors by name, with parts whose places are not known yet.

    Raises:
        ValueError: They are no tensors, or more than any checkpoint has.
    """
    tensors: dict[str, Layout] = {}
    left = _MOST_PARTS  # one list of parts may be named again and again
    for name, each in described.items():
        if isinstance(each, Object) and each.kind == "TensorStorageMetadata":
            left -= 1 + len(_fields(each, each.kind)["chunks"])
            if left < 0 or len(tensors) >= _MOST_TENSORS:
                raise ValueError("too many parts of tensors")
            tensors[_short(name)] = _tensor(folder, each)
    return tensors


def _paths(planned: object, names: Collection[str]) -> dict[str, Sequence[str]]:
    """Return the keys of nested dicts that names are made of, as far as they are told.

    Raises:
        ValueError: They are no keys, or too long.
    """
    paths: dict[str, Sequence[str]] = {}
    told = planned if isinstance(planned, dict) else {}
    for name in names:
        path = told.get(name)
        if isinstance(path, tuple) and path:
            if len(path) > _MOST_KEYS:
                raise ValueError("a name of too many parts")
            keys = [_short(str(key) if type(key) is int else key) for key in path]
            _short(".".join(keys))
            paths[name] = keys
    return paths


def _short(name: object) -> str:
    """Return a name.

    Raises:
        ValueError: It is none, or too long.
    """
    if not isinstance(name, str) or len(name) > _MOST_NAME_CHARACTERS:
        raise ValueError("a name that is no text, or too long")
    return name


def _fields(found: object, kind: str) -> dict[str, Any]:
    if isinstance(found, Object) and found.kind == kind and isinstance(found.state, dict):
        return found.state
    raise ValueError(f"it has no {kind}")


def _tensor(folder: Path, described: Object) -> Layout:
    fields = _fields(described, "TensorStorageMetadata")
    properties = fields["properties"].state
    dtype = (properties["dtype"] if isinstance(properties, dict) else properties[0]).name
    if dtype not in ITEM_BYTES:
        raise ValueError(f"numbers of type {brief(dtype)}")
    chunks: dict[tuple[int, ...], Box] = {}
    for chunk in fields["chunks"]:
        begin, shape = (
            _sizes(_fields(chunk, "ChunkStorageMetadata")[n]) for n in ("offsets", "sizes")
        )
        if len(begin) != len(shape):
            raise ValueError("a part has two numbers of dimensions")
        if 0 not in shape:
            chunks[begin] = Box(folder, 0, shape, contiguous(shape), begin)
    return Layout(dtype, _sizes(fields["size"]), tuple(chunks.values()), found=_in_blob)


def _sizes(found: object) -> tuple[int, ...]:
    if not isinstance(found, tuple) or len(found) > _MOST_DIMENSIONS:
        raise ValueError("a size is no tuple")
    if not all(type(size) is int and 0 <= size <= _MOST_SIZE for size in found):
        raise ValueError("a size is no number")
    return found


def _parts(path: Path, pairs: Sequence[tuple[Object, Any]]) -> Iterator[tuple[_Place, _Part]]:
    for key, value in pairs:
        index, info = _fields(key, "MetadataIndex"), _fields(value, "_StorageInfo")
        name, at, length = info["relative_path"], info["offset"], info["length"]
        if not isinstance(name, str) or Path(name).name != name or not name.endswith(_SUFFIXES):
            raise ValueError("a file that is none of a rank in the folder")
        if type(at) is not int or type(length) is not int or min(at, length) < 0:
            raise ValueError("a place that is no number")
        if info.get("transform_descriptors"):
            raise UserError(
                f"{path}: parts in {brief(name)} are transformed, such as compressed, and such "
                "parts are not read. Save the checkpoint without extensions of the writer"
            )
        offset = index.get("offset")
        yield (
            (_short(index["fqn"]), () if offset is None else _sizes(offset)),
            _Part(name, at, length),
        )


def _of_shards(weights: Sequence[Path]) -> Stored:
    """Return the tensors of files of `HuggingFaceStorageWriter`, a part of each in every file."""
    boxes: dict[str, dict[tuple[int, ...], Box]] = {}
    types: dict[str, str] = {}
    for file in weights:
        begins = _begins(file)
        for name, layout in safetensors_file.read(file).items():
            begin = begins.get(name, (0,) * len(layout.shape))
            if (
                len(begin) != len(layout.shape)
                or types.setdefault(name, layout.dtype) != layout.dtype
            ):
                raise UserError(f"{file} has another {brief(name)} than other files. Save it again")
            boxes.setdefault(name, {})[begin] = layout.boxes[0]._replace(begin=begin)
    layouts = {
        own: Layout(types[name], _whole(boxes[name].values()), tuple(boxes[name].values()))
        for name, own in torch_file.own_names(boxes).items()
    }
    return Stored(layouts)


def _whole(boxes: Collection[Box]) -> tuple[int, ...]:
    """Return the shape of a tensor that has these parts."""
    ends = ([a + n for a, n in zip(box.begin, box.shape, strict=True)] for box in boxes)
    return tuple(max(sizes) for sizes in zip(*ends, strict=True))


def _begins(file: Path) -> dict[str, tuple[int, ...]]:
    """Return where the tensors of a file begin in those of the model."""
    text = safetensors_file.notes(file).get(_SHARDING)
    try:
        found = json.loads(text) if text else {}
        return {name: _sizes(tuple(each["saved_offsets"])) for name, each in found.items()}
    except (AttributeError, LookupError, TypeError, ValueError, RecursionError) as error:
        raise UserError(
            f"{file} does not say which parts of tensors it has ({brief(error)}). Save it again"
        ) from error
