"""Small models of every type of language model in transformers, and a table of what holds for them.

    python scripts/every_model.py MODELS

writes a model of each type into the folder MODELS, some 240 of them in half an hour, and
`_text_config.csv` beside the code that reads it: the type of the language model in each, the
defaults of its class, and the checks of `fit.CHECKS` that take all checkpoints of that type. Run it
after an update of transformers. Types that cannot be made small have no checks.
"""

import contextlib
import csv
import dataclasses
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"

import torch
import transformers
from transformers import AutoConfig
from transformers.models.auto import modeling_auto
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from coordinate_eval import _text_config as text_configs
from coordinate_eval.coordinator.inputs.checkpoints import checkpoint_files
from coordinate_eval.coordinator.inputs.checkpoints.formats import safetensors_file
from coordinate_eval.coordinator.inputs.checkpoints.formats.layouts import Tensor
from coordinate_eval.coordinator.inputs.checkpoints.model import fit, layers
from coordinate_eval.errors import UserError

TABLE = Path(text_configs.__file__).with_suffix(".csv")
NUMBERS = (
    "max_position_embeddings", "num_attention_heads", "num_key_value_heads", "num_hidden_layers",
    "hidden_size", "head_dim", "vocab_size", "kv_lora_rank", "qk_rope_head_dim",
)  # fmt: skip
_AUTO = {
    "MODEL_FOR_CAUSAL_LM_MAPPING_NAMES": "AutoModelForCausalLM",
    "MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES": "AutoModelForImageTextToText",
    "MODEL_FOR_MULTIMODAL_LM_MAPPING_NAMES": "AutoModelForMultimodalLM",
}

# No two sizes that mean different things are equal, where a model allows that.
_SMALL: dict[str, Any] = {
    "hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4, "vocab_size": 203,
    "num_key_value_heads": 2, "intermediate_size": 112, "pad_token_id": 0, "bos_token_id": 1,
    "eos_token_id": 2,
}  # fmt: skip
_SMALLER: dict[str, Any] = _SMALL | {
    "ffn_hidden_size": 112, "n_inner": 112, "ffn_dim": 112, "head_dim": 16,
    "max_position_embeddings": 128, "max_seq_len": 128, "sliding_window": 32,
    "num_experts": 4, "num_local_experts": 4, "n_routed_experts": 4, "moe_num_experts": 4,
    "num_experts_per_tok": 2, "moe_k": 2, "moe_topk": 2, "top_k_experts": 2, "n_group": 1,
    "topk_group": 1, "first_k_dense_replace": 1, "num_dense_layers": 1,
    "moe_intermediate_size": 48, "shared_expert_intermediate_size": 56,
    "expert_ffn_hidden_size": 48, "kv_lora_rank": 16, "q_lora_rank": 24, "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 8, "v_head_dim": 16, "word_embed_proj_dim": 64, "rotary_dim": 8,
    "num_mem_blocks": 1, "encoder_layers": 2, "decoder_layers": 3, "d_model": 64,
    "encoder_ffn_dim": 112, "decoder_ffn_dim": 112, "encoder_attention_heads": 4,
    "decoder_attention_heads": 4, "vocab_size_per_layer_input": 203,
    "hidden_size_per_layer_input": 16, "state_size": 8, "lru_width": 64, "block_dim": 64,
    "attention_hidden_size": 64, "linear_num_key_heads": 2, "linear_num_value_heads": 4,
    "linear_key_head_dim": 16, "linear_value_head_dim": 16, "mamba_d_state": 8,
    "mamba_n_heads": 8, "mamba_d_head": 16, "mamba_num_heads": 8, "mamba_head_dim": 16,
    "conv_dim": 64, "index_n_heads": 2, "index_head_dim": 16, "global_head_dim": 16,
}  # fmt: skip
_SMALLEST = _SMALLER | {"layer_types": None, "mlp_layer_types": None, "num_kv_shared_layers": 0}
_OF_OTHERS: dict[str, Any] = {
    **{key: value for key, value in _SMALL.items() if key != "vocab_size"},
    "num_layers": 2, "depth": 2, "embed_dim": 64, "num_heads": 4, "out_hidden_size": 64,
    "encoder_layers": 2, "d_model": 64, "hidden_dim": 64, "projection_dim": 64,
}  # fmt: skip
# Parts of the names of options that make the layers of a model differ from each other.
_VARY = ("shared", "double", "interval", "period", "block_", "layer_ids", "layers_type", "global_",
         "cross_", "per_layer", "hybrid", "sparse_step", "indices")  # fmt: skip
# And those of models that mix kinds of layers, which are published under several names.
_MIXED = ("hybrid", "interval", "period", "mamba", "linear_", "conv_", "layers_type", "block_")
_READ = {
    *NUMBERS, *text_configs.HEADS, *text_configs.KV_HEADS, "n_positions", "n_layer", "n_layers",
    "num_layers", *text_configs.WIDTHS,
}  # fmt: skip
_OF_TEXT = ("text", "thinker", "decoder", "lm")
_MOST_PARAMETERS, _MOST_SECONDS = 60_000_000, 20


def types() -> dict[str, str]:
    """Return the auto class that loads each type of language model."""
    found: dict[str, str] = {}
    for names, auto in _AUTO.items():
        for kind in getattr(modeling_auto, names):
            found.setdefault(kind, auto)
    return found


