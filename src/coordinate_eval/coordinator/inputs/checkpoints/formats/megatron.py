"""Checkpoints of Megatron: files of tensor, pipeline and expert ranks, and distributed ones.

`mp_rank_*/model_optim_rng.pt` has what a rank had of each tensor. The ranks are put together as if
there had been one: matrices along the dimension that tensor ranks divide, layers of pipeline ranks
and experts of expert ranks numbered through. Names are those of Megatron-core, also where an older
Megatron-LM has saved. A distributed checkpoint (torch_dist) is one of torch.distributed, with the
arguments of training beside it or in it.
"""

import itertools
import math
import re
import shlex
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from coordinate_eval._format import brief
from coordinate_eval.coordinator.inputs.checkpoints.formats import (
    dcp,
    dcp_metadata,
    megatron_settings,
    rank_files,
    state_dicts,
)
from coordinate_eval.coordinator.inputs.checkpoints.formats.layouts import ITEM_BYTES, Box, Layout
from coordinate_eval.coordinator.inputs.checkpoints.formats.rank_files import RankFile
from coordinate_eval.coordinator.inputs.checkpoints.formats.sources import Source, Stored
from coordinate_eval.coordinator.inputs.checkpoints.formats.torch_pickle import StoredTensor
from coordinate_eval.errors import UserError

_SHARDED = "metadata.json"  # beside .metadata, written last
_STEP = re.compile(r"iter_\d{7,}|release")
_INSIDE = "weights"  # a folder of NeMo 2
_ADAPTER = "adapter_metadata.json"  # in it
_FILES = ("model_optim_rng.pt", "model_rng.pt")
_RANK = re.compile(r"mp_rank_(\d{2,})(?:_(\d{3,}))?(?:_(\d{3,}))?")
_CHUNK = re.compile(r"model(\d{0,6})")
_LAYER = re.compile(r"decoder\.layers\.(\d{1,6})\.(.*)", re.DOTALL)
_EXPERT = re.compile(
    r"(.*\.experts\.(?:local_experts\.|linear_fc[12]\.(?:weight|bias)))(\d{1,6})(?!\d)(.*)"
)
_LEAST_VERSION = 2  # before, queries, keys and values of a rank lie in another order
_MOST_CHUNKS = 100  # of a rank's model: virtual stages

_OLD = (
    (r"(?:module\.)+", ""),
    (r"language_model\.embedding\.", "embedding."),
    (r"language_model\.output_layer\.", "output_layer."),
    (
        r"language_model\.(?:encoder|transformer)\.final_(?:layer)?norm\.",
        "decoder.final_layernorm.",
    ),
    (r"language_model\.(?:encoder|transformer)\.layers\.", "decoder.layers."),
    (
        r"(decoder\.layers\.\d+\.)(?:self_)?attention\.query_key_value\.",
        r"\1self_attention.linear_qkv.",
    ),
    (r"(decoder\.layers\.\d+\.)(?:self_)?attention\.dense\.", r"\1self_attention.linear_proj."),
    (r"(decoder\.layers\.\d+\.mlp\.)dense_h_to_4h\.", r"\1linear_fc1."),
    (r"(decoder\.layers\.\d+\.mlp\.)dense_4h_to_h\.", r"\1linear_fc2."),
    (r"(decoder\.layers\.\d+\.)input_norm\.", r"\1input_layernorm."),
    (r"(decoder\.layers\.\d+\.)post_attention_(?:layer)?norm\.", r"\1pre_mlp_layernorm."),
)
"""Beginnings of the names that Megatron-LM had before Megatron-core, and what they have become."""

# How tensor ranks divide tensors, by the ends of their names.
_ROWS = re.compile(
    r"embedding\.word_embeddings\.weight|output_layer\.(?:weight|bias)"
    r"|.*\.(?:linear_qkv|linear_q_proj|linear_q_up_proj|linear_kv_up_proj)\.(?:weight|bias)"
    r"|.*\.linear_fc1\.(?:weight|bias)\d*"
)
_COLUMNS = re.compile(r".*\.(?:linear_proj\.weight|linear_fc2\.weight\d*)")
_WHOLE = re.compile(
    r".*norm(?:_weight|_bias|\.weight|\.bias)|.*\.linear_proj\.bias|.*\.linear_fc2\.bias\d*"
    r"|.*\.router\..*|.*\.shared_experts\.gate_weight|embedding\.position_embeddings\.weight"
    r"|.*\.linear_(?:q|kv)_down_proj\.(?:weight|bias)|.*\.core_attention\.softmax_offset",
    re.DOTALL,
)
_LEFT_OUT = re.compile(
    r".*_extra_state|.*\.inv_freq|word_embeddings_for_head\.weight|.*\.masked_bias|mtp\..*"
)


