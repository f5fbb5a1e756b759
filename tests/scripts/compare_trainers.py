"""Compare `tests/trainers.py` with the trainers' own code, where that is installed.

`pip install --no-deps torchtitan==0.3.0 litgpt==0.5.13 megatron-core==0.16.1 lightning
lightning-utilities torchmetrics jsonargparse`, then `PYTHONPATH=. python
tests/scripts/compare_trainers.py`. It prints a line for each model that is compared.
"""
# These libraries have no types here, and are absent while types are checked.

import contextlib
import importlib
import os
import sys
from types import SimpleNamespace
from typing import Any

from tests import trainers


def litgpt() -> None:
    """Compare with what LitGPT makes of a Hugging Face checkpoint."""
    torch: Any = importlib.import_module("torch")
    convert: Any = importlib.import_module("litgpt.scripts.convert_hf_checkpoint")
    config_of: Any = importlib.import_module("litgpt").Config
    ways = {
        "llama": convert.copy_weights_hf_llama,
        "mistral": convert.copy_weights_hf_llama,
        "mixtral": convert.copy_weights_hf_llama,
        "qwen2": convert.copy_weights_qwen_2_5,
        "qwen3": convert.copy_weights_qwen_3,
        "olmo2": convert.copy_weights_olmo2,
        "gpt_neox": convert.copy_weights_gpt_neox,
    }
    for kind, copy in ways.items():
        given = trainers.CONFIGS[kind]
        config = config_of(
            n_layer=given["num_hidden_layers"],
            n_head=given["num_attention_heads"],
            n_embd=given["hidden_size"],
            n_query_groups=given.get("num_key_value_heads", given["num_attention_heads"]),
            head_size=given.get("head_dim"),
            intermediate_size=given["intermediate_size"],
            mlp_class_name="LLaMAMoE" if kind == "mixtral" else "LLaMAMLP",
        )
        made: dict[str, Any] = {}
        state = trainers.weights(kind)
        if kind == "gpt_neox":
            copy(config, made, state)
        else:
            copy(config, {}, made, state)
        own = trainers.litgpt(state, {**given, "model_type": kind})
        _same(f"litgpt {kind}", own, made, torch)


def torchtitan() -> None:
    """Compare with what torchtitan makes of a Hugging Face checkpoint."""
    torch: Any = importlib.import_module("torch")
    ways = {
        "llama": ("llama3", "Llama3StateDictAdapter"),
        "qwen3": ("qwen3", "Qwen3StateDictAdapter"),
        "qwen3_moe": ("qwen3", "Qwen3StateDictAdapter"),
        "deepseek_v3": ("deepseek_v3", "DeepSeekV3StateDictAdapter"),
    }
    for kind, (module, name) in ways.items():
        adapter: Any = getattr(
            importlib.import_module(f"torchtitan.models.{module}.state_dict_adapter"), name
        )
        given = trainers.CONFIGS[kind]
        experts = given.get("num_experts") or given.get("n_routed_experts")
        attention = SimpleNamespace(
            n_heads=given["num_attention_heads"],
            n_kv_heads=given["num_key_value_heads"],
            head_dim=given["head_dim"],
            q_lora_rank=given.get("q_lora_rank", 0),
        )
        layer = SimpleNamespace(
            attention=attention, moe=experts and SimpleNamespace(num_experts=experts)
        )
        made = adapter.__new__(adapter)
        config = SimpleNamespace(
            layers=[layer], dim=given["hidden_size"], enable_weight_tying=False
        )
        made._validate_hf_rope_config = lambda _: None
        adapter.__init__(made, config, None)
        found = made.from_hf(trainers.weights(kind))
        own = trainers.torchtitan(trainers.weights(kind), {**given, "model_type": kind})
        _same(f"torchtitan {kind}", own, found, torch)


def megatron() -> None:
    """Compare what Megatron-core's model answers with what Hugging Face's does."""
    torch: Any = importlib.import_module("torch")
    transformers: Any = importlib.import_module("transformers")
    parallel: Any = importlib.import_module("megatron.core.parallel_state")
    specs: Any = importlib.import_module("megatron.core.models.gpt.gpt_layer_specs")
    gpt: Any = importlib.import_module("megatron.core.models.gpt.gpt_model")
    config_of: Any = importlib.import_module("megatron.core.transformer.transformer_config")
    torch.cuda.current_device = lambda: "cpu"  # it asks for it even where it computes on CPUs
    os.environ.update(MASTER_ADDR="localhost", MASTER_PORT="29577")
    torch.distributed.init_process_group("gloo", rank=0, world_size=1)
    parallel.initialize_model_parallel()
    tracker: Any = importlib.import_module("megatron.core.tensor_parallel").get_cuda_rng_tracker()
    tracker.fork = lambda *_: contextlib.nullcontext()  # there is no dropout
    for kind in ("llama", "qwen2", "qwen3"):  # its experts need Transformer Engine
        given = trainers.CONFIGS[kind]
        hf_config = transformers.AutoConfig.for_model(kind, **given)
        theirs = transformers.AutoModelForCausalLM.from_config(hf_config)
        loading: Any = importlib.import_module("transformers.core_model_loading")
        state = dict(loading.revert_weight_conversion(theirs, theirs.state_dict()))
        config = config_of.TransformerConfig(
            num_layers=given["num_hidden_layers"],
            hidden_size=given["hidden_size"],
            num_attention_heads=given["num_attention_heads"],
            num_query_groups=given["num_key_value_heads"],
            kv_channels=given["head_dim"],
            ffn_hidden_size=given["intermediate_size"],
            gated_linear_unit=True,
            activation_func=torch.nn.functional.silu,
            normalization="RMSNorm",
            add_bias_linear=False,
            add_qkv_bias=kind == "qwen2",
            qk_layernorm=kind == "qwen3",
            layernorm_epsilon=hf_config.rms_norm_eps,
            use_cpu_initialization=True,
            hidden_dropout=0.0,
            attention_dropout=0.0,
            bias_activation_fusion=False,
        )
        spec = specs.get_gpt_layer_local_spec(qk_layernorm=kind == "qwen3", normalization="RMSNorm")
        model = gpt.GPTModel(
            config, spec, given["vocab_size"], 64, position_embedding_type="rope",
            rotary_base=10000, share_embeddings_and_output_weights=False,
        )  # fmt: skip
        own = trainers.megatron(state, {**given, "model_type": kind}, "local")
        own = {k: v for k, v in own.items() if "_extra" not in k}
        lacking, unknown = model.load_state_dict(own, strict=False)
        assert not [k for k in lacking if "_extra" not in k], lacking
        assert not unknown, unknown
        ids = torch.arange(20)[None]
        mask = torch.triu(torch.ones(20, 20), 1).bool()[None, None]
        with torch.no_grad():
            one = model(ids, ids, mask)
            other = theirs(ids).logits
        print(f"megatron {kind}: largest difference {(one - other).abs().max():.1e}")


def _same(what: str, own: Any, other: Any, torch: Any) -> None:
    assert own.keys() == other.keys(), own.keys() ^ other.keys()
    assert all(torch.equal(own[name], other[name]) for name in own)
    print(f"{what}: {len(own)} tensors equal")


if __name__ == "__main__":
    for compare in (litgpt, torchtitan, megatron):
        try:
            compare()
        except ImportError as error:
            print(f"{compare.__name__}: {error}", file=sys.stderr)
