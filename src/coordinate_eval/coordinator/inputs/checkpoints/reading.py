"""Tensors of checkpoints, as engines get them: read from files, renamed, merged or averaged."""

import json
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Protocol

from coordinate_eval._text_config import TextConfig, text_config
from coordinate_eval.coordinator.inputs.checkpoints import config_file, remote
from coordinate_eval.coordinator.inputs.checkpoints.formats import (
    dcp,
    deepspeed_zero,
    megatron,
    safetensors_file,
    torch_file,
)
from coordinate_eval.coordinator.inputs.checkpoints.formats.sources import Source
from coordinate_eval.coordinator.inputs.checkpoints.mixed import adapter, average, merged
from coordinate_eval.coordinator.inputs.checkpoints.model import fit
from coordinate_eval.coordinator.inputs.checkpoints.model.layers import LAYERS
from coordinate_eval.coordinator.inputs.checkpoints.names.renamed import Renamed
from coordinate_eval.records import Checkpoint, CheckpointFormat


class Reader(Protocol):
    """A module that reads checkpoints of one format."""

    def find(
        self, place: Path, names: Sequence[str], parts: Collection[str]
    ) -> tuple[list[Path], list[Path]] | None:
        """Return the weight files at a place, and small files that engines need with them.

        Weight files are all files that tensors are read from, and those that say where tensors are.
        Return None if the place has no weights of this format. `parts` are the names that tell
        another format.
        """
        ...

    def open_source(self, weights: Sequence[Path], files: Sequence[Path]) -> Source:
        """Return the tensors of weight files.

        `files` are the small files of the checkpoint; those that `find` returned are among them.

        Raises:
            UserError: A file is torn, or not what its name says.
        """
        ...


READERS: Final[Mapping[CheckpointFormat, Reader]] = {
    CheckpointFormat.SAFETENSORS: safetensors_file,
    CheckpointFormat.TORCH: torch_file,
    CheckpointFormat.MEGATRON: megatron,
    CheckpointFormat.DCP: dcp,
    CheckpointFormat.DEEPSPEED: deepspeed_zero,
}
"""The formats that are read. The first that finds weights counts.

A torch file of any other name than a model's comes last: it may be what a trainer saved besides.
"""


def source(checkpoint: Checkpoint) -> Source:
    """Return the tensors of a checkpoint, as engines get them.

    Raises:
        UserError: A file is torn, or not what its name says.
    """
    weights = [remote.located(name) for name in checkpoint.weights]
    files = list(map(Path, checkpoint.files))
    if checkpoint.parts:
        return open_mixed(checkpoint.format, weights, checkpoint.parts, checkpoint.shares)
    opened = stored(checkpoint.format, weights, files)
    if checkpoint.mapping is None:
        return opened
    whole, text = text_config_of(checkpoint)
    return Renamed(opened, checkpoint.mapping, text, tied=fit.ties_embeddings(whole, text))


def open_mixed(
    kind: CheckpointFormat,
    weights: Sequence[Path],
    parts: Sequence[Checkpoint],
    shares: Sequence[float],
) -> Source:
    """Return the tensors of a checkpoint that is made of others."""
    if kind is CheckpointFormat.AVERAGE:
        names = [part.path for part in parts]
        return average.Average([source(part) for part in parts], shares, names)
    (base,) = parts
    whole, text = text_config_of(base)
    return merged.Merged(
        source(base),
        stored(kind, weights, []),
        adapter.AdapterConfig(weights[1]),
        tied=fit.ties_embeddings(whole, text),
        where=base.path,
        layers=text.number(*LAYERS) or 0,
    )


def stored(kind: CheckpointFormat, weights: Sequence[Path], files: Sequence[Path]) -> Source:
    """Return the tensors in the files of a checkpoint; of an adapter, its own."""
    if kind is CheckpointFormat.ADAPTER:
        own: Reader = torch_file if weights[0].suffix == ".bin" else safetensors_file
        return own.open_source(weights[:1], [])
    return READERS[kind].open_source(weights, files)


def text_config_of(checkpoint: Checkpoint) -> tuple[dict[str, Any], TextConfig]:
    """Return the config beside a checkpoint's weights, and that of its language model in it."""
    file = config_file.file_of([*map(Path, checkpoint.files)])
    whole = config_file.read(file)
    return whole, text_config(whole, file)


def config_of(opened: Source, whole: dict[str, Any]) -> dict[str, Any]:
    """Return the config of the model that a source is, from that of the model it is made of."""
    return opened.adapted(whole) if isinstance(opened, merged.Merged | average.Average) else whole


def write_config(opened: Source, folder: Path) -> None:
    """Change a config.json in a folder to that of the model that a source is."""
    file = folder / config_file.CONFIG
    before = config_file.read(file)
    after = config_of(opened, before)
    if after != before:
        file.write_text(json.dumps(after, indent=2), encoding="utf-8")
