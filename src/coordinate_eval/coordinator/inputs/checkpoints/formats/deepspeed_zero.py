"""Checkpoints of DeepSpeed: with ZeRO 1 to 3 each rank saves its part of flat vectors.

The weights are the float32 copies of the optimizer, as in DeepSpeed's own `zero_to_fp32.py`.
ZeRO 1 and 2 join the parameters of a group to a vector, and cut the vector into a part for each
rank. ZeRO 3 cuts each parameter, and a rank joins its parts. Parameters that are not trained, and
buffers, lie in the files of the model's states; without ZeRO, or without the files of the optimizer
of ZeRO 1 and 2, all do.
"""

import bisect
import contextlib
import itertools
import math
import re
import struct
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from coordinate_eval._format import brief
from coordinate_eval.coordinator.inputs.checkpoints import checkpoint_files
from coordinate_eval.coordinator.inputs.checkpoints.formats import (
    dcp_metadata,
    rank_files,
    state_dicts,
)
from coordinate_eval.coordinator.inputs.checkpoints.formats.layouts import (
    ITEM_BYTES,
    Box,
    Layout,
    check_name,
)
from coordinate_eval.coordinator.inputs.checkpoints.formats.rank_files import RankFile
from coordinate_eval.coordinator.inputs.checkpoints.formats.sources import Stored
from coordinate_eval.coordinator.inputs.checkpoints.formats.torch_pickle import StoredTensor
from coordinate_eval.errors import UserError

_MODEL = re.compile(r"(?:zero_pp_rank_(?P<rank>\d+)_)?mp_rank_(?P<mp>\d+)_model_states\.pt")
_OPTIMIZER = re.compile(
    r"(?:bf16_|fp16_)?zero_pp_rank_(?P<rank>\d+)_mp_rank_(?P<mp>\d+)_optim_states\.pt"
)
_EXPERT = re.compile(r"(?:layer_\d+_)?expert_\d+_mp_rank_\d+_model_states\.pt")
_LAYER = re.compile(r"layer_(?P<layer>\d+)-model_(?P<mp>\d+)-model_states\.pt")
_OF_ZERO_2, _OF_ZERO_3 = "single_partition_of_fp32_groups", "fp32_flat_groups"
_MOST_RANKS = 1 << 20
_MOST_PARTS, _MOST_PARAMETERS = 100_000, 1_000_000  # of vectors, and in all groups
_AGAIN = "If it is being saved, try again afterwards; else copy it again, or give an earlier one"

Shapes = Mapping[str, tuple[int, ...]]


class _Rank(NamedTuple):
    """A file of a rank."""

    number: int
    file: RankFile


def find(
    place: Path, names: Sequence[str], parts: Collection[str]
) -> tuple[list[Path], list[Path]] | None:
    """Return the files of all ranks in a folder.

    Raises:
        UserError: The model is cut in ways that are not put together.
    """
    if place.is_file() or not any(_MODEL.fullmatch(n) or _LAYER.fullmatch(n) for n in names):
        return None
    if any(map(_EXPERT.fullmatch, names)):
        raise UserError(
            f"checkpoint {place} has experts in files of their own, as DeepSpeed's MoE layers are "
            "saved. Convert it to Hugging Face's format with the trainer's converter"
        )
    kinds = [_LAYER] if any(map(_LAYER.fullmatch, names)) else [_MODEL, _OPTIMIZER]
    weights = []
    for found in (kind.fullmatch(name) for name in names for kind in kinds):
        if found and int(found["mp"]):
            raise UserError(
                f"checkpoint {place} was trained by DeepSpeed with tensor or pipeline ranks "
                f"({found[0]}). Convert it to Hugging Face's format with the trainer's converter, "
                "such as GPT-NeoX's tools/ckpts/convert_neox_to_hf.py"
            )
        if found:
            weights.append(place / found[0])
    return weights, []


def open_source(weights: Sequence[Path], files: Sequence[Path]) -> Stored:
    """Return the tensors that ranks saved together.

    Raises:
        UserError: A rank's file is missing or torn, or is of another save.
    """
    if _LAYER.fullmatch(weights[0].name):
        return Stored(_of_layers(weights))
    models, optimizers = _read(weights, _MODEL), _read(weights, _OPTIMIZER, "optimizer_state_dict")
    model = models[0].file
    rank_files.check_one_save((file.path, file.content.get("global_steps")) for _, file in models)
    if not optimizers:
        return Stored(_untouched(model))
    rank_files.check_one_save((file.path, _step(file)) for _, file in optimizers)
    _check_steps(model, optimizers[0].file)
    _check_all(optimizers)
    states = [file for _, file in optimizers]
    named = {name for name in model.get("buffer_names", list) if isinstance(name, str)}
    module = model.get("module", dict)
    layouts = {n: model.layout(n, tensor) for n, tensor in module.items() if n in named}
    layouts |= _frozen([file for _, file in models])
    trained = _zero_3 if _OF_ZERO_3 in states[0].content else _zero_2
    layouts |= trained(_groups(model), states)
    shared = model.get("shared_params", dict)
    layouts |= {
        name: layouts[other]
        for name, other in shared.items()
        if isinstance(name, str) and isinstance(other, str) and other in layouts
    }
    return Stored(layouts)


