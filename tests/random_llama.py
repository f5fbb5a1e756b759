"""A checkpoint of random weights in the shape of a Llama, of any size, made without torch.

Weights repeat after a million numbers, so a large one is written at the speed of the disk.
"""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy

from tests.tiny import tiny_model


class Shape(NamedTuple):
    """The sizes of a Llama. Its heads have 128 dimensions, in the tiny one 32."""

    layers: int
    width: int
    inner: int
    heads: int
    shared_heads: int
    head_width: int = 128
    vocabulary: int = 128_256


SHAPES = {
    "tiny": Shape(2, 64, 128, 2, 1, 32, 1024),
    "1b": Shape(16, 2048, 8192, 16, 4),
    "8b": Shape(32, 4096, 14_336, 32, 8),
}
"""Those of Llama 3, by their parameters."""

_NUMBERS = 1 << 20


def make(folder: Path, size: str) -> Path:
    """Make a checkpoint in bfloat16 with the tokenizer of the tiny model, and return its folder."""
    shape = SHAPES[size]
    folder.mkdir()
    for file in tiny_model().glob("*token*"):
        shutil.copy(file, folder)
    config = json.loads((tiny_model() / "config.json").read_text()) | {
        "hidden_size": shape.width,
        "intermediate_size": shape.inner,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.shared_heads,
        "head_dim": shape.head_width,
        "vocab_size": shape.vocabulary,
        "max_position_embeddings": 8192,
        "dtype": "bfloat16",
    }
    (folder / "config.json").write_text(json.dumps(config))
    _write(folder / "model.safetensors", dict(_tensors(shape)))
    return folder


def _tensors(shape: Shape) -> Iterator[tuple[str, list[int]]]:
    """Yield the names and sizes of all weights."""
    queries, keys = shape.heads * shape.head_width, shape.shared_heads * shape.head_width
    yield "model.embed_tokens.weight", [shape.vocabulary, shape.width]
    for number in range(shape.layers):
        layer = f"model.layers.{number}"
        yield f"{layer}.self_attn.q_proj.weight", [queries, shape.width]
        yield f"{layer}.self_attn.k_proj.weight", [keys, shape.width]
        yield f"{layer}.self_attn.v_proj.weight", [keys, shape.width]
        yield f"{layer}.self_attn.o_proj.weight", [shape.width, queries]
        yield f"{layer}.mlp.gate_proj.weight", [shape.inner, shape.width]
        yield f"{layer}.mlp.up_proj.weight", [shape.inner, shape.width]
        yield f"{layer}.mlp.down_proj.weight", [shape.width, shape.inner]
        yield f"{layer}.input_layernorm.weight", [shape.width]
        yield f"{layer}.post_attention_layernorm.weight", [shape.width]
    yield "model.norm.weight", [shape.width]
    yield "lm_head.weight", [shape.vocabulary, shape.width]


def _write(path: Path, tensors: dict[str, list[int]]) -> None:
    """Write a safetensors file: the length of a header, the header, and the numbers."""
    header, end = {}, 0
    for name, sizes in tensors.items():
        begin, end = end, end + 2 * int(numpy.prod(sizes))
        header[name] = {"dtype": "BF16", "shape": sizes, "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    drawn = numpy.random.default_rng(7).normal(0, 0.02, _NUMBERS).astype(numpy.float32)
    random = (drawn.view(numpy.uint32) >> 16).astype(numpy.uint16).tobytes()
    ones = b"\x80\x3f" * _NUMBERS
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for name, sizes in tensors.items():
            left, numbers = 2 * int(numpy.prod(sizes)), ones if "norm" in name else random
            while left:
                left -= file.write(numbers[:left])
