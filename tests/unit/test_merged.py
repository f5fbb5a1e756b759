"""Adapters merged into their base, compared with what PEFT makes of the same two."""

import importlib
import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.mixes import Held
from tests.tiny import need

from coordinate_eval.coordinator.inputs.checkpoints.formats import safetensors_file
from coordinate_eval.coordinator.inputs.checkpoints.formats.sources import bytes_of
from coordinate_eval.coordinator.inputs.checkpoints.mixed.adapter import AdapterConfig
from coordinate_eval.coordinator.inputs.checkpoints.mixed.merged import Merged
from coordinate_eval.errors import UserError

need("peft", "dev")
torch: Any = importlib.import_module("torch")
transformers: Any = importlib.import_module("transformers")
files: Any = importlib.import_module("safetensors.torch")

_SMALL = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 60,
}


def peft() -> Any:
    """The library, whose import takes seconds, as do models of transformers."""
    return importlib.import_module("peft")


def llama(**more: Any) -> Any:
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**_SMALL, **more))


def gpt2() -> Any:
    sizes = {"n_embd": 32, "n_layer": 2, "n_head": 2, "vocab_size": 60}
    tokens = {"bos_token_id": 1, "eos_token_id": 2}
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes, **tokens))


def mixtral() -> Any:
    return transformers.MixtralForCausalLM(
        transformers.MixtralConfig(**_SMALL, num_local_experts=4)
    )


def qwen_moe() -> Any:
    return transformers.Qwen3MoeForCausalLM(
        transformers.Qwen3MoeConfig(
            **_SMALL, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=16, head_dim=8
        )
    )


def gpt_oss() -> Any:
    sizes = {**_SMALL, "intermediate_size": 32}
    return transformers.GptOssForCausalLM(
        transformers.GptOssConfig(**sizes, num_local_experts=4, head_dim=8)
    )


_EXPERTS = {
    "target_modules": ["q_proj"],
    "target_parameters": ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"],
}
_ALL = ["q_proj", "k_proj", "o_proj", "down_proj", "gate_proj"]
_TIED = {"tie_word_embeddings": True}

VARIANTS: dict[str, tuple[Callable[[], Any], dict[str, Any]]] = {
    "plain": (llama, {"target_modules": _ALL}),
    "another scale": (llama, {"target_modules": _ALL, "lora_alpha": 5, "r": 3}),
    "rsLoRA": (llama, {"target_modules": _ALL, "use_rslora": True, "lora_alpha": 5}),
    "DoRA": (llama, {"target_modules": _ALL, "use_dora": True}),
    "patterns": (
        llama,
        {
            "target_modules": _ALL,
            "rank_pattern": {"q_proj": 5, "layers.1.mlp.down_proj": 2},
            "alpha_pattern": {
                "k_proj": 3,
                r".*\.layers\.0\.mlp\..*": 7,
                r"layers\.[0-9]{1,2}\.mlp\.\w+": 6,
                "^model.layers.1.self_attn.o_proj": 2,
            },
        },
    ),
    "some layers": (llama, {"target_modules": _ALL, "layers_to_transform": [1]}),
    "biases of LoRA": (
        lambda: llama(attention_bias=True),
        {"target_modules": ["q_proj"], "lora_bias": True},
    ),
    "biases": (lambda: llama(attention_bias=True), {"target_modules": ["q_proj"], "bias": "all"}),
    "embedding": (llama, {"target_modules": ["embed_tokens", "q_proj"]}),
    "embedding, DoRA": (llama, {"target_modules": ["embed_tokens", "lm_head"], "use_dora": True}),
    "whole modules": (
        llama,
        {"target_modules": ["q_proj"], "modules_to_save": ["lm_head", "input_layernorm"]},
    ),
    "tokens": (llama, {"target_modules": ["q_proj"], "trainable_token_indices": [1, 4, 59]}),
    "tokens alone": (llama, {"token_indices": [1, 4, 59]}),
    "tied, tokens alone": (lambda: llama(**_TIED), {"token_indices": [1, 4]}),
    "tokens of both": (
        llama,
        {
            "target_modules": ["q_proj"],
            "trainable_token_indices": {"embed_tokens": [1, 4], "lm_head": [3]},
        },
    ),
    "tied": (lambda: llama(**_TIED), {"target_modules": _ALL}),
    "tied, embedding": (lambda: llama(**_TIED), {"target_modules": ["embed_tokens", "q_proj"]}),
    "tied, output": (lambda: llama(**_TIED), {"target_modules": ["lm_head", "q_proj"]}),
    "tied, both": (lambda: llama(**_TIED), {"target_modules": ["lm_head", "embed_tokens"]}),
    "tied, tokens": (
        lambda: llama(**_TIED),
        {"target_modules": ["q_proj"], "trainable_token_indices": [1, 4]},
    ),
    "tied, whole output": (
        lambda: llama(**_TIED),
        {"target_modules": ["q_proj"], "modules_to_save": ["lm_head"]},
    ),
    "tied, whole embedding": (
        lambda: llama(**_TIED),
        {"target_modules": ["q_proj"], "modules_to_save": ["embed_tokens"]},
    ),
    "tied, both whole": (
        lambda: llama(**_TIED),
        {"target_modules": ["q_proj"], "modules_to_save": ["embed_tokens", "lm_head"]},
    ),
    "tied, kept so": (
        lambda: llama(**_TIED),
        {
            "target_modules": ["q_proj"],
            "modules_to_save": ["embed_tokens"],
            "ensure_weight_tying": True,
        },
    ),
    "Conv1D": (gpt2, {"target_modules": ["c_attn", "c_proj"]}),
    "Conv1D, square": (gpt2, {"target_modules": [r"attn.c_proj"]}),
    "Conv1D, DoRA": (gpt2, {"target_modules": ["c_attn", "c_proj"], "use_dora": True}),
    "Conv1D, square, beside Linear": (gpt2, {"target_modules": ["c_proj", "lm_head"]}),
    "MiCA": (llama, {"target_modules": _ALL, "init_lora_weights": "mica"}),
    "experts apart": (mixtral, {"target_modules": ["q_proj", "w1", "w2", "w3"]}),
    "experts": (mixtral, _EXPERTS),
    "experts, one parameter": (
        qwen_moe,
        {"target_modules": ["q_proj"], "target_parameters": ["mlp.experts.down_proj"]},
    ),
    "router": (qwen_moe, {"target_modules": [], "target_parameters": ["mlp.gate.weight"]}),
    "experts in one, square": (gpt_oss, _EXPERTS),
    "experts in one, square, one": (
        gpt_oss,
        {"target_modules": [], "target_parameters": ["mlp.experts.down_proj"]},
    ),
}
_ROUNDED = ("experts", "router")
"""Variants whose products PEFT computes for all experts at once: the last bit may differ."""


