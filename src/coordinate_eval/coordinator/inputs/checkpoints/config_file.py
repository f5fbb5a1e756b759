"""The config of a checkpoint's model: its `config.json`, or what a `params.json` tells.

Meta's and Mistral's own files have a `params.json` beside `consolidated.*`. Llama, Mistral and
Mixtral are described by it, as the conversion scripts of transformers read it. Whatever else it
says is refused: a setting that is left out would be another model.
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from coordinate_eval.coordinator.inputs.checkpoints import checkpoint_files
from coordinate_eval.coordinator.inputs.checkpoints.formats import safetensors_file, torch_file
from coordinate_eval.coordinator.inputs.checkpoints.formats.layouts import Tensor
from coordinate_eval.errors import UserError

CONFIG: Final = "config.json"
PARAMS: Final = "params.json"

MOST_BYTES: Final = 4 << 20  # read, JSON takes up to thirty times as much

_RENAMED = {
    "dim": "hidden_size",
    "n_layers": "num_hidden_layers",
    "n_heads": "num_attention_heads",
    "n_kv_heads": "num_key_value_heads",
    "head_dim": "head_dim",
    "norm_eps": "rms_norm_eps",
    "rope_theta": "rope_theta",
    "tied_embeddings": "tie_word_embeddings",
}
_NEEDED = ("dim", "n_layers", "n_heads", "norm_eps")
_OTHERS = (
    "hidden_dim", "multiple_of", "ffn_dim_multiplier", "vocab_size", "moe", "sliding_window",
    "use_scaled_rope", "rope_scaling_factor", "max_position_embeddings", "max_seq_len",
    "max_batch_size",
)  # fmt: skip
_AS_ALWAYS: Mapping[str, tuple[object, ...]] = {
    "activation": ("silu",),
    "model_type": ("transformer",),
    "causal": (True,),
}
"""Settings with the values that all of these models have."""

_MOST = 1e9  # above any number of a model
_LARGE_LLAMA = 4096  # width of the smallest whose rotary frequencies are scaled by 8 in Llama 3


def file_of(files: Sequence[Path]) -> Path:
    """Return which of a checkpoint's small files tells its config."""
    return next(file for file in files if file.name in (CONFIG, PARAMS))


def read(file: Path) -> dict[str, Any]:
    """Return the config that a file tells, in Hugging Face's format.

    Raises:
        UserError: It is not read (see `checkpoint_files.read`), or it is a `params.json` that
            leaves open what the config is.
        OSError: It cannot be read.
    """
    whole = checkpoint_files.read_json(file, MOST_BYTES)
    return _derived(whole, file) if file.name == PARAMS else whole


def _derived(whole: Mapping[str, Any], file: Path) -> dict[str, Any]:
    model = whole.get("model", whole)
    if not isinstance(model, dict):
        raise _unclear(file, "its model must be an object")
    given = {k: v for k, v in model.items() if v not in (None, False)}
    _check_known(given, file)
    if type(given["dim"]) is not int or not 0 < given["dim"] < 1 << 20:
        raise _unclear(file, f"dim must be a number, not {given['dim']!r}")
    embedding = _embedding(file)
    vocabulary = given.get("vocab_size", 0)
    config = {new: given[old] for old, new in _RENAMED.items() if old in given}
    config |= {
        "vocab_size": vocabulary if vocabulary > 0 else embedding.shape[0],
        "dtype": embedding.dtype,
        "bos_token_id": None,  # what the tokenizer says counts
        "eos_token_id": None,
    }
    if "hidden_dim" in given:
        return config | _of_mistral(given, file)
    return config | _of_llama(given, config["vocab_size"], file)


def _check_known(given: Mapping[str, Any], file: Path) -> None:
    """Check that settings are all that a config needs, and nothing that it has no name for."""
    known = (*_RENAMED, *_OTHERS, *_AS_ALWAYS)
    other = [
        name
        for name, value in given.items()
        if not name.startswith("_")
        and (name not in known or value not in _AS_ALWAYS.get(name, [value]))
    ]
    if other:
        raise _unclear(file, f"no config is known for its {', '.join(sorted(other)[:5])}")
    numbers = [*_RENAMED, "hidden_dim", "multiple_of", "ffn_dim_multiplier", "vocab_size"]
    for name in numbers:
        if name in _NEEDED and name not in given:
            raise _unclear(file, f"it does not say {name}")
        number = given.get(name, 0)
        if not isinstance(number, int | float) or not abs(number) < _MOST:
            raise _unclear(file, f"{name} must be a number")