@dataclass(frozen=True)
class _Rank:
    """A file of `mp_rank_*`, and whose it is."""

    tensor: int
    pipeline: int
    expert: int
    file: RankFile


class _Shape(NamedTuple):
    """The number of ranks of each kind."""

    tensor: int
    pipeline: int
    expert: int


def find(
    place: Path, names: Sequence[str], parts: Collection[str]
) -> tuple[list[Path], list[Path]] | None:
    """Return the files of all ranks in a folder, or what a distributed checkpoint has.

    Raises:
        UserError: A rank's folder has no file of its model.
    """
    if place.is_file():
        return None
    if _INSIDE in names and (place / _INSIDE).is_dir():
        place = place / _INSIDE
        names = sorted(entry.name for entry in place.iterdir())
    if _ADAPTER in names:
        path = shlex.quote(str(place.parent))
        raise UserError(
            f"checkpoint {place} is an adapter of NeMo 2. Export it for PEFT, and give OUT: "
            f"nemo llm export path={path} target=hf-peft output_path=OUT"
        )
    told = (megatron_settings.COMMON, megatron_settings.RUN)
    ours = {_SHARDED, *told}.intersection(names) or _STEP.fullmatch(place.name)
    if ours and dcp_metadata.METADATA in names:
        found = [name for name in names if name.endswith(dcp_metadata.SUFFIXES) or name in told]
        return [place / name for name in (dcp_metadata.METADATA, *found)], []
    folders = [place / name for name in names if _RANK.fullmatch(name)]
    weights = []
    for folder in folders:
        there = [folder / name for name in _FILES if (folder / name).is_file()]
        if not there:
            raise UserError(
                f"checkpoint {place} is incomplete: {folder.name} has no {_FILES[0]}. If it is "
                "being written, try again afterwards; else copy it again, or give an earlier one"
            )
        weights.append(there[0])
    return (weights, []) if weights else None


def open_source(weights: Sequence[Path], files: Sequence[Path]) -> Source:
    """Return the tensors of the model, by the names of Megatron-core.

    Raises:
        UserError: A rank's file is missing or torn, or is of another save; or it cannot be told
            how ranks have divided a tensor.
    """
    metadata = [file for file in weights if file.name == dcp_metadata.METADATA]
    if metadata:
        saved = dcp_metadata.read(metadata[0])
        trained = megatron_settings.of_distributed(weights, saved)
        beside = (megatron_settings.COMMON, megatron_settings.RUN)
        parts = [file for file in weights if file.name not in beside]
        megatron_settings.check_meaning(trained)
        source = dcp.open_source(parts, files, saved)
    else:
        read = [(_RANK.fullmatch(path.parent.name), rank_files.read(path)) for path in weights]
        trained = megatron_settings.of_rank(read[0][1])
        megatron_settings.check_meaning(trained)
        source = Stored(_put_together(read, trained.values))
    source.trained = trained
    return source


