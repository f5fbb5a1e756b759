"""Compare the tensors of a checkpoint with the model in its config.

Engines find out after minutes on GPUs, or not at all. Each check holds for every checkpoint that
transformers writes of some types of models: `_text_config.csv` says for which, and is made by
trying. For a type that is not in it, only what holds for all is checked: when in doubt, a
checkpoint is taken.
"""

import math
import re
import shlex
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from coordinate_eval._format import brief, plural
from coordinate_eval._text_config import HEADS, KV_HEADS, WIDTHS, TextConfig
from coordinate_eval.coordinator.inputs.checkpoints.formats.layouts import Tensor
from coordinate_eval.coordinator.inputs.checkpoints.model.layers import EXPERTS, LAYERS
from coordinate_eval.coordinator.inputs.checkpoints.model.quantized import KEYS
from coordinate_eval.errors import UserError

CHECKS: Final = {
    "v": "the embedding has a row for each token of the vocabulary, as wide as the model",
    "o": "the output layer is there, unless it is the embedding",
    "l": "each layer is there",
    "u": "each layer has the same tensors",
    "n": "matrices of a layer have names that are known here",
    "p": "and the sizes in the config",
    "e": "each expert is there",
}

FLOATS: Final = ("float64", "float32", "float16", "bfloat16")
"""The types of weights that are not quantized."""

_FLAT = re.compile(r"(?:^|\.)_?flat_param(?:_\d+)?$")
_ADAPTED = re.compile(r"\.lora_[AB]\.|^base_model\.model\.")
_LAYER = re.compile(r"(.*?)\.(\d{1,6})\.(.*)", re.DOTALL)
_EXPERT = re.compile(r"(.*)\.experts\.(\d{1,6})\.", re.DOTALL)
_EMBEDDINGS = (
    "embed_tokens", "wte", "word_embeddings", "embed_in", "embeddings", "tok_embeddings",
    "tokens_embed", "embedding",
)  # fmt: skip
_OUTPUTS = ("lm_head", "embed_out", "output", "head", "output_projection")
# Rows and columns by the end of a name: the width of the model, of what is between two matrices of
# a layer, or any.
_WIDTH, _BETWEEN, _ANY = "hidden_size", "intermediate_size", ""
_SHAPES = {
    "self_attn.q_proj.weight": (_ANY, _WIDTH),
    "self_attn.k_proj.weight": (_ANY, _WIDTH),
    "self_attn.v_proj.weight": (_ANY, _WIDTH),
    "self_attn.o_proj.weight": (_WIDTH, _ANY),
    "self_attn.out_proj.weight": (_WIDTH, _ANY),
    "self_attn.qkv_proj.weight": (_ANY, _WIDTH),
    "attention.query_key_value.weight": (_ANY, _WIDTH),
    "self_attention.query_key_value.weight": (_ANY, _WIDTH),
    "attn.c_attn.weight": (_WIDTH, _ANY),
    "mlp.gate_proj.weight": (_BETWEEN, _WIDTH),
    "mlp.up_proj.weight": (_BETWEEN, _WIDTH),
    "mlp.down_proj.weight": (_WIDTH, _BETWEEN),
    "mlp.gate_up_proj.weight": (_ANY, _WIDTH),
    "mlp.c_fc.weight": (_WIDTH, _ANY),
    "mlp.dense_h_to_4h.weight": (_ANY, _WIDTH),
    "mlp.dense_4h_to_h.weight": (_WIDTH, _ANY),
}
_LEAST_WIDTH = 512  # below, anything may be a toy
_MOST_PACKED = 16  # numbers in one element, packed as tightly as any format does
_AGAIN = "Give the config.json of this model, or save the checkpoint again"


class _Model(NamedTuple):
    """Tensors, and the config that they should fit."""

    place: Path
    tensors: Mapping[str, Tensor]
    whole: Mapping[str, Any]
    config: TextConfig
    packed: bool
    """Weights are quantized, perhaps not in all layers: shapes are not those of the model."""

    def refuse(self, words: str, then: str = _AGAIN) -> UserError:
        """Return the error to raise."""
        return UserError(
            f"checkpoint {self.place} does not fit {self.config.file}: {words}. {then}"
        )


def check(
    place: Path, tensors: Mapping[str, Tensor], whole: Mapping[str, Any], config: TextConfig
) -> None:
    """Check that tensors are those of a model.

    Args:
        place: the checkpoint, for messages.
        tensors: of all of its files, by name.
        whole: all of its config.
        config: that of its language model.

    Raises:
        UserError: They are not.
    """
    told = any(key in each for key in KEYS for each in (whole, config.given))
    seen = any(
        tensor.dtype not in FLOATS and "weight" in name.rpartition(".")[2]
        for name, tensor in tensors.items()
    )
    model = _Model(place, tensors, whole, config, told or seen)
    _check_names(model)
    _check_hull(model)
    layers = _layers(tensors)
    if "v" in config.checks:
        _check_embedding(model)
    if "l" in config.checks:
        _check_layers(model, layers)


