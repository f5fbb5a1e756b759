"""Read the `.metadata` of a distributed checkpoint of PyTorch.

It is a pickle, which is followed without being run. It lists the tensors, the parts that ranks have
saved of each, and where these lie in the files of ranks.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from coordinate_eval._format import brief
from coordinate_eval.coordinator.inputs.checkpoints import checkpoint_files
from coordinate_eval.coordinator.inputs.checkpoints.formats import torch_file, torch_pickle
from coordinate_eval.coordinator.inputs.checkpoints.formats.layouts import (
    ITEM_BYTES,
    Box,
    Layout,
    contiguous,
)
from coordinate_eval.coordinator.inputs.checkpoints.formats.torch_pickle import Object, StoredTensor
from coordinate_eval.errors import UserError

METADATA: Final = ".metadata"
"""The file that is written last."""

SUFFIX: Final = ".distcp"
"""Of files of ranks."""

SUFFIXES: Final = (SUFFIX, ".safetensors")

_MOST_METADATA_BYTES = 64 << 20
_MOST_OPCODES = 8_000_000  # 110,000 parts of tensors; what they make takes up to a GiB
_MOST_PARTS, _MOST_TENSORS = 1_000_000, 500_000
_MOST_NAME_CHARACTERS, _MOST_KEYS = 1024, 64  # of a tensor, and of the dicts that it was in
_MOST_DIMENSIONS, _MOST_SIZE = 64, 1 << 60  # of a tensor
_MOST_KNOWN, _MOST_BEGIN_BYTES = 10_000, 2048  # shapes of parts; bytes before their numbers
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


class Part(NamedTuple):
    """The place of a part of a tensor that torch.save wrote."""

    file: str
    at: int
    length: int


Place = tuple[str, tuple[int, ...]]
"""The name of a tensor, and where a part begins in it."""


class Saved(NamedTuple):
    """The contents of a `.metadata` file."""

    tensors: dict[str, Layout]
    """Tensors by name; the places of their parts are not known yet."""
    parts: dict[Place, Part]
    paths: Mapping[str, Sequence[str]]
    """The keys of nested dicts that each name is made of."""


class Blobs:
    """The parts of tensors as torch.save wrote them in files of ranks.

    It writes the same bytes before the numbers of each part of one shape and type. So a part is
    read through once, and of others only how they begin.
    """

    def __init__(self) -> None:
        self._known: dict[tuple[str, tuple[int, ...], int], tuple[bytes, tuple[int, ...]]] = {}

    def placed(self, box: Box, dtype: str) -> Box:
        """Return a part with the place of its elements, from the place of what was saved of it.

        Raises:
            UserError: Something else lies there.
        """
        saved = box.saved or box.shape
        key = (dtype, saved, box.length)
        begin, strides = self._known.get(key, (b"", ()))
        skip = len(begin)
        if not begin or _begin(box, skip) != begin:
            skip, strides = _in_blob(box, dtype, saved)
            if skip <= _MOST_BEGIN_BYTES and len(self._known) < _MOST_KNOWN:
                self._known[key] = _begin(box, skip), strides
        skip += ITEM_BYTES[dtype] * sum(
            n * stride for n, stride in zip(box.first, strides, strict=False)
        )
        more = len(box.shape) - len(saved)
        strides = (1,) * more + strides[max(0, -more) :]
        return box._replace(at=box.at + skip, strides=strides, length=0)


def _begin(box: Box, length: int) -> bytes:
    with checkpoint_files.opened(box.file, weights=True) as opened:
        return checkpoint_files.pread(opened, length, box.at)


def _in_blob(box: Box, dtype: str, saved: tuple[int, ...]) -> tuple[int, tuple[int, ...]]:
    """Return the bytes before the numbers that were saved of a tensor, and their strides."""
    tensor, storages = torch_file.read(box.file, box.at, box.length)
    if not isinstance(tensor, StoredTensor) or (tensor.dtype, tensor.shape) != (dtype, saved):
        raise UserError(
            f"{box.file} has something else at byte {box.at:,} than {METADATA} promises: it is of "
            "another save. Save the checkpoint again"
        )
    (place,) = torch_file.layout_of(tensor, storages, box.file).boxes
    return place.at - box.at, place.strides


def read(path: Path) -> Saved:
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
    return Saved(tensors, parts, paths)


def _tensors(folder: Path, described: Mapping[Any, Any]) -> dict[str, Layout]:
    """Return the tensors by name, with parts whose places are not known yet.

    Raises:
        ValueError: They are no tensors, or more than any checkpoint has.
    """
    tensors: dict[str, Layout] = {}
    blobs = Blobs()
    left = _MOST_PARTS  # one list of parts may be named again and again
    for name, each in described.items():
        if isinstance(each, Object) and each.kind == "TensorStorageMetadata":
            left -= 1 + len(_fields(each, each.kind)["chunks"])
            if left < 0 or len(tensors) >= _MOST_TENSORS:
                raise ValueError("too many parts of tensors")
            tensors[_short(name)] = _tensor(folder, each, blobs)
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


def _tensor(folder: Path, described: Object, blobs: Blobs) -> Layout:
    fields = _fields(described, "TensorStorageMetadata")
    properties = fields["properties"].state
    dtype = (properties["dtype"] if isinstance(properties, dict) else properties[0]).name
    if dtype not in ITEM_BYTES:
        raise ValueError(f"numbers of type {brief(dtype)}")
    chunks: dict[tuple[int, ...], Box] = {}
    for chunk in fields["chunks"]:
        begin, shape = (
            sizes(_fields(chunk, "ChunkStorageMetadata")[n]) for n in ("offsets", "sizes")
        )
        if len(begin) != len(shape):
            raise ValueError("a part has two numbers of dimensions")
        if 0 not in shape:
            chunks[begin] = Box(folder, 0, shape, contiguous(shape), begin)
    return Layout(dtype, sizes(fields["size"]), tuple(chunks.values()), found=blobs.placed)


def sizes(found: object) -> tuple[int, ...]:
    """Return a shape, or the place of a part.

    Raises:
        ValueError: It is none.
    """
    if not isinstance(found, tuple) or len(found) > _MOST_DIMENSIONS:
        raise ValueError("a size is no tuple")
    if not all(type(size) is int and 0 <= size <= _MOST_SIZE for size in found):
        raise ValueError("a size is no number")
    return found


def _parts(path: Path, pairs: Sequence[tuple[Object, Any]]) -> Iterator[tuple[Place, Part]]:
    for key, value in pairs:
        index, info = _fields(key, "MetadataIndex"), _fields(value, "_StorageInfo")
        name, at, length = info["relative_path"], info["offset"], info["length"]
        if not isinstance(name, str) or Path(name).name != name or not name.endswith(SUFFIXES):
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
            (_short(index["fqn"]), () if offset is None else sizes(offset)),
            Part(name, at, length),
        )