def _of_mistral(given: Mapping[str, Any], file: Path) -> dict[str, Any]:
    """Return what only configs of Mistral and Mixtral have."""
    window, experts = given.get("sliding_window"), given.get("moe", {})
    if not re.fullmatch(r"\d{1,9}", str(window or 0)):
        raise _unclear(file, "its layers have different sliding windows")
    config: dict[str, Any] = {
        "model_type": "mistral",
        "architectures": ["MistralForCausalLM"],
        "intermediate_size": given["hidden_dim"],
        "sliding_window": int(window) if window else None,  # a number, or its digits
        "max_position_embeddings": _length(given, 32_768, file),
    }
    if "rope_theta" not in given:
        if not window:  # transformers takes 10,000, and Mistral's own code a million
            raise _unclear(file, "it does not say rope_theta")
        config["rope_theta"] = 10_000.0
    if experts:
        if not isinstance(experts, dict) or experts.keys() != {
            "num_experts",
            "num_experts_per_tok",
        }:
            raise _unclear(file, "moe must have num_experts and num_experts_per_tok alone")
        config |= {
            "model_type": "mixtral",
            "architectures": ["MixtralForCausalLM"],
            "num_local_experts": experts["num_experts"],
            "num_experts_per_tok": experts["num_experts_per_tok"],
        }
    return config


def _of_llama(given: Mapping[str, Any], vocabulary: int, file: Path) -> dict[str, Any]:
    """Return what only configs of Llama have."""
    if "multiple_of" not in given or {"moe", "sliding_window"} & given.keys():
        raise _unclear(file, "it says neither hidden_dim, as Mistral's, nor multiple_of alone")
    multiple, width = int(given["multiple_of"]), int(8 * given["dim"] / 3)
    width = int(given.get("ffn_dim_multiplier", 1) * width)
    theta = given.get("rope_theta", 10_000.0)
    # Not in the file, but in its models: Llama 3, Code Llama, Llama 2 and Llama 1.
    length = 8192 if vocabulary == 128_256 else 16_384 if theta == 1e6 else 4096
    config: dict[str, Any] = {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "intermediate_size": (width + multiple - 1) // max(1, multiple) * multiple,
        "rope_theta": theta,
    }
    if "use_scaled_rope" in given:
        factor = given.get("rope_scaling_factor", 8.0 if given["dim"] >= _LARGE_LLAMA else None)
        if not isinstance(factor, int | float):
            raise _unclear(file, "it does not say rope_scaling_factor, which is 8 or 32")
        length = 131_072
        config["rope_scaling"] = {
            "rope_type": "llama3",
            "factor": float(factor),
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
        }
    elif given["norm_eps"] < 1e-5:
        length = 2048
    return config | {"max_position_embeddings": _length(given, length, file)}


def _length(given: Mapping[str, Any], otherwise: int, file: Path) -> int:
    """Return the tokens of context."""
    length = given.get("max_position_embeddings", given.get("max_seq_len", otherwise))
    if type(length) is not int or length < 1:
        raise _unclear(file, "the length of its context must be a number")
    return length


def _embedding(file: Path) -> Tensor:
    """Return type and shape of the embedding in the weights beside a `params.json`."""
    place = file.parent
    names = sorted(entry.name for entry in place.iterdir() if entry.name.startswith("consolidated"))
    found = safetensors_file.find(place, names, ())
    source = (
        safetensors_file.open_source(*found)
        if found
        else torch_file.open_source([place / name for name in names[:1]], [])
    )
    if (tensor := source.tensors.get("tok_embeddings.weight")) is None or not tensor.shape:
        raise _unclear(file, "the weights have no tok_embeddings.weight")
    return tensor


def _unclear(file: Path, why: str) -> UserError:
    return UserError(
        f"{file} tells no config for sure: {why}. Put the model's config.json beside it in Hugging "
        "Face's format, or name it with --config FILE"
    )