def _read(weights: Sequence[Path], names: re.Pattern[str], key: str = "") -> list[_Rank]:
    """Return what the files of these names hold, by rank."""
    read = []
    for path in weights:
        if found := names.fullmatch(path.name):
            read.append(_Rank(int(found["rank"] or 0), rank_files.read(path, key)))
    return sorted(read, key=lambda rank: rank.number)


def _of_layers(weights: Sequence[Path]) -> dict[str, Layout]:
    """Return the tensors of DeepSpeed's pipelines, which save a file for each layer."""
    layouts = {}
    for path in weights:
        if found := _LAYER.fullmatch(path.name):
            file = rank_files.read(path)
            for name, tensor in state_dicts.leaves(file.content, path, StoredTensor).items():
                layouts[f"sequential.{int(found['layer'])}.{name}"] = file.layout(name, tensor)
    return layouts


def _step(file: RankFile) -> int | None:
    """Return how many steps an optimizer has made, None if it does not tell."""
    for key in ("base_optimizer_state", "optimizer_state_dict"):
        states = file.content.get(key)
        states = states.get("state") if isinstance(states, dict) else None
        first = states.get(0) if isinstance(states, dict) else None
        step = first.get("step") if isinstance(first, dict) else None
        if isinstance(step, StoredTensor) and step.dtype == "float32" and step.elements == 1:
            (box,) = file.layout("step", step).boxes
            with checkpoint_files.opened(box.file, weights=True) as opened:
                opened.seek(box.at)
                (value,) = struct.unpack("<f", opened.read(4))
            step = int(value) if math.isfinite(value) else None
        if type(step) is int:
            return step
    return None


def _check_steps(model: RankFile, optimizer: RankFile) -> None:
    """Check that an optimizer has made the model's steps, save those that float16 skipped.

    Raises:
        UserError: It has made fewer.
    """
    made, steps = _step(optimizer), model.content.get("global_steps")
    skipped = model.content.get("skipped_steps")
    if made is None or type(steps) is not int:
        return
    if made + (skipped if type(skipped) is int else 0) < steps:
        raise UserError(
            f"{model.path} is of step {steps:,}, and the optimizer in {optimizer.path}, which has "
            f"the weights, has made {made:,}: files of two saves are mixed. Give another step. If "
            "training went on with a new optimizer, join the ranks with DeepSpeed's "
            "zero_to_fp32.py, and give the folder that it writes"
        )


def _check_all(optimizers: Sequence[_Rank]) -> None:
    """Check that the states of each rank are there, once.

    Raises:
        UserError: Those of a rank are missing.
    """
    first = optimizers[0].file
    count = first.content.get("partition_count")
    counts = count if isinstance(count, list) else [count]
    if not counts or not all(type(each) is int and 0 < each < _MOST_RANKS for each in counts):
        raise UserError(f"{first.path} does not tell how many ranks have saved. {_AGAIN}")
    ranks = [rank.number for rank in optimizers]
    if len(ranks) != max(counts) or ranks != list(range(len(ranks))):
        lacking = next((n for n, rank in enumerate(ranks) if n != rank), len(ranks))
        what = (
            f"those of rank {lacking} are missing" if lacking < max(counts) else "others lie there"
        )
        raise UserError(
            f"checkpoint {first.path.parent} was saved by {max(counts):,} ranks, and has the "
            f"states of {len(ranks):,} optimizers (*_optim_states.pt), which hold the weights: "
            f"{what}. {_AGAIN}"
        )


def _untouched(model: RankFile) -> dict[str, Layout]:
    """Return the weights in the model's states, which are whole except with ZeRO 3."""
    if model.path.name.startswith("zero"):
        raise UserError(
            f"checkpoint {model.path.parent} has no *_optim_states.pt, where ZeRO 3 keeps the "
            f"weights. {_AGAIN}"
        )
    module = state_dicts.leaves(model.get("module", dict), model.path, StoredTensor)
    return {name: model.layout(name, tensor) for name, tensor in module.items()}


class _Vector:
    """Numbers that lie in parts of files, one after another."""

    def __init__(self, parts: Sequence[Layout], file: RankFile) -> None:
        """Take the parts, of files such as this.

        Raises:
            UserError: They are no flat vectors of one type.
        """
        self._boxes = [box for part in parts for box in part.boxes]
        self._ends = list(itertools.accumulate(math.prod(box.shape) for box in self._boxes))
        self.dtype = parts[0].dtype if parts else "float32"
        self.length = self._ends[-1] if self._ends else 0
        if any(part.dtype != self.dtype for part in parts) or any(
            box.strides not in ((1,), ()) for box in self._boxes
        ):
            raise UserError(f"{file.path} is not what its name says: it has no flat vectors")

    def boxes(self, start: int, stop: int, begin: int = 0) -> list[Box]:
        """Return the numbers from `start` to `stop` as parts of a flat tensor, from `begin` on."""
        return list(self._between(start, stop, begin))

    def _between(self, start: int, stop: int, begin: int) -> Iterator[Box]:
        place = bisect.bisect_right(self._ends, start)
        while start < stop and place < len(self._ends):
            box, end = self._boxes[place], self._ends[place]
            length = min(stop, end) - start
            at = box.at + (start - end + math.prod(box.shape)) * ITEM_BYTES[self.dtype]
            yield Box(box.file, at, (length,), (1,), (begin,))
            start, begin, place = start + length, begin + length, place + 1


