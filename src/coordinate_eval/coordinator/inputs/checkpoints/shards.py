"""Weights in several safetensors files, and the index that names them."""

import contextlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from coordinate_eval._format import brief, plural
from coordinate_eval.coordinator.inputs.checkpoints import (
    checkpoint_files,
    safetensors_file,
    stand_ins,
)
from coordinate_eval.errors import UserError

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


def named(index: Path) -> list[Path]:
    """Return the files that an index names.

    Raises:
        UserError: It is none, or does not fit the files beside it.
    """
    mapping = checkpoint_files.read_json(index, _MOST_INDEX_BYTES).get("weight_map")
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
        stand_ins.check_link(index.parent / missing[0])
        raise UserError(_why_missing(index, mapping, missing))
    return [index.parent / name for name in sorted(names)]


def check(index: Path, held: Mapping[str, list[str]]) -> None:
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
    others = sorted(each for each in folder.glob("*.safetensors") if each.name not in names)
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
    """Return the names of the tensors in files; one that is torn has none."""
    found: set[str] = set()
    for file in files:
        with contextlib.suppress(UserError, OSError):
            found |= set(safetensors_file.read(file))
    return found
