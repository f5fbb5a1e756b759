"""Safetensors: types and shapes of tensors from headers alone, and the index of several files."""

import contextlib
import json
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from coordinate_eval import _format
from coordinate_eval._format import brief, plural
from coordinate_eval.coordinator.inputs.checkpoints import checkpoint_files
from coordinate_eval.coordinator.inputs.checkpoints.formats.layouts import (
    Layout,
    Tensor,
    check_name,
    whole,
)
from coordinate_eval.coordinator.inputs.checkpoints.formats.sources import Stored
from coordinate_eval.errors import UserError

MOST_HEADER_BYTES = 32 << 20
"""Largest header of a file: 200,000 tensors. The format allows 100 MB, which take 1 GB to read."""

INDEX, SINGLE = "model.safetensors.index.json", "model.safetensors"
"""The names of the index of several files, and of a single file."""

_CONSOLIDATED = re.compile(r"consolidated(?:-\d+-of-\d+)?\.safetensors")
_CONSOLIDATED_INDEX = "consolidated.safetensors.index.json"
"""The names in Mistral's own format, whose tensors have names of their own."""

_PART = re.compile(r".*\d+-of-\d+\.safetensors|adapter_model\.safetensors")
SUFFIX, _INDEX_SUFFIX = ".safetensors", ".safetensors.index.json"

_MOST_TENSORS, _MOST_DIMENSIONS = 2_000_000, 64

_DTYPES = {
    "F64": "float64",
    "F32": "float32",
    "F16": "float16",
    "BF16": "bfloat16",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2",
    "F8_E8M0": "float8_e8m0fnu",
    "I64": "int64",
    "I32": "int32",
    "I16": "int16",
    "I8": "int8",
    "U64": "uint64",
    "U32": "uint32",
    "U16": "uint16",
    "U8": "uint8",
    "BOOL": "bool",
}

TYPES = {ours: theirs for theirs, ours in _DTYPES.items()}
"""Names of types in headers, by torch's."""


def find(
    place: Path, names: Sequence[str], parts: Collection[str]
) -> tuple[list[Path], list[Path]] | None:
    """Return the files that a folder's index names, and the index; or the single file.

    A place that is a file is one of `alone`.

    Raises:
        UserError: The index does not fit the files beside it.
    """
    if not place.is_dir():
        return _of_file(place)
    if INDEX in names:
        return files_named(place / INDEX), [place / INDEX]
    if SINGLE in names:
        return [place / SINGLE], []
    if _CONSOLIDATED_INDEX in names:
        return files_named(place / _CONSOLIDATED_INDEX), []
    own = [place / name for name in names if _CONSOLIDATED.fullmatch(name)]
    if own:
        return own, []
    indices = [name for name in names if name.endswith(_INDEX_SUFFIX)]
    return _of_file(place / indices[0]) if len(indices) == 1 else None


def _of_file(file: Path) -> tuple[list[Path], list[Path]] | None:
    """Return a file of safetensors, or what an index of such files names."""
    if file.name.endswith(_INDEX_SUFFIX):
        return files_named(file), []
    return ([file], []) if file.name.endswith(SUFFIX) else None


def is_part(name: str) -> bool:
    """Return whether a file of this name is one of several, or of an adapter."""
    return _PART.fullmatch(name) is not None


def alone(file: Path) -> bool:
    """Return whether a file or an index is a checkpoint by itself, not its folder's.

    It is, if others are what the folder's own names tell: `model_ema.safetensors` beside
    `model.safetensors`.

    Raises:
        UserError: The folder's index is none.
    """
    folder, name = file.parent, file.name
    if name.endswith(_INDEX_SUFFIX):
        return name not in (INDEX, _CONSOLIDATED_INDEX)
    if name.endswith(".index.json"):  # of other files than safetensors
        return (folder / INDEX).is_file() or (folder / SINGLE).is_file()
    if not name.endswith(SUFFIX) or is_part(name):
        return False
    if (folder / INDEX).is_file():
        return name not in weight_map(folder / INDEX).values()
    return name != SINGLE and not (
        _CONSOLIDATED.fullmatch(name) and not (folder / SINGLE).is_file()
    )


def named_for_engines(weights: Sequence[Path], files: Sequence[Path]) -> bool:
    """Return whether engines find weights in a folder: by their one name, or by an index."""
    return weights[0].name == SINGLE or any(file.name == INDEX for file in files)


