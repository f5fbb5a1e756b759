"""The settings of a training with Megatron, as its checkpoints tell them.

They say what weights mean, and how rows of queries, keys and values are cut. So a config that says
something else gives a plausible model, and a wrong one.
"""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import yaml

from coordinate_eval._text_config import HEADS, KV_HEADS, TextConfig
from coordinate_eval.coordinator.inputs.checkpoints import checkpoint_files
from coordinate_eval.coordinator.inputs.checkpoints.formats import (
    dcp_metadata,
    rank_files,
    torch_file,
)
from coordinate_eval.coordinator.inputs.checkpoints.formats.named_classes import ANY_CLASS
from coordinate_eval.coordinator.inputs.checkpoints.formats.rank_files import RankFile
from coordinate_eval.coordinator.inputs.checkpoints.formats.torch_pickle import Object
from coordinate_eval.errors import UserError

COMMON: Final = "common.pt"
"""Beside a distributed checkpoint, up to Megatron-core 0.16."""

RUN: Final = "run_config.yaml"
"""Of Megatron Bridge, whose checkpoints have no arguments."""

_OBJECTS = ("common_state/shard_0_1", "args")  # in files of ranks: of torch_dist since, and of DCP
_MOST_RUN_BYTES = 4 << 20
_ROTARY = ("rope", "yarn")
_CONVERTED = "release"  # a folder in place of a step's, for trainings to begin with


class Trained(NamedTuple):
    """Settings of training."""

    values: Mapping[str, Any]
    """By the names of Megatron's arguments; empty if they are not told."""
    file: Path


def of_rank(file: RankFile) -> Trained:
    """Return what a file of torch.save tells."""
    return Trained(_arguments(file.content), file.path)


def of_distributed(weights: Sequence[Path], saved: dcp_metadata.Saved) -> Trained:
    """Return what lies beside the parts of a distributed checkpoint, or in them.

    Raises:
        UserError: A file is torn.
    """
    by_name = {file.name: file for file in weights}
    if run := by_name.get(RUN):
        return Trained(_of_run(run), run)
    if common := by_name.get(COMMON):
        return of_rank(rank_files.read(common))
    for (name, _), part in saved.parts.items():
        if name in _OBJECTS and (file := by_name.get(part.file)):
            content, _ = torch_file.read(file, part.at, part.length, ANY_CLASS)
            return Trained(_arguments(content), file)
    return Trained({}, by_name[dcp_metadata.METADATA])


def _of_run(path: Path) -> Mapping[str, Any]:
    with contextlib.suppress(yaml.YAMLError, AttributeError, RecursionError):
        model = yaml.safe_load(checkpoint_files.read(path, _MOST_RUN_BYTES)).get("model")
        return model if isinstance(model, dict) else {}
    return {}


def _arguments(content: object) -> Mapping[str, Any]:
    if isinstance(content, list) and len(content) == 1:
        (content,) = content
    found = content.get("args") if isinstance(content, Mapping) else content
    state = found.state if isinstance(found, Object) else found
    return state if isinstance(state, dict) else {}


def check_meaning(trained: Trained) -> None:
    """Refuse models whose weights mean something else than those of Hugging Face's models.

    Raises:
        UserError: They do.
    """
    values, what = trained.values, ""
    for name in ("apply_layernorm_1p", "layernorm_zero_centered_gamma"):
        if values.get(name) is True:
            what = f"weights of norms are one less than those of other models ({name})"
    if values.get("rotary_interleaved") is True and not values.get("multi_latent_attention"):
        what = "rotary positions are interleaved (rotary_interleaved)"
    if what:
        raise UserError(
            f"{trained.file}: {what}. Convert it to Hugging Face's format with the trainer's "
            "converter"
        )


def check_config(trained: Trained, config: TextConfig) -> None:
    """Check that a config says the same as training, of what shapes of tensors do not tell.

    Raises:
        UserError: It does not.
    """
    for name, value, key, said in _told_twice(trained, config):
        if type(value) in (int, float) and type(said) in (int, float) and value != said:
            raise UserError(
                f"{trained.file} says that the model was trained with {name} {value:g}, and "
                f"{config.file} has {key} {said:g}. Give the config.json of this model with "
                "--config"
            )


def _told_twice(trained: Trained, config: TextConfig) -> Iterator[tuple[str, object, str, object]]:
    """Yield settings with those of the config that mean the same."""
    values = trained.values
    heads = values.get("num_attention_heads")
    yield "num_attention_heads", heads, HEADS[0], config.number(*HEADS)
    if not values.get("multi_latent_attention"):
        grouped = values.get("group_query_attention") is not False
        groups = (grouped and values.get("num_query_groups")) or heads
        yield "num_query_groups", groups, KV_HEADS[0], config.number(*KV_HEADS, *HEADS)
    if values.get("num_experts") or values.get("num_moe_experts"):
        key = "num_experts_per_tok"
        yield "moe_router_topk", values.get("moe_router_topk"), key, config.number(key)
    # What a converter has written may have the default: trainings from it get the base anew.
    converted = _CONVERTED in trained.file.parts[-3:]
    if values.get("position_embedding_type") in _ROTARY and not converted:
        rope = config.given.get("rope_parameters")
        found = rope.get("rope_theta") if isinstance(rope, dict) else None
        theta = config.given.get("rope_theta", found)
        yield "rotary_base", values.get("rotary_base"), "rope_theta", theta