def _check_names(model: _Model) -> None:
    """Refuse names that no model has: those of flat parameters, and of adapters."""
    # Phi-4-multimodal has adapters for speech and images, and they are in its config.
    own = any(key.endswith("_lora") for key in model.whole)
    for name in model.tensors:
        if _FLAT.search(name):
            raise UserError(
                f"checkpoint {model.place} has the flat parameters of FSDP ({brief(name)} …), not "
                "the tensors of a model. Save a full state dict (StateDictType.FULL_STATE_DICT)"
            )
        if not own and _ADAPTED.search(name):
            raise UserError(
                f"checkpoint {model.place} has tensors of an adapter, such as {brief(name)}. Merge "
                "it into its base model first: merge_and_unload().save_pretrained(OUT)"
            )


def _check_hull(model: _Model) -> None:
    """Refuse what a rank of ZeRO-3 saves when it does not gather the weights, or alike."""
    empty = [
        name
        for name, (_, shape) in model.tensors.items()
        if shape == (0,) and name.endswith(("weight", "bias"))
    ]
    count = sum(map(_elements, model.tensors.values()))
    if empty:
        script = model.place / "zero_to_fp32.py"
        raise model.refuse(
            f"{len(empty):,} of {len(model.tensors):,} tensors are empty, such as "
            f"{brief(empty[0])} of shape [0], and it has {count:,} parameters",
            "ZeRO-3 saves so when it does not gather the weights. Gather them with "
            + (
                shlex.join(["python", *map(str, (script, model.place)), "OUT"])
                if script.exists()
                else "zero_to_fp32.py"
            )
            + ", or save again with stage3_gather_16bit_weights_on_model_save",
        )
    width = model.config.number(*WIDTHS) or 0
    if width >= _LEAST_WIDTH and count * _MOST_PACKED < width * width:
        raise model.refuse(
            f"it has {count:,} parameters, and a single matrix of a model of hidden_size {width:,} "
            f"has {width * width:,}",
            "If it is being written, try again afterwards; else save it again, all ranks together",
        )


def _check_embedding(model: _Model) -> None:
    found = {name: tensor for name, tensor in model.tensors.items() if _ends(name, _EMBEDDINGS)}
    if not found and model.packed and any(_of(name, _EMBEDDINGS) for name in model.tensors):
        return  # it is packed as well
    if not found:
        raise model.refuse(
            f"it has no embedding ({_EMBEDDINGS[0]} or alike), only tensors such as "
            f"{brief(next(iter(model.tensors)))}",
            "Its names are not those of Hugging Face's model, nor of a trainer that is known here: "
            "give a mapping of them with --mapping FILE, or convert it first",
        )
    rows = model.config.number("vocab_size", most=10**9)
    columns = model.config.number("word_embed_proj_dim", "embedding_size", *WIDTHS)
    if not rows or not columns:
        return
    shapes = {name: t.shape for name, t in found.items() if t.dtype in FLOATS}
    if shapes and (rows, columns) not in shapes.values():
        name = max(shapes, key=lambda name: _elements(found[name]))
        raise model.refuse(
            f"{brief(name)} has the shape {list(shapes[name])}, and vocab_size and hidden_size are "
            f"{rows:,} and {columns:,}"
        )
    if "o" in model.config.checks and not model.packed:
        _check_output(model, {name for name, shape in shapes.items() if shape == (rows, columns)})


def _check_output(model: _Model, embeddings: set[str]) -> None:
    """Refuse a model without an output layer, if its config says that it has one of its own."""
    if ties_embeddings(model.whole, model.config) is not False:
        return
    if not any(_ends(name, _OUTPUTS) for name in model.tensors) and len(embeddings) < 2:
        raise model.refuse(
            "it has no output layer (lm_head.weight or alike), and tie_word_embeddings is false"
        )


def _check_layers(model: _Model, layers: Mapping[str, Mapping[int, dict[str, Tensor]]]) -> None:
    # LongCat's num_hidden_layers counts the halves of its num_layers.
    told = [found for name in LAYERS if (found := model.config.told(name))]
    number = min(told, default=model.config.default(LAYERS))
    if not number:
        return
    wanted = set(range(number))
    whole = [stack for stack in layers.values() if wanted <= stack.keys()]
    if not whole:
        # The stack with most tensors is that of the language model.
        prefix = max(layers, key=lambda p: sum(map(len, layers[p].values())), default="")
        there = wanted & layers.get(prefix, {}).keys()
        lacking = min(wanted - there)
        raise model.refuse(
            f"num_hidden_layers is {number:,}, and it has {plural(len(there), 'layer')} of these"
            + (f": {brief(f'{prefix}.{lacking}')} is missing" if prefix else "")
        )
    stacks = [{n: stack[n] for n in wanted} for stack in whole]
    if "n" in model.config.checks and not model.packed and not any(map(_has_known, stacks)):
        raise model.refuse(
            f"a layer has tensors such as {brief(max(stacks[0][0], key=len))}, and none that a "
            f"model of type {model.config.kind} has in Hugging Face's format",
            "These are names of the trainer: give a mapping of them with --mapping FILE, or "
            "convert it with the trainer's converter first",
        )
    faults = [_fault(model, stack) for stack in stacks]
    if all(faults):
        raise model.refuse(faults[0])