def _put_together(
    read: Sequence[tuple[re.Match[str] | None, RankFile]], arguments: Mapping[str, Any]
) -> dict[str, Layout]:
    """Return the tensors of all ranks together."""
    first = read[0][1]
    rank_files.check_one_save((file.path, file.content.get("iteration")) for _, file in read)
    version = first.content.get("checkpoint_version", _LEAST_VERSION)
    if isinstance(version, float | int) and version < _LEAST_VERSION:
        raise UserError(
            f"{first.path} is of Megatron-LM before {_LEAST_VERSION}.0 ({version}): load it there "
            "and save it again"
        )
    ranks = [_rank(numbers, file, arguments) for numbers, file in read if numbers]
    shape = _check_all(ranks, arguments)
    tied = arguments.get("untie_embeddings_and_output_weights") is False
    layouts: dict[str, Layout] = {}
    layers = 0
    for chunk, pipeline in itertools.product(_chunks(first), range(shape.pipeline)):
        members = [rank for rank in ranks if rank.pipeline == pipeline]
        held = [(rank, _tensors(rank.file, chunk, layers)) for rank in members]
        found = dict(_joined(held, shape, arguments))
        if tied:
            found.pop("output_layer.weight", None)
        layouts = found | layouts
        numbers = [int(match[1]) for name in found if (match := _LAYER.fullmatch(name))]
        layers = max(numbers, default=layers - 1) + 1
    expected = arguments.get("num_layers")
    if type(expected) is int and layers != expected:
        raise UserError(
            f"checkpoint {first.path.parent.parent} has {layers:,} of {expected:,} layers: files "
            "of ranks are missing. Copy all of them"
        )
    return layouts


def _rank(numbers: re.Match[str], file: RankFile, arguments: Mapping[str, Any]) -> _Rank:
    """Return whose file it is: of a tensor rank, a pipeline rank and an expert rank."""
    tensor, second, third = (int(number or 0) for number in numbers.groups())
    if numbers[3] is None and arguments.get("pipeline_model_parallel_size") == 1:
        return _Rank(tensor, 0, second, file)
    return _Rank(tensor, second, third, file)


def _check_all(ranks: Sequence[_Rank], arguments: Mapping[str, Any]) -> _Shape:
    """Check that the file of each rank is there, and return how many ranks there are.

    Raises:
        UserError: Some are missing, or experts are divided in another way.
    """
    there = {(rank.tensor, rank.pipeline, rank.expert) for rank in ranks}
    told = (
        arguments.get(f"{kind}_model_parallel_size") for kind in ("tensor", "pipeline", "expert")
    )
    found = (max(numbers) + 1 for numbers in zip(*there, strict=True))
    sizes = [
        size if type(size) is int and 0 < size < 10**4 else n
        for size, n in zip(told, found, strict=True)
    ]
    shape = _Shape(*sizes)
    place = ranks[0].file.path.parent.parent
    if len(there) != math.prod(shape):
        raise UserError(
            f"checkpoint {place} has the files of {len(there):,} ranks, and was saved by "
            f"{shape.tensor:,} tensor × {shape.pipeline:,} pipeline × {shape.expert:,} expert "
            "ranks. If it is being written, try again afterwards; else copy the others there"
        )
    divided = arguments.get("expert_tensor_parallel_size")
    if arguments.get("num_experts") and type(divided) is int and divided != shape.tensor:
        raise UserError(
            f"checkpoint {place} has experts that {divided} tensor ranks divide, and other layers "
            f"that {shape.tensor} divide. Save it as torch_dist (--ckpt-format torch_dist)"
        )
    return shape


def _chunks(file: RankFile) -> list[str]:
    """Return the keys of a rank's parts of the model, one for each virtual stage, in order."""
    keys = [key for key in file.content if isinstance(key, str) and _CHUNK.fullmatch(key)]
    if not keys:
        raise UserError(f"{file.path} has no model. Give the folder of another step")
    if len(keys) > _MOST_CHUNKS:
        raise UserError(f"{file.path} has {len(keys):,} parts of a model: it is damaged")
    return sorted(keys, key=lambda key: int(key.removeprefix("model") or 0))


def _tensors(file: RankFile, chunk: str, layers: int) -> dict[str, Layout]:
    """Return the tensors of a part of a rank's model, after so many layers of other parts."""
    content = file.get(chunk, dict)  # empty in a stage of the pipeline that has no layer
    tensors = state_dicts.leaves(content, file.path, StoredTensor) if content else {}
    found = {}
    for old, tensor in tensors.items():
        name = old
        for pattern, new in _OLD:
            name = re.sub(rf"^{pattern}", new, name)
        if match := _LAYER.fullmatch(name):
            name = f"decoder.layers.{int(match[1]) + layers}.{match[2]}"
        if not _LEFT_OUT.fullmatch(name):
            found[name] = file.layout(name, tensor)
    return found


