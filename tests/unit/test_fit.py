"""Tensors that are not those of the model in the config are told before anything is submitted."""

import json
from pathlib import Path
from typing import Any

import numpy
import pytest
from safetensors.numpy import save_file
from tests.checkpoints import refused

from coordinate_eval.coordinator.inputs.checkpoints import reading
from coordinate_eval.coordinator.inputs.checkpoints.checkpoint import check_usable, inspect
from coordinate_eval.errors import UserError

Tensors = dict[str, Any]

LLAMA = {
    "model_type": "llama", "hidden_size": 512, "intermediate_size": 96, "num_hidden_layers": 3,
    "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 60,
    "tie_word_embeddings": False,
}  # fmt: skip
MIXTRAL = LLAMA | {"model_type": "mixtral", "num_local_experts": 4}


def of(*shape: int) -> Any:
    return numpy.zeros(shape, numpy.float16)


def llama(layers: int = 3, prefix: str = "model") -> Tensors:
    tensors = {
        f"{prefix}.embed_tokens.weight": of(60, 512), f"{prefix}.norm.weight": of(512),
        "lm_head.weight": of(60, 512),
    }  # fmt: skip
    for n in range(layers):
        parts = {
            "self_attn.q_proj": of(512, 512), "self_attn.k_proj": of(256, 512),
            "self_attn.v_proj": of(256, 512), "self_attn.o_proj": of(512, 512),
            "mlp.gate_proj": of(96, 512), "mlp.up_proj": of(96, 512), "mlp.down_proj": of(512, 96),
            "input_layernorm": of(512), "post_attention_layernorm": of(512),
        }  # fmt: skip
        tensors |= {f"{prefix}.layers.{n}.{part}.weight": t for part, t in parts.items()}
    return tensors


def mixtral() -> Tensors:
    tensors = {name: tensor for name, tensor in llama().items() if ".mlp." not in name}
    for n in range(3):
        for expert in range(4):
            for part, shape in (("w1", (96, 512)), ("w2", (512, 96)), ("w3", (96, 512))):
                name = f"model.layers.{n}.block_sparse_moe.experts.{expert}.{part}.weight"
                tensors[name] = of(*shape)
    return tensors


def write(folder: Path, tensors: Tensors, config: dict[str, Any] = LLAMA) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "tokenizer.json").write_text('{"vocab": {}}')
    save_file(tensors, folder / "model.safetensors")
    return folder


Q = "model.layers.1.self_attn.q_proj.weight"


def without(tensors: Tensors, *words: str) -> Tensors:
    return {n: t for n, t in tensors.items() if not any(word in n for word in words)}


@pytest.mark.parametrize(
    ("tensors", "config"),
    [
        (llama(), LLAMA),
        (llama(4), LLAMA | {"num_hidden_layers": 4}),
        (without(llama(), "lm_head"), LLAMA | {"tie_word_embeddings": True}),
        (mixtral(), MIXTRAL),
        # more layers than the config counts: those that predict further tokens
        (llama(4), LLAMA | {"num_nextn_predict_layers": 1}),
        # a language model in another model
        (
            llama(prefix="model.language_model") | {"vision_tower.layers.0.q.weight": of(3, 3)},
            {"model_type": "llava", "text_config": LLAMA},
        ),
        # weights that are packed
        (
            llama() | {"model.layers.0.self_attn.q_proj.weight": numpy.zeros((9, 1), numpy.uint8)},
            LLAMA | {"quantization_config": {"quant_method": "bitsandbytes"}},
        ),
        # so is the embedding
        (
            without(llama(), "embed_tokens")
            | {"model.embed_tokens.weight_packed": numpy.zeros((60, 64), numpy.int32)},
            LLAMA | {"quantization_config": {"quant_method": "compressed-tensors"}},
        ),
        # adapters that belong to the model, as in Phi-4-multimodal
        (
            llama() | {"model.layers.0.mlp.down_proj.lora_A.speech.weight": of(8, 96)},
            LLAMA | {"model_type": "phi4mm", "speech_lora": {"r": 8}},
        ),
        # configs of BLOOM have another name for the width
        (
            {"word_embeddings.weight": of(60, 512)}
            | {f"h.{n}.self_attention.query_key_value.weight": of(1536, 512) for n in range(3)},
            {"model_type": "bloom", "n_embed": 512, "n_layer": 3, "n_head": 4, "vocab_size": 60},
        ),
        # each layer of LongCat counts as two
        (
            llama(),
            LLAMA | {"model_type": "longcat_flash", "num_layers": 3, "num_hidden_layers": 6},
        ),
        # of Bamba's layers those in attn_layer_indices have attention, and all others none
        (
            without(llama(), Q) | {"model.layers.1.mamba.in_proj.weight": of(9, 512)},
            LLAMA | {"model_type": "bamba", "attn_layer_indices": [0, 2]},
        ),
        # a type that nobody here knows: names and sizes may be any
        (llama(1), LLAMA | {"model_type": "xlama-2"}),
        ({"w": of(60, 512)}, LLAMA | {"model_type": "xlama-2"}),
    ],
)
def test_what_fits_is_taken(tmp_path: Path, tensors: Tensors, config: dict[str, Any]) -> None:
    inspect(write(tmp_path, tensors, config))