def _trained(model: Any, config: dict[str, Any]) -> Any:
    """Return a model with an adapter whose tensors are random."""
    kind = peft().TrainableTokensConfig if "token_indices" in config else peft().LoraConfig
    made = peft().get_peft_model(model, kind(task_type="CAUSAL_LM", **config))
    torch.manual_seed(1)
    for name, parameter in made.named_parameters():
        if any(word in name for word in ("lora_", "modules_to_save", "trainable_tokens", "bias")):
            parameter.data.add_(torch.randn_like(parameter, dtype=torch.float32) * 0.05)
    return made


def save(folder: Path, model: Any, config: dict[str, Any], dtype: Any, resize: int = 0) -> None:
    """Write a base, an adapter of it, and what PEFT merges both to, in three folders."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        base, adapter, merged = (folder / name for name in ("base", "adapter", "merged"))
        model.to(dtype).save_pretrained(base)
        if resize:
            model.resize_token_embeddings(resize)
            model.name_or_path = str(base)  # PEFT compares the sizes of both
        _trained(model, config).save_pretrained(adapter)
        again = type(model).from_pretrained(base, dtype=dtype)
        if resize:
            again.resize_token_embeddings(resize)
        found = peft().PeftModel.from_pretrained(again, adapter)
        found.merge_and_unload().save_pretrained(merged)


def merge(folder: Path) -> Merged:
    """Return the merged source of what `save` has written."""
    base, adapter = folder / "base", folder / "adapter"
    config = json.loads((base / "config.json").read_text())
    return Merged(
        safetensors_file.open_source([base / "model.safetensors"], []),
        Held(files.load_file(adapter / "adapter_model.safetensors")),
        AdapterConfig(adapter / "adapter_config.json"),
        tied=config.get("tie_word_embeddings") is True,
        where=str(base),
    )


def differ(found: Merged, expected: dict[str, Any]) -> dict[str, float]:
    """Return by how much tensors differ, in the unit of the last place of their type."""
    assert found.tensors == Held(expected).tensors
    differences = {}
    for name, tensor in expected.items():
        mine = found.read(name)
        assert mine.dtype == tensor.dtype
        parts = b"".join(map(bytes, found.parts(name, memoryview(bytearray(1000)))))
        assert parts == bytes(bytes_of(mine))
        if not torch.equal(mine, tensor):
            gap = (mine.double() - tensor.double()).abs()
            unit = tensor.double().abs().clamp(min=1e-3) * torch.finfo(tensor.dtype).eps
            differences[name] = float((gap / unit).max())
    return differences


@pytest.mark.parametrize(
    ("variant", "dtype"),
    [(variant, "bfloat16") for variant in VARIANTS]
    + [(variant, "float32") for variant in ("plain", "DoRA", "embedding")]
    + [("plain", "float16")],
)
def test_an_adapter_is_merged_as_peft_merges_it(tmp_path: Path, variant: str, dtype: str) -> None:
    make, config = VARIANTS[variant]
    torch.manual_seed(0)
    save(tmp_path, make(), config, getattr(torch, dtype))
    merged = merge(tmp_path)

    differences = differ(merged, files.load_file(tmp_path / "merged" / "model.safetensors"))

    assert all(each <= 1.5 for each in differences.values()), differences
    if not variant.startswith(_ROUNDED):
        assert not differences
    before, after = (
        json.loads((tmp_path / name / "config.json").read_text()) for name in ("base", "merged")
    )
    assert merged.adapted(before)["tie_word_embeddings"] == after["tie_word_embeddings"]


def test_a_square_matrix_lies_as_the_base_has_it_whatever_the_config_says(tmp_path: Path) -> None:
    save(tmp_path, llama(), {"target_modules": ["o_proj"]}, torch.bfloat16)
    file = tmp_path / "adapter" / "adapter_config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "fan_in_fan_out": True}))

    assert not differ(merge(tmp_path), files.load_file(tmp_path / "merged" / "model.safetensors"))


def test_rows_of_new_tokens_are_those_of_the_larger_embedding(tmp_path: Path) -> None:
    config = {"target_modules": ["q_proj"], "trainable_token_indices": [60, 61]}
    save(tmp_path, llama(), config, torch.bfloat16, resize=64)

    assert not differ(merge(tmp_path), files.load_file(tmp_path / "merged" / "model.safetensors"))


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize(
    "config",
    [
        {"modules_to_save": ["embed_tokens", "lm_head"]},
        {"modules_to_save": ["embed_tokens"]},
        {"modules_to_save": ["embed_tokens"], "ensure_weight_tying": True},
        {"target_modules": ["q_proj", "embed_tokens", "lm_head"]},
        {},
    ],
)
def test_new_tokens_make_the_vocabulary_larger(
    tmp_path: Path, tied: bool, config: dict[str, Any]
) -> None:
    config = {"target_modules": ["q_proj"], **config}
    save(tmp_path, llama(tie_word_embeddings=tied), config, torch.bfloat16, resize=64)
    merged = merge(tmp_path)

    assert not differ(merged, files.load_file(tmp_path / "merged" / "model.safetensors"))
    before = json.loads((tmp_path / "base" / "config.json").read_text())
    after = merged.adapted({"text_config": before, "vision_config": {"hidden_size": 8}})
    assert after["text_config"]["vocab_size"] == 64
    assert "vocab_size" not in after["vision_config"]


def test_an_adapter_of_new_tokens_alone_keeps_layers_tied(tmp_path: Path) -> None:
    save(tmp_path, llama(**_TIED), {"target_modules": ["embed_tokens"]}, torch.bfloat16, resize=64)
    merged = merge(tmp_path)

    assert not differ(merged, files.load_file(tmp_path / "merged" / "model.safetensors"))
    before = json.loads((tmp_path / "base" / "config.json").read_text())
    assert merged.adapted(before) == {**before, "vocab_size": 64}


def _written(tmp_path: Path, **config: Any) -> AdapterConfig:
    file = tmp_path / "adapter_config.json"
    file.write_text(json.dumps({"peft_type": "LORA", "r": 2, "lora_alpha": 4, **config}))
    return AdapterConfig(file)


def _lora(module: str, rows: int, columns: int, rank: int = 2) -> dict[str, Any]:
    prefix = f"base_model.model.{module}"
    return {
        f"{prefix}.lora_A.weight": torch.ones(rank, columns),
        f"{prefix}.lora_B.weight": torch.ones(rows, rank),
    }


_BASE = {
    "model.embed_tokens.weight": (6, 4),
    "model.layers.0.self_attn.q_proj.weight": (8, 4),
    "lm_head.weight": (6, 4),
}


def _merged(tmp_path: Path, adapter: dict[str, Any], **config: Any) -> Merged:
    base = Held({name: torch.zeros(shape) for name, shape in _BASE.items()})
    found = _written(tmp_path, **config)
    return Merged(base, Held(adapter), found, tied=False, where="/models/base")


def test_a_large_matrix_is_merged_in_parts_to_the_same_bits(tmp_path: Path) -> None:
    name = "model.layers.0.self_attn.q_proj"
    factors = _lora(name, 700, 900, rank=16)
    factors = {each: torch.randn_like(tensor) for each, tensor in factors.items()}
    file = tmp_path / "base.safetensors"
    files.save_file({f"{name}.weight": torch.randn(700, 900).bfloat16()}, file)
    base, config = safetensors_file.open_source([file], []), _written(tmp_path, r=16)
    merged = Merged(base, Held(factors), config, tied=False, where="/models/base")

    parts = list(map(bytes, merged.parts(f"{name}.weight", memoryview(bytearray(500_000)))))

    assert len(parts) > 2
    assert b"".join(parts) == bytes(bytes_of(merged.read(f"{name}.weight")))


def test_names_of_tensors_may_begin_otherwise_than_those_of_modules(tmp_path: Path) -> None:
    adapter = _lora("model.language_model.layers.0.self_attn.q_proj", 8, 4)
    merged = _merged(tmp_path, adapter)

    assert float(merged.read("model.layers.0.self_attn.q_proj.weight").sum()) == 8 * 4 * 4


@pytest.mark.parametrize(
    ("adapter", "config", "words"),
    [
        (
            _lora("model.layers.0.self_attn.q_proj", 8, 5),
            {},
            r"matrix of the shape \[8, 5\].*\[8, 4\]",
        ),
        (_lora("model.layers.7.self_attn.q_proj", 8, 4), {}, "base has no .*layers.7"),
        (_lora("transformer.h.0.attn.c_attn", 8, 4), {}, "base has no .*c_attn.*--base"),
        (
            {"base_model.model.lm_head.weight": torch.ones(6, 5)},
            {"modules_to_save": ["lm_head"]},
            r"\[6, 5\].*\[6, 4\]",
        ),
        ({"base_model.model.model.layers.0.x.lora_E": torch.ones(2)}, {}, "lora_E"),
        (
            {"base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight": torch.ones(2, 4)},
            {},
            "lacks lora_A or lora_B",
        ),
        (
            {"base_model.model.model.embed_tokens.trainable_tokens_delta": torch.ones(2, 4)},
            {"trainable_token_indices": [1, 6]},
            "2 tokens",
        ),
        (
            _lora("model.layers.0.self_attn.q_proj", 8, 4, rank=3),
            {"rank_pattern": {"k_proj": 4}},
            "config.json is of another adapter.*rank 2, and .*q_proj has rank 3",
        ),
    ],
)
def test_an_adapter_of_another_base_is_refused_with_what_differs(
    tmp_path: Path, adapter: dict[str, Any], config: dict[str, Any], words: str
) -> None:
    with pytest.raises(UserError, match=f"(?s){words}"):
        _merged(tmp_path, adapter, **config)


def test_a_quantized_base_is_refused(tmp_path: Path) -> None:
    name = "model.layers.0.self_attn.q_proj.weight"
    base = Held({name: torch.zeros(16, 1, dtype=torch.uint8)})
    adapter = Held(_lora("model.layers.0.self_attn.q_proj", 8, 4))

    with pytest.raises(UserError, match=r"in uint8.*not quantized.*--base"):
        Merged(base, adapter, _written(tmp_path), tied=False, where="/models/base")


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"peft_type": "IA3"}, "IA3"),
        ({"peft_type": "PROMPT_TUNING"}, "PROMPT_TUNING.*changes no weights"),
        ({"peft_type": "LOHA"}, "LOHA"),
        ({"peft_type": None}, "no peft_type"),
        ({"alora_invocation_tokens": [1]}, "Activated LoRA.*changes no weights"),
        ({"layer_replication": [[0, 1]]}, "layer_replication"),
        ({"init_lora_weights": "pissa_niter_4"}, "pissa_niter_4"),
        ({"init_lora_weights": "loftq"}, "loftq"),
        ({"lora_alpha": "8"}, "lora_alpha"),
        ({"alpha_pattern": {"(a*)*b": 1}}, "alpha_pattern"),
        ({"alpha_pattern": {".*a.*b.*c": 1}}, "alpha_pattern"),
        ({"alpha_pattern": {r"a{9,3}": 1}}, "alpha_pattern"),
        ({"alpha_pattern": {r"(a+|b)": 1}}, "alpha_pattern"),
    ],
)
def test_what_is_not_merged_is_refused_by_its_name(
    tmp_path: Path, config: dict[str, Any], words: str
) -> None:
    with pytest.raises(UserError, match=words):
        _written(tmp_path, **config)