def make(kind: str, folder: Path) -> None:
    """Write a small model of a type into a folder.

    Raises:
        ValueError: No such model can be made.
    """
    auto = getattr(transformers, types()[kind])
    problems = []
    for sizes in (_SMALLEST, _SMALLER, _SMALL):
        try:
            with _limited():
                config = _small(CONFIG_MAPPING[kind], sizes)
                model = auto.from_config(config, dtype=torch.bfloat16)
                if model.num_parameters() > _MOST_PARAMETERS:
                    raise ValueError(f"it has {model.num_parameters():,} parameters")
                model.save_pretrained(folder)
                return
        except Exception as error:  # classes refuse sizes in their own ways
            problems.append(f"{type(error).__name__}: {str(error)[:100]}")
    raise ValueError("; ".join(problems))


def _small(cls: Any, sizes: dict[str, Any], depth: int = 2) -> Any:  # noqa: ANN401
    """Return a config of a class, with these sizes as far as it has them."""
    fields = {field.name for field in dataclasses.fields(cls)}
    named = {cls.attribute_map.get(name, name): value for name, value in sizes.items()}
    given = {name: value for name, value in named.items() if name in fields}
    for name, inner in cls.sub_configs.items() if depth else ():
        default = None
        with contextlib.suppress(Exception):
            default = getattr(cls(), name, None)
        kind = inner if default is None else type(default)
        if kind is not AutoConfig and dataclasses.is_dataclass(kind):
            of_text = any(word in name for word in _OF_TEXT)
            given[name] = _small(kind, sizes if of_text else _OF_OTHERS, depth - 1)
    return cls(**given)


@contextlib.contextmanager
def _limited() -> Iterator[None]:
    """Let what is done within end after a while."""

    def end(*_: object) -> None:
        raise TimeoutError

    signal.signal(signal.SIGALRM, end)
    signal.alarm(_MOST_SECONDS)
    try:
        yield
    finally:
        signal.alarm(0)


def described() -> dict[str, dict[str, Any]]:
    """Return a row for each type, without checks: its language model's type, and defaults."""
    rows: dict[str, dict[str, Any]] = {}
    for kind in types():
        with contextlib.suppress(Exception):  # some classes have no defaults
            cls = CONFIG_MAPPING[kind]
            text = cls().get_text_config()
            of_text = text.model_type if type(text) is not cls else kind
            rows[kind] = {"type": kind, "text": of_text}
            rows.setdefault(of_text, {"type": of_text, "text": of_text}).update(_defaults(text))
    return rows


def _defaults(config: Any) -> dict[str, int]:  # noqa: ANN401
    """Return the numbers that a config has if nothing is given, and that no other one decides."""
    fields = {field.name: field.default for field in dataclasses.fields(config)}
    # Whether a config gives a number is not known if its class has a name for it that nobody reads.
    own = {name: config.attribute_map.get(name, name) for name in NUMBERS}
    named = {name: fields.get(alias) for name, alias in own.items() if alias in _READ}
    return {name: value for name, value in named.items() if type(value) is int and value > 0}


def of_files(folder: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Return the config and the tensors of a small model."""
    opened = safetensors_file.open_source(sorted(folder.glob("*.safetensors")), [])
    return checkpoint_files.read_json(folder / "config.json", 1 << 24), dict(opened.tensors)


def of_class(kind: str) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Return the config and the tensors of a model as large as its class makes it, unless told."""
    with _limited(), torch.device("meta"):
        model = getattr(transformers, types()[kind]).from_config(CONFIG_MAPPING[kind]())
        found = model.state_dict()
        tensors = {name: Tensor("bfloat16", tuple(value.shape)) for name, value in found.items()}
        return model.config.to_dict(), tensors


def tried(whole: dict[str, Any], tensors: dict[str, Tensor]) -> tuple[str, set[str], set[str]]:
    """Return the type of the language model, the checks that take it, and those that do not."""
    config = text_configs.text_config(whole, Path("config.json"))
    passed = set()
    for letter in fit.CHECKS:
        needed = {"v": "v", "o": "vo", "l": "l"}.get(letter, f"l{letter}")
        with contextlib.suppress(UserError):
            fit.check(Path(), tensors, whole, config._replace(checks=needed))
            passed.add(letter)
    names = set(config.given)
    if names & {*layers.EXPERTS}:
        passed -= {"u"}  # which layers have experts is a matter of the config
    if any(part in name for name in names for part in _VARY):
        passed -= {"u", "p"}
    if any(part in name for name in names for part in _MIXED):
        passed -= {"n"}
    failed = fit.CHECKS.keys() - passed
    if config.given.get("tie_word_embeddings") is not False:
        passed -= {"o"}  # which does not look then
    return config.kind, passed, failed


def main(models: Path) -> None:
    """Make the models that are not there yet, and write the table."""
    rows = described()
    taken: dict[str, set[str]] = {}
    refused: dict[str, set[str]] = {}
    for kind in types():
        folder = models / kind
        try:
            if not (folder / "config.json").exists():
                make(kind, folder)
        except ValueError as error:
            print(f"{kind}: {error}")
            continue
        of_text, passed, failed = tried(*of_files(folder))
        try:
            _, also, not_either = tried(*of_class(kind))
            passed, failed = passed & also, failed | not_either
        except Exception:  # too large even without weights, or without defaults
            passed -= {"u", "p"}  # three layers do not show how layers differ
        taken.setdefault(of_text, set()).update(passed)
        refused.setdefault(of_text, set()).update(failed)
        print(f"{kind}: {of_text} {''.join(sorted(passed))}", flush=True)
    with TABLE.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, ("type", "text", "checks", *NUMBERS), lineterminator="\n")
        writer.writeheader()
        for kind in sorted(rows):
            held = taken.get(kind, set()) - refused.get(kind, set())
            letters = "".join(letter for letter in fit.CHECKS if letter in held)
            writer.writerow({"checks": letters} | rows[kind])


if __name__ == "__main__":
    main(Path(sys.argv[1]))