@pytest.mark.parametrize(
    ("tensors", "words"),
    [
        (llama() | {Q: of(0)}, ("1 of 30 tensors are empty", "ZeRO-3", "zero_to_fp32.py")),
        (llama() | {Q: of(1)}, ("self_attn.q_proj.weight of layer 1 has the shape [1]",)),
        (
            llama() | {Q: of(512, 510)},
            ("has the shape [512, 510], the config hidden_size 512",),
        ),
        (llama() | {Q.replace("q_proj", "k_proj"): of(512, 512)}, ("k_proj", "num_key_value")),
        (
            llama() | {"model.layers.2.mlp.down_proj.weight": of(512, 48)},
            ("mlp.down_proj.weight of layer 2", "[512, 48]", "intermediate_size 96"),
        ),
        (
            llama() | {"model.embed_tokens.weight": of(61, 512), "lm_head.weight": of(61, 512)},
            ("model.embed_tokens.weight has the shape [61, 512]", "vocab_size", "60 and 512"),
        ),
        (without(llama(), "embed_tokens"), ("no embedding", "convert it")),
        (without(llama(), "lm_head"), ("no output layer", "tie_word_embeddings is false")),
        (llama(2), ("num_hidden_layers is 3, and it has 2 layers", "model.layers.2 is missing")),
        (without(llama(), "layers.1."), ("model.layers.1 is missing",)),
        (without(llama(), "layers"), ("it has 0 layers",)),
        (without(llama(), Q), ("layers 0 and 1 differ", "self_attn.q_proj.weight")),
        (
            {"a.weight": of(512)} | llama(0) | {"model.layers.0.x.weight": of(2)},
            ("it has 1 layer",),
        ),
        (llama() | {"model.layers.0.mlp._flat_param": of(9)}, ("flat parameters of FSDP",)),
        (
            {"tok_embeddings.weight": of(60, 512), "output.weight": of(60, 512)}
            | {f"layers.{n}.attention.query.weight": of(512, 512) for n in range(3)},
            ("such as attention.query.weight", "type llama", "trainer's converter"),
        ),
        (
            llama() | {"model.layers.0.self_attn.q_proj.lora_A.weight": of(8, 512)},
            ("tensors of an adapter", "merge_and_unload"),
        ),
        (
            {"transformer.wpe.weight": of(9, 512), "tok.weight": of(60, 512)},
            ("no embedding", "convert it first"),
        ),
    ],
)
def test_what_does_not_fit_is_told(
    tmp_path: Path, tensors: Tensors, words: tuple[str, ...]
) -> None:
    refused(write(tmp_path / "step", tensors), str(tmp_path / "step"), *words)


@pytest.mark.parametrize("wrapper", ["_orig_mod.", "module.", "module._fsdp_wrapped_module."])
def test_names_of_training_wrappers_are_taken_off(tmp_path: Path, wrapper: str) -> None:
    wrapped = {f"{wrapper}{name}": tensor for name, tensor in llama().items()}
    found = inspect(write(tmp_path / "step", wrapped))
    assert found.converted
    assert reading.source(found).tensors.keys() == llama().keys()


def test_experts_of_one_rank_are_not_all(tmp_path: Path) -> None:
    tensors = without(mixtral(), "experts.2.", "experts.3.")
    write(tmp_path, tensors, MIXTRAL)
    refused(tmp_path, "layer 0 has 2 of the 4 experts in the config, and lacks expert 2")


def test_a_hull_of_large_model_is_refused_whatever_its_type(tmp_path: Path) -> None:
    config = {"hidden_size": 4096, "num_hidden_layers": 32, "vocab_size": 128256}
    write(tmp_path, {"model.norm.weight": of(4096)}, config)
    refused(tmp_path, "it has 4,096 parameters", "a single matrix", "16,777,216")
    (tmp_path / "zero_to_fp32.py").touch()
    write(tmp_path, {"model.norm.weight": of(4096), "model.embed.weight": of(0)}, config)
    refused(tmp_path, "1 of 2 tensors are empty", f"python {tmp_path / 'zero_to_fp32.py'}")


def test_a_config_that_names_no_type_of_model_is_refused(tmp_path: Path) -> None:
    for config in ({}, {"learning_rate": 0.1}, {**LLAMA, "model_type": None}):
        write(tmp_path, llama(), config)
        with pytest.raises(UserError, match=r"config\.json has no model_type.*--config"):
            check_usable(inspect(tmp_path))


def test_state_dicts_are_compared_under_the_names_of_the_model(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    folder = write(tmp_path / "step", llama())
    (folder / "model.safetensors").unlink()
    state = {f"module._orig_mod.{n}": torch.from_numpy(t) for n, t in llama().items()}
    torch.save(state, folder / "model.pt")
    inspect(folder)
    torch.save({n: t for n, t in state.items() if "layers.2." not in n}, folder / "model.pt")
    refused(folder, "model.layers.2 is missing")