def open_source(weights: Sequence[Path], files: Sequence[Path]) -> Stored:
    """Return the tensors of several files.

    Raises:
        UserError: As for `read`, or the index among `files` does not fit the weights.
    """
    layouts: dict[str, Layout] = {}
    held: dict[str, list[str]] = {}
    index = _index(weights, files)
    mapping = weight_map(index) if index else {}
    for file in weights:
        for name, layout in read(file).items():
            held.setdefault(name, []).append(file.name)
            if name not in layouts or mapping.get(name) == file.name:
                layouts[name] = layout
        if len(held) > _MOST_TENSORS:
            raise UserError(f"{file.parent} has more than {_MOST_TENSORS:,} tensors")
    if index:
        check_index(index, held)
    for name, there in held.items():
        if len(there) > 1 and mapping.get(name) not in there:
            raise UserError(
                f"{weights[0].parent} has {brief(name)} in {brief(there[0])} and in "
                f"{brief(there[1])}, and no index tells which counts. Save it again"
            )
    return Stored(layouts)


def _index(weights: Sequence[Path], files: Sequence[Path]) -> Path | None:
    """Return the index of files; that in Mistral's own format is none of those for engines."""
    own = weights[0].parent / _CONSOLIDATED_INDEX
    if _CONSOLIDATED.fullmatch(weights[0].name):
        return own if own.is_file() else None
    return next((file for file in files if file.name == INDEX), None)


def read(file: Path) -> dict[str, Layout]:
    """Return the layout of each tensor.

    Raises:
        UserError: The file is torn, not of this format, or its header is too large.
    """
    # Imported here: planning from a cluster file reads no checkpoint's headers.
    from safetensors import SafetensorError, safe_open

    with checkpoint_files.opened(file, weights=True) as opened:
        length = int.from_bytes(opened.read(8), "little")
        head = 8 + min(length, MOST_HEADER_BYTES)
        if MOST_HEADER_BYTES < length < checkpoint_files.size(opened):
            raise UserError(
                f"{file} has a header of {_format.size(length)}, more than the "
                f"{_format.size(MOST_HEADER_BYTES)} that are read. Save it in several files"
            )
        try:
            with (
                checkpoint_files.open_path(opened, head) as path,
                safe_open(path, framework="numpy") as tensors,
            ):
                found = {name: _described(tensors, name) for name in tensors.keys()}  # noqa: SIM118
            opened.seek(8)
            header = json.loads(opened.read(length))
            begins = {name: 8 + length + header[name]["data_offsets"][0] for name in found}
        # It is larger than any memory can map, or was replaced meanwhile.
        except (SafetensorError, MemoryError, ValueError, LookupError, TypeError) as error:
            raise UserError(
                f"{file} is not whole: {_sizes(opened) or _format.brief(error)}. If it is being "
                "written, try again afterwards; else copy or save it again"
            ) from error
    for name, tensor in found.items():
        check_name(name, file)
        if len(tensor.shape) > _MOST_DIMENSIONS:
            raise UserError(
                f"{file} has {brief(name)} of {len(tensor.shape):,} dimensions, more than any "
                "tensor has: it is damaged. Save it again"
            )
    return {name: whole(file, begins[name], *tensor) for name, tensor in found.items()}


def notes(file: Path) -> dict[str, str]:
    """Return what whoever wrote a file noted in its header, which `read` has checked."""
    from safetensors import safe_open

    with checkpoint_files.opened(file, weights=True) as opened:
        length = int.from_bytes(opened.read(8), "little")
        with (
            checkpoint_files.open_path(opened, 8 + min(length, MOST_HEADER_BYTES)) as path,
            safe_open(path, framework="numpy") as tensors,
        ):
            return tensors.metadata() or {}


def _sizes(opened: checkpoint_files.Opened) -> str:
    """Return how much of a file that was cut is there, empty if its header does not tell."""
    there = checkpoint_files.size(opened)
    opened.seek(0)
    length = int.from_bytes(opened.read(8), "little")
    if not 0 < length <= min(MOST_HEADER_BYTES, there):
        return ""
    try:
        tensors = json.loads(opened.read(length)).values()
        ends = [each["data_offsets"][1] for each in tensors if "data_offsets" in each]
        promised = 8 + length + max(ends)
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return ""
    if type(promised) is not int or not there < promised < 1 << 63:
        return ""
    return f"it has {there:,} of {promised:,} bytes"


def _described(tensors: Any, name: str) -> Tensor:  # noqa: ANN401  # it has no types
    part = tensors.get_slice(name)
    dtype = part.get_dtype()
    return Tensor(_DTYPES.get(dtype, dtype.lower()), tuple(part.get_shape()))