def _joined(
    held: Sequence[tuple[_Rank, Mapping[str, Layout]]], shape: _Shape, arguments: Mapping[str, Any]
) -> Iterator[tuple[str, Layout]]:
    """Yield the tensors of a stage of the pipeline, of all its ranks together."""
    for expert in range(shape.expert):
        ranks = sorted(
            ((rank, tensors) for rank, tensors in held if rank.expert == expert),
            key=lambda each: each[0].tensor,
        )
        first, tensors = ranks[0]
        numbers = [int(match[2]) for name in tensors if (match := _EXPERT.fullmatch(name))]
        before = expert * (max(numbers, default=-1) + 1)
        for name in tensors:
            match = _EXPERT.fullmatch(name)
            if shape.expert > 1 and ".experts." in name and not match:
                raise _unknown(name, first, "expert")
            if expert and not match:
                continue  # each expert rank has the same
            parts = [each.get(name) for _, each in ranks]
            whole = f"{match[1]}{int(match[2]) + before}{match[3]}" if match else name
            yield whole, _whole(name, parts, tensors, first, arguments)


def _whole(
    name: str,
    parts: Sequence[Layout | None],
    beside: Mapping[str, Layout],
    rank: _Rank,
    arguments: Mapping[str, Any],
) -> Layout:
    """Return a tensor that tensor ranks have parts of."""
    found = [part for part in parts if part is not None]
    first = found[0]
    if len(parts) == 1 or _is_whole(name, first, arguments):
        return first
    dimension = 0 if _ROWS.fullmatch(name) else 1 if _COLUMNS.fullmatch(name) else None
    if _WHOLE.fullmatch(name):  # divided nevertheless
        dimension = 0
    if dimension is None or len(first.shape) <= dimension:
        raise _unknown(name, rank, "tensor")
    if len(found) < len(parts) or len({(part.dtype, part.shape) for part in found}) > 1:
        raise UserError(
            f"checkpoint {rank.file.path.parent.parent}: tensor ranks have {brief(name)} in "
            "different shapes or types, or not at all. Files of two saves are mixed: save it again"
        )
    halves = 2 if _is_gated(name, first, beside) else 1
    length = first.shape[dimension] // halves
    boxes = [
        _part(part, dimension, half * length, length, (half * len(found) + number) * length)
        for half in range(halves)
        for number, part in enumerate(found)
    ]
    sizes = list(first.shape)
    sizes[dimension] *= len(found)
    return Layout(first.dtype, tuple(sizes), tuple(boxes))


def _is_whole(name: str, part: Layout, arguments: Mapping[str, Any]) -> bool:
    """Return whether each tensor rank has all of a tensor."""
    if not _WHOLE.fullmatch(name):
        return False
    # Some versions divide these, some do not.
    if ".linear_q_down_proj." in name:
        return arguments.get("q_lora_rank") in (None, part.shape[0])
    if ".linear_kv_down_proj." in name:
        latent, rotary = (arguments.get(key) for key in ("kv_lora_rank", "qk_pos_emb_head_dim"))
        return not (type(latent) is type(rotary) is int) or latent + rotary == part.shape[0]
    return True


def _is_gated(name: str, part: Layout, beside: Mapping[str, Layout]) -> bool:
    """Return whether each tensor rank has rows of the gate, and then as many of the other half."""
    second = beside.get(re.sub(r"\.linear_fc1\.(?:weight|bias)", ".linear_fc2.weight", name))
    if ".linear_fc1." not in name or second is None or len(second.shape) != 2:
        return False
    return part.shape[0] == 2 * second.shape[1]


def _part(part: Layout, dimension: int, start: int, length: int, begin: int) -> Box:
    """Return a range of a rank's part along a dimension, and where it begins in the tensor."""
    (box,) = part.boxes
    shape, begins = list(box.shape), [0] * len(box.shape)
    shape[dimension], begins[dimension] = length, begin
    at = box.at + start * box.strides[dimension] * ITEM_BYTES[part.dtype]
    return box._replace(at=at, shape=tuple(shape), begin=tuple(begins))


def _unknown(name: str, rank: _Rank, kind: str) -> UserError:
    return UserError(
        f"checkpoint {rank.file.path.parent.parent}: it cannot be told how {kind} ranks divide "
        f"{brief(name)}. Save it as torch_dist (--ckpt-format torch_dist), or convert it with the "
        "trainer's converter"
    )