def _has_known(stack: Mapping[int, Iterable[str]]) -> bool:
    return any(
        ".".join(name.split(".")[-3:]) in _SHAPES for names in stack.values() for name in names
    )


def _fault(model: _Model, stack: Mapping[int, dict[str, Tensor]]) -> str:
    """Return what is wrong with the layers of a model, empty if they fit."""
    checks = model.config.checks
    for number, tensors in sorted(stack.items()):
        lacking = {name for name in stack[0].keys() ^ tensors.keys() if name.endswith("weight")}
        if "u" in checks and lacking and not model.packed:
            return f"layers 0 and {number} differ: one of them lacks {brief(min(lacking))}"
        if "e" in checks and (fault := _missing_expert(model, number, tensors)):
            return fault
        if "p" in checks and not model.packed and (fault := _wrong_shape(model, number, tensors)):
            return fault
    return ""


def _missing_expert(model: _Model, number: int, tensors: Iterable[str]) -> str:
    if any(isinstance(model.config.given.get(name), list) for name in EXPERTS):
        return ""  # layers differ
    wanted = model.config.number(*EXPERTS)
    there = {int(found[2]) for name in tensors if (found := _EXPERT.match(f".{name}"))}
    lacking = set(range(wanted or 0)) - there
    if not there or not lacking:
        return ""
    return (
        f"layer {number} has {len(there):,} of the {wanted:,} experts in the config, and lacks "
        f"expert {min(lacking)}"
    )


def _wrong_shape(model: _Model, number: int, tensors: Mapping[str, Tensor]) -> str:
    sizes = {_WIDTH: model.config.number(*WIDTHS), _BETWEEN: model.config.number(_BETWEEN)}
    for name, (dtype, shape) in tensors.items():
        wanted = _SHAPES.get(".".join(name.split(".")[-3:]))
        if wanted is None or dtype not in FLOATS:
            continue
        expected = [sizes.get(size) for size in wanted]
        right = len(shape) == len(wanted) and all(
            size is None or size == there for size, there in zip(expected, shape, strict=True)
        )
        if not right:
            shown = ", ".join(f"{size} {n:,}" for size, n in sizes.items() if n and size in wanted)
            return (
                f"{brief(name)} of layer {number} has the shape {list(shape)}, the config {shown}"
            )
    return _wrong_heads(model, number, tensors)


def _wrong_heads(model: _Model, number: int, tensors: Mapping[str, Tensor]) -> str:
    heads, kv = model.config.number(*HEADS), model.config.number(*KV_HEADS)
    q, k = (tensors.get(f"self_attn.{name}_proj.weight") for name in "qk")
    if not (heads and kv and q and k) or q.shape[0] * kv == k.shape[0] * heads:
        return ""
    return (
        f"in layer {number} self_attn.q_proj.weight has {q.shape[0]:,} rows and "
        f"self_attn.k_proj.weight {k.shape[0]:,}, and num_attention_heads is {heads} and "
        f"num_key_value_heads {kv}"
    )


def _layers(tensors: Mapping[str, Tensor]) -> dict[str, dict[int, dict[str, Tensor]]]:
    """Return the tensors of numbered layers, by what stands before the first number in a name."""
    found: dict[str, dict[int, dict[str, Tensor]]] = {}
    for name, tensor in tensors.items():
        if match := _LAYER.match(name):
            stack = found.setdefault(match[1], {})
            stack.setdefault(int(match[2]), {})[match[3]] = tensor
    return found


def ties_embeddings(whole: Mapping[str, Any], config: TextConfig) -> bool | None:
    """Return whether a config says that the output layer is the embedding; None if it is silent."""
    told = [each.get("tie_word_embeddings") for each in (whole, config.given)]
    return True if True in told else False if False in told else None


def is_embedding(name: str) -> bool:
    """Return whether a tensor is the embedding of tokens, by its name."""
    return _ends(name, _EMBEDDINGS)


def is_output(name: str) -> bool:
    """Return whether a tensor is the output layer, by its name."""
    return _ends(name, _OUTPUTS) and not _LAYER.match(name)


def _ends(name: str, modules: Iterable[str]) -> bool:
    return name.endswith(".weight") and _of(name, modules)


def _of(name: str, modules: Iterable[str]) -> bool:
    """Return whether a tensor is one of these modules."""
    return any(part in modules for part in name.split(".")[-2:-1])


def _elements(tensor: Tensor) -> int:
    return math.prod(tensor.shape)