_MOST_INDEX_BYTES = 32 << 20  # an index of 300,000 tensors fits
_MOST_OTHERS = 1000  # files that an index does not name, of which headers are read
_MAY_BE_TIED = "lm_head.weight"
"""The hub's converter leaves it out of files where it is the embedding, and in their index."""

_WRITE_AGAIN = (
    "Save the checkpoint again, or write the index for the files that are there, in that folder: "
    'python -c "import json, glob; from safetensors import safe_open as o; json.dump('
    "{'metadata': {}, 'weight_map': {k: f for f in glob.glob('*.safetensors') "
    "for k in o(f, 'np').keys()}}, open('model.safetensors.index.json', 'w'))\""
)


def files_named(index: Path) -> list[Path]:
    """Return the files that an index names.

    Raises:
        UserError: It is none, or does not fit the files beside it.
    """
    mapping = weight_map(index)
    names = set(mapping.values())
    missing = sorted(name for name in names if not (index.parent / name).is_file())
    if missing:
        checkpoint_files.check_link(index.parent / missing[0])
        raise UserError(_why_missing(index, mapping, missing))
    return [index.parent / name for name in sorted(names)]


def weight_map(index: Path) -> dict[str, str]:
    """Return the name of the file that an index has for each tensor.

    Raises:
        UserError: It is no index, or names files elsewhere.
    """
    mapping = checkpoint_files.read_json(index, _MOST_INDEX_BYTES).get("weight_map")
    if not isinstance(mapping, dict) or not mapping:
        raise UserError(f"{index} has no weight_map. Save the checkpoint again")
    for name in {each if isinstance(each, str) else None for each in mapping.values()}:
        if name is None or Path(name).name != name or name == "..":
            raise UserError(
                f"{index} names a shard {brief(name)} outside its folder. Save it again"
            )
    return mapping


def check_index(index: Path, held: Mapping[str, list[str]]) -> None:
    """Check that files hold the tensors that an index promises in them.

    Args:
        index: the index.
        held: the names of the files that hold a tensor, by the tensor.

    Raises:
        UserError: One lacks a tensor.
    """
    mapping = checkpoint_files.read_json(index, _MOST_INDEX_BYTES)["weight_map"]
    for tensor, shard in mapping.items():
        where = held.get(tensor, [])
        if shard not in where and (where or not tensor.endswith(_MAY_BE_TIED)):
            elsewhere = f": it is in {brief(where[0])}. {_WRITE_AGAIN}" if where else ""
            raise UserError(
                f"{index} promises {brief(tensor)} in {brief(shard)}, which lacks it"
                + (
                    elsewhere
                    or ". The files are of another save: copy or save the checkpoint again"
                )
            )


def _why_missing(index: Path, mapping: Mapping[str, Any], missing: list[str]) -> str:
    """Say whether an index is of other files, or shards are not there yet."""
    folder, names = index.parent, set(mapping.values())
    others = sorted(
        each
        for each in folder.iterdir()
        if each.name.endswith(".safetensors") and each.name not in names
    )
    count = f"{len(missing)} of {len(names)} shards in {index.name} are missing"
    if not others:
        return (
            f"checkpoint {folder} is incomplete: {count}, such as {brief(missing[0])}. If it is "
            "being written, try again afterwards"
        )
    gone = set(missing)
    wanted = {tensor for tensor, shard in mapping.items() if shard in gone}
    lacking = wanted - _tensors(others[:_MOST_OTHERS])
    shown = f"{plural(len(others), 'file')} that it does not name ({brief(others[0].name)} …)"
    if not lacking:
        single = [each.name for each in others] == ["model.safetensors"] and gone == names
        return (
            f"{index} does not fit the files beside it: {count}, such as {brief(missing[0])}, and "
            f"all the tensors of these are in {shown}. It is the index of another save. "
            + ("Remove it" if single else _WRITE_AGAIN)
        )
    return (
        f"checkpoint {folder} is incomplete, and {index.name} does not fit its files: {count}, "
        f"such as {brief(missing[0])}; {shown} lack {plural(len(lacking), 'tensor')} of these, "
        f"such as {brief(min(lacking))}. If it is being written, try again afterwards; else files "
        "of two saves are mixed: copy or save it again"
    )


def _tensors(files: Iterable[Path]) -> set[str]:
    """Return the names of the tensors in files. A torn file counts as empty."""
    found: set[str] = set()
    for file in files:
        with contextlib.suppress(UserError, OSError):
            found |= set(read(file))
    return found
