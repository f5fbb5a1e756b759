"""Checkpoints of torch.distributed.checkpoint (DCP), which are cut into parts of ranks.

`.metadata` (see `dcp_metadata`) lists the parts of tensors in the `.distcp` files of ranks. It is
written last. Each part is what torch.save writes of a tensor. Its place in the file is only known
once it is read, so that nothing else is read when a checkpoint is described.

Where ranks have written safetensors (`HuggingFaceStorageWriter`), their headers say which part of
a tensor each of them has.
"""

import contextlib
import dataclasses
import json
import re
import struct
from collections.abc import Collection, Container, Sequence
from pathlib import Path
from typing import Any, Final

from coordinate_eval._format import brief, plural
from coordinate_eval.coordinator.inputs.checkpoints import checkpoint_files
from coordinate_eval.coordinator.inputs.checkpoints.formats import (
    safetensors_file,
    state_dicts,
    torch_file,
)
from coordinate_eval.coordinator.inputs.checkpoints.formats.dcp_metadata import (
    METADATA,
    SUFFIXES,
    Blobs,
    Saved,
    read,
    sizes,
)
from coordinate_eval.coordinator.inputs.checkpoints.formats.layouts import Box, Layout
from coordinate_eval.coordinator.inputs.checkpoints.formats.sources import Stored
from coordinate_eval.errors import UserError

FOLDERS: Final = re.compile(r"pytorch_model_fsdp_0|model_and_optim|model|dcp|sharded")
"""Folders of checkpoints in which trainers have the parts: Accelerate and Trainer, OLMo-core, …"""

_SHARD = re.compile(r"shard-\d+-model-\d+-of-\d+\.safetensors")
_OF_OPTIMIZERS = ("optimizer.", "chained_")  # names in Megatron's, which has no nested dicts
_SHARDING = "DCP_SHARDING_INFO"  # torch/distributed/checkpoint/_hf_utils.py
_OF_STATE = re.compile(r"(?:^|\.)optim(?:izer)?(?:_\d+)?\.")
_COUNTERS = 3  # that are read of each file whose steps are in doubt
_FLOAT = struct.Struct("<f")


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
    parts = [folder / name for name in names if name.endswith(SUFFIXES)]
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


def open_source(
    weights: Sequence[Path], files: Sequence[Path], saved: Saved | None = None
) -> Stored:
    """Return the tensors of the model, under the model's own names.

    `saved` is what the metadata says, if it was read already.

    Raises:
        UserError: The metadata is damaged or would run code, has no model, or the files of ranks
            are missing, cut short or of another save.
    """
    metadata = next((file for file in weights if file.name == METADATA), None)
    if metadata is None:
        return _of_shards(weights)
    saved = saved or read(metadata)
    if not saved.tensors:
        raise UserError(
            f"{metadata} lists no tensors, only objects that ranks saved as a whole: the planner "
            "had flatten_state_dict=False. Save with that of dcp.save itself"
        )
    tree: dict[str, Any] = {}
    prefixed = not saved.paths and any(name.startswith("optim") for name in saved.tensors)
    for name in saved.tensors:
        keys = saved.paths.get(name) or [name]
        if len(keys) == 1 and name.startswith(_OF_OPTIMIZERS):
            continue
        _insert(tree, name.split(".", 1) if prefixed else keys, _Name(name))
    found = state_dicts.leaves(tree, metadata, _Name)
    own = torch_file.own_names(found)
    if len(set(own.values())) < len(own):
        raise UserError(f"{metadata} has tensors that differ only in the names of wrappers")
    folder = metadata.parent
    layouts = {name: _placed(folder, found[n], saved) for n, name in own.items()}
    _check_files(folder, layouts.values(), saved, {file.name for file in weights})
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


def _placed(folder: Path, name: str, saved: Saved) -> Layout:
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


def _check_files(
    folder: Path, layouts: Collection[Layout], saved: Saved, listed: Container[str]
) -> None:
    """Check that files of ranks are among those listed, and as long as the metadata says.

    So are the optimizer's parts in them, which are written last: a file that was cut among these
    was being written, and others may be of the save before.

    Raises:
        UserError: They are not.
    """
    ends: dict[Path, int] = {}
    for layout in layouts:
        for box in layout.boxes:
            ends[box.file] = max(ends.get(box.file, 0), box.at + box.length)
    named = {file.name: file for file in ends}
    for part in saved.parts.values():
        if file := named.get(part.file):
            ends[file] = max(ends[file], part.at + part.length)
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


def _check_steps(folder: Path, saved: Saved) -> None:
    """Check that the optimizer has made as many steps in the files of all ranks.

    A parameter that was trained later has a smaller counter. So a file counts whose counters are
    several and alike.

    Raises:
        UserError: Files of two steps are mixed.
    """
    counters: dict[str, list[str]] = {}
    for (name, _), part in saved.parts.items():
        layout = saved.tensors.get(name) if _is_counter(name) else None
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


def _is_counter(name: str) -> bool:
    return name.endswith(".step") and _OF_STATE.search(name) is not None


def _counter(folder: Path, name: str, saved: Saved) -> float | None:
    """Return how many steps an optimizer has made of a parameter; None if that cannot be read."""
    with contextlib.suppress(OSError, UserError, struct.error):  # it is not needed
        for saved_part in _placed(folder, name, saved).boxes:
            box = Blobs().placed(saved_part, "float32")
            with checkpoint_files.opened(box.file, weights=True) as opened:
                value: float = _FLOAT.unpack(checkpoint_files.pread(opened, _FLOAT.size, box.at))[0]
                return value
    return None


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
        return {name: sizes(tuple(each["saved_offsets"])) for name, each in found.items()}
    except (AttributeError, LookupError, TypeError, ValueError, RecursionError) as error:
        raise UserError(
            f"{file} does not say which parts of tensors it has ({brief(error)}). Save it again"
        ) from error