def _groups(model: RankFile) -> list[Shapes]:
    """Return the shapes of the parameters in each group of the optimizer."""
    groups = model.get("param_shapes", list)
    if not all(isinstance(group, dict) for group in groups):
        raise UserError(f"{model.path} is not what its name says: param_shapes has no dicts")
    if len(groups) + sum(map(len, groups)) > _MOST_PARAMETERS:  # one may be all of them
        raise UserError(f"{model.path} is damaged: it has more parameters than any model")
    return [{n: _shape(model, n, shape) for n, shape in group.items()} for group in groups]


def _shape(model: RankFile, name: object, shape: object) -> tuple[int, ...]:
    with contextlib.suppress(ValueError):
        sizes = dcp_metadata.sizes(shape)
        if isinstance(name, str):
            check_name(name, model.path)
            return sizes
    raise UserError(f"{model.path} is not what its name says: {brief(name)} has no shape")


def _frozen(models: Sequence[RankFile]) -> dict[str, Layout]:
    """Return the parameters that are not trained. With ZeRO 3 each rank has a part of each."""
    layouts = {}
    for name, sizes in models[0].get("frozen_param_shapes", dict).items():
        shape = _shape(models[0], name, sizes)
        parts = [
            file.layout(name, file.get("frozen_param_fragments", dict).get(name)) for file in models
        ]
        if len(models) == 1 and parts[0].shape == shape:
            layouts[name] = parts[0]
            continue
        vector = _Vector(parts, models[0])
        boxes = tuple(vector.boxes(0, math.prod(shape)))
        layouts[name] = Layout(vector.dtype, shape, boxes, flat=True)
    return layouts


def _zero_2(groups: Sequence[Shapes], optimizers: Sequence[RankFile]) -> dict[str, Layout]:
    """Return parameters that lie one after another in the vectors of all ranks together."""
    first = optimizers[0]
    ranks = [_parts(file, _OF_ZERO_2) for file in optimizers]
    # Newer versions tell what lies between parameters.
    between = first.get("param_alignment_paddings", list) or [[0] * len(group) for group in groups]
    if {len(each) for each in (*ranks, between)} != {len(groups)}:
        raise _misfit(optimizers)
    layouts = {}
    for shapes, paddings, *parts in zip(groups, between, *ranks, strict=True):
        vector, start = _Vector(parts, first), 0
        if not isinstance(paddings, list) or len(paddings) != len(shapes):
            raise _misfit(optimizers)
        for (name, shape), padding in zip(shapes.items(), paddings, strict=True):
            stop = start + math.prod(shape)
            layouts[name] = Layout(vector.dtype, shape, tuple(vector.boxes(start, stop)), flat=True)
            start = stop + (padding if type(padding) is int and padding >= 0 else 0)
        # The end is padded, by as much as DeepSpeed's own tool accepts.
        align = 2 * len(optimizers)
        if -(-start // align) != -(-vector.length // align):
            raise _misfit(optimizers)
    return layouts


def _zero_3(groups: Sequence[Shapes], optimizers: Sequence[RankFile]) -> dict[str, Layout]:
    """Return parameters of which the vectors of each rank have a part."""
    ranks = [_Vector(_parts(file, _OF_ZERO_3), file) for file in optimizers]
    layouts, start = {}, 0
    for name, shape in (each for group in groups for each in group.items()):
        size = math.prod(shape)
        part = -(-size // len(ranks))
        boxes: list[Box] = []
        for rank, vector in enumerate(ranks):
            begin = rank * part
            boxes += vector.boxes(start, start + min(part, size - begin), begin)
        layouts[name] = Layout(ranks[0].dtype, shape, tuple(boxes), flat=True)
        start += part
    if {(vector.length, vector.dtype) for vector in ranks} != {(start, ranks[0].dtype)}:
        raise _misfit(optimizers)
    return layouts


def _parts(file: RankFile, key: str) -> list[Layout]:
    parts = file.get(key, list)
    if len(parts) > _MOST_PARTS:
        raise UserError(f"{file.path} is damaged: it has more parts of {key} than any optimizer")
    return [file.layout(key, tensor) for tensor in parts]


def _misfit(optimizers: Sequence[RankFile]) -> UserError:
    return UserError(
        f"checkpoint {optimizers[0].path.parent}: the states of the optimizers and of the model "
        "differ in the number of parameters. Files of two saves are mixed: save it again, into an "
        "empty folder"
    )
