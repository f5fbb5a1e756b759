"""The weight files that each node of a pipeline needs: those with its layers, as the index says.

An engine over several nodes has one stage of its pipeline on each. A stage has consecutive layers.
Whatever is no layer, such as embeddings and the head, small beside all layers, goes to every node:
which stages need it differs between families, and between tied and untied weights.
"""

import json
import math
import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path

from coordinate_eval.coordinator.inputs.checkpoints import reading, remote
from coordinate_eval.coordinator.inputs.checkpoints.formats import safetensors_file
from coordinate_eval.coordinator.inputs.checkpoints.formats.layouts import ITEM_BYTES
from coordinate_eval.records import Checkpoint

_LAYER = re.compile(r"(.*?(?:^|\.)(?:layers|layer|h|blocks|block))\.(\d{1,6})\.")


def layers_of_stages(layers: int, stages: int) -> list[int]:
    """Return the number of layers of each stage, as vLLM's `get_pp_indices` has them.

    What is left over goes to the stages before the last, which has the head.
    """
    counts = [layers // stages] * stages
    for place in range(2, layers % stages + 2):
        counts[-place] += 1
    return counts


def files_of_node(checkpoint: Checkpoint, place: int, nodes: int) -> list[str]:
    """Return the weight files for the node at a place of a pipeline over so many nodes.

    They are all files where the checkpoint has no index, or where its layers are not recognized.

    Raises:
        UserError: The index cannot be read.
    """
    index = index_of(checkpoint)
    if index is None or nodes == 1:
        return list(checkpoint.weights)
    weight_map = safetensors_file.weight_map(index)
    needed = {weight_map[name] for name in needed_of(checkpoint, weight_map, place, nodes)}
    return [file for file in checkpoint.weights if Path(file).name in needed]


def needed_of(checkpoint: Checkpoint, tensors: Collection[str], place: int, nodes: int) -> set[str]:
    """Return which tensors the node at a place of a pipeline over so many nodes needs."""
    counts = layers_of_stages(checkpoint.stages, nodes)
    begin = sum(counts[:place])
    mine = range(begin, begin + counts[place])
    last = checkpoint.stages - 1
    layers = _layers(tensors, checkpoint.stages)
    # Layers beyond the last predict further tokens, and belong to it.
    return {name for name in tensors if name not in layers or min(layers[name], last) in mine}


def bytes_of_nodes(checkpoint: Checkpoint, nodes: int) -> list[int]:
    """Return the bytes of the weights that each node of a pipeline gets.

    Raises:
        UserError: The index, or a header, cannot be read.
    """
    if nodes == 1:
        return [checkpoint.bytes]
    if checkpoint.converted:
        sizes = {
            name: math.prod(shape) * ITEM_BYTES[dtype]
            for name, (dtype, shape) in reading.source(checkpoint).tensors.items()
        }
        needed = (needed_of(checkpoint, sizes, place, nodes) for place in range(nodes))
        return [sum(sizes[name] for name in names) for names in needed]
    if index_of(checkpoint) is None:
        return [checkpoint.bytes] * nodes
    return [
        sum(remote.located(file).stat().st_size for file in files_of_node(checkpoint, place, nodes))
        for place in range(nodes)
    ]


def index_of(checkpoint: Checkpoint) -> Path | None:
    """Return the index of a checkpoint's weight files; None if there is one file."""
    return next((Path(f) for f in checkpoint.files if Path(f).name == safetensors_file.INDEX), None)


def shorten_index(folder: Path, files: Sequence[str]) -> None:
    """Leave in a copy of the index what is in these files: engines want all that it names."""
    names = {Path(file).name for file in files}
    index = folder / safetensors_file.INDEX
    kept = {t: file for t, file in safetensors_file.weight_map(index).items() if file in names}
    index.write_text(json.dumps({"metadata": {}, "weight_map": kept}), encoding="utf-8")


def _layers(tensors: Iterable[str], layers: int) -> dict[str, int]:
    """Return the layer of each tensor that is in one.

    None are known where several parts of a model have so many layers, such as an encoder.
    """
    stacks: dict[str, dict[str, int]] = defaultdict(dict)
    for tensor in tensors:
        if match := _LAYER.match(tensor):
            stacks[match[1]][tensor] = int(match[2])
    deep = [stack for stack in stacks.values() if len(set(stack.values())) >= layers]
    return deep[0] if len(deep) == 1 else {}
