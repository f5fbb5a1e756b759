"""What a model costs: parameters, active ones and bytes by its headers, its cache by its config."""

from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from coordinate_eval._text_config import text_config
from coordinate_eval.coordinator.inputs.checkpoints.formats.layouts import Tensor
from coordinate_eval.coordinator.inputs.checkpoints.model.model_shape import model_shape
from coordinate_eval.coordinator.inputs.checkpoints.model.quantized import quantized
from coordinate_eval.errors import UserError
from coordinate_eval.priors import gpus, roofline
from coordinate_eval.priors.roofline import Model, Work

FILE = Path("config.json")


class Published(NamedTuple):
    config: dict[str, Any]
    kv_bytes: int
    """Of one token in 16 bits, all layers."""
    windowed: int = 0
    """Of these, in layers with a window."""


def latent(layers: int, heads: int, **more: Any) -> dict[str, Any]:
    return {
        "num_hidden_layers": layers, "num_attention_heads": heads, "num_key_value_heads": heads,
        "kv_lora_rank": 512, "q_lora_rank": 1536, "qk_rope_head_dim": 64, "qk_nope_head_dim": 128,
        "v_head_dim": 128, "hidden_size": 7168, "intermediate_size": 18432,
        "moe_intermediate_size": 2048, "n_shared_experts": 1, "num_experts_per_tok": 8,
        "moe_layer_freq": 1, "max_position_embeddings": 131072, "tie_word_embeddings": False,
        **more,
    }  # fmt: skip


def heads(layers: int, queries: int, keys: int, **more: Any) -> dict[str, Any]:
    return {
        "num_hidden_layers": layers, "num_attention_heads": queries, "num_key_value_heads": keys,
        "max_position_embeddings": 131072, "tie_word_embeddings": False, **more,
    }  # fmt: skip


FP8 = {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [128, 128]}

MODELS = {
    # "The Llama 3 Herd of Models", 2024, table 3. Cache: DeepSeek-AI, "Insights into DeepSeek-V3",
    # 2025, table 1.
    "Llama 3.1 405B": Published(
        heads(
            126, 128, 8, model_type="llama", hidden_size=16384, intermediate_size=53248,
            vocab_size=128256,
        ),
        516_096,
    ),
    # "Qwen2.5 Technical Report", 2024. Cache: as above.
    "Qwen2.5 72B": Published(
        heads(
            80, 64, 8, model_type="qwen2", hidden_size=8192, intermediate_size=29568,
            vocab_size=152064, use_sliding_window=False, sliding_window=131072,
            max_window_layers=70,
        ),
        327_680,
    ),
    # "Mixtral of Experts", 2024, section 2 and table 1.
    "Mixtral 8x7B": Published(
        heads(
            32, 32, 8, model_type="mixtral", hidden_size=4096, intermediate_size=14336,
            vocab_size=32000, num_local_experts=8, num_experts_per_tok=2, sliding_window=None,
        ),
        2 * 32 * 8 * 128 * 2,
    ),
    # "DeepSeek-V3 Technical Report", 2024. Cache: "Insights into DeepSeek-V3", 2025, table 1. Its
    # published weights have 14 GB more, of a layer that predicts further tokens.
    "DeepSeek V3": Published(
        latent(
            61, 128, model_type="deepseek_v3", vocab_size=129280, n_routed_experts=256,
            first_k_dense_replace=3, quantization_config=FP8,
        ),
        70_272,
    ),
    # "Kimi K2: Open Agentic Intelligence", 2025, table 2.
    "Kimi K2": Published(
        latent(
            61, 64, model_type="kimi_k2", vocab_size=163840, n_routed_experts=384,
            first_k_dense_replace=1, quantization_config=FP8,
        ),
        70_272,
    ),
    # Model card: 94 layers, 64 heads and 4 of keys and values, 235B, 22B, 234B without embeddings.
    "Qwen3 235B A22B": Published(
        heads(
            94, 64, 4, model_type="qwen3_moe", hidden_size=4096, intermediate_size=12288,
            head_dim=128, moe_intermediate_size=1536, vocab_size=151936, num_experts=128,
            num_experts_per_tok=8, decoder_sparse_step=1, mlp_only_layers=[],
        ),
        2 * 94 * 4 * 128 * 2,
    ),
    # "GLM-4.5: Agentic, Reasoning, and Coding Foundation Models", 2025, table 1: 355B has a layer
    # that predicts further tokens.
    "GLM 4.5": Published(
        heads(
            92, 96, 8, model_type="glm4_moe", hidden_size=5120, intermediate_size=12288,
            head_dim=128, moe_intermediate_size=1536, vocab_size=151552, n_routed_experts=160,
            n_shared_experts=1, num_experts_per_tok=8, first_k_dense_replace=3,
        ),
        2 * 92 * 8 * 128 * 2,
    ),
    # "gpt-oss-120b & gpt-oss-20b Model Card", 2025, table 1: 116.83B, 5.13B, 60.8 GiB.
    "gpt-oss 120b": Published(
        heads(
            36, 64, 8, model_type="gpt_oss", hidden_size=2880, intermediate_size=2880, head_dim=64,
            vocab_size=201088, num_local_experts=128, num_experts_per_tok=4, sliding_window=128,
            layer_types=["sliding_attention", "full_attention"] * 18,
            quantization_config={"quant_method": "mxfp4"},
        ),
        2 * 36 * 8 * 64 * 2, windowed=36 * 8 * 64 * 2,
    ),
    # Model card: 17B active, 400B. Engines keep more than the chunks that its layers attend to.
    "Llama 4 Maverick": Published(
        {
            "model_type": "llama4",
            "text_config": heads(
                48, 40, 8, model_type="llama4_text", hidden_size=5120, intermediate_size=8192,
                intermediate_size_mlp=16384, head_dim=128, vocab_size=202048, num_experts_per_tok=1,
                num_local_experts=128, interleave_moe_layer_step=2, attention_chunk_size=8192,
            ),
        },
        2 * 48 * 8 * 128 * 2,
    ),
    # "Jamba-1.5: Hybrid Transformer-Mamba Models at Scale", 2024; 9 GB of cache for 256K tokens.
    "Jamba 1.5 Large": Published(
        heads(
            72, 64, 8, model_type="jamba", hidden_size=8192, intermediate_size=24576,
            vocab_size=65536, num_experts=16, num_experts_per_tok=2, attn_layer_period=8,
            attn_layer_offset=4, expert_layer_period=2, expert_layer_offset=1, mamba_d_state=16,
            mamba_d_conv=4, mamba_expand=2, mamba_dt_rank=512,
        ),
        9 * 2**30 // 2**18,
    ),
    # Model card: 456B, 45.9B, softmax attention after every seven layers of lightning attention.
    "MiniMax Text 01": Published(
        heads(
            80, 64, 8, model_type="minimax_text_01", hidden_size=6144, intermediate_size=9216,
            head_dim=128, vocab_size=200064, num_local_experts=32, num_experts_per_tok=2,
            attn_type_list=([0] * 7 + [1]) * 10,
        ),
        2 * 10 * 8 * 128 * 2,
    ),
    # "Nemotron 3 Nano", 2025: 31.6B, 3.2B, 3.6B with embeddings; 6 of 52 layers attend.
    "Nemotron 3 Nano": Published(
        heads(
            52, 32, 2, model_type="nemotron_h", hidden_size=2688, intermediate_size=1856,
            head_dim=128, moe_intermediate_size=1856, moe_shared_expert_intermediate_size=3712,
            vocab_size=131072, n_routed_experts=128, n_shared_experts=1, num_experts_per_tok=6,
            hybrid_override_pattern="MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME",
            mamba_num_heads=64, mamba_head_dim=64, ssm_state_size=128, n_groups=8, conv_kernel=4,
        ),
        2 * 6 * 2 * 128 * 2,
    ),
}  # fmt: skip


def costs(config: dict[str, Any], tensors: dict[str, Tensor] | None = None) -> dict[str, Any]:
    text = text_config(config, FILE)
    return model_shape(text, "bfloat16", quantized(config, text, {}), tensors or {})


@pytest.mark.parametrize("name", MODELS)
def test_the_cache_of_a_token_is_what_is_published(name: str) -> None:
    published, found = MODELS[name], costs(MODELS[name].config)
    assert found["kv_bytes_per_token"] == published.kv_bytes
    assert found["windowed_bytes_per_token"] == published.windowed


def test_prompts_of_a_mixture_take_as_long_as_its_active_parameters() -> None:
    config = mixture(layers=4, width=8, heads=4, experts=8, chosen=2, dense=1, shared=1)
    found = costs(config, headers(config, stacked=False))
    fields = Model.model_fields.keys() & found.keys()
    model = Model(
        bytes=found["loaded_bytes"], tensor_parallel=1, **{key: found[key] for key in fields}
    )
    prompts = Work(items=1, requests=1, prompt_tokens=1e9, output_tokens=0, longest_output_tokens=0)
    seconds = [
        roofline.gpu_seconds(prompts, each, gpus.lookup("h200"))
        for each in (model, model.model_copy(update={"active_parameters": 0}))
    ]
    assert seconds[0] / seconds[1] == pytest.approx(model.active / model.parameters, rel=0.2)
    # One token reads its own experts; those of a thousand tokens are nearly all.
    assert model.read_bytes(1) == pytest.approx(2 * model.active)
    assert model.read_bytes(1000) == pytest.approx(model.bytes)


SIZES = {
    "layers": st.integers(1, 6), "width": st.integers(1, 8), "heads": st.integers(1, 4),
    "experts": st.integers(1, 8), "chosen": st.integers(1, 8), "dense": st.integers(0, 6),
    "shared": st.integers(0, 2),
}  # fmt: skip


def mixture(
    layers: int, width: int, heads: int, experts: int, chosen: int, dense: int, shared: int
) -> dict[str, Any]:
    return {
        "model_type": "dots1", "num_hidden_layers": layers, "hidden_size": 64 * width,
        "num_attention_heads": heads, "num_key_value_heads": heads, "head_dim": 64,
        "intermediate_size": 256 * width,
        "moe_intermediate_size": 32 * width, "n_routed_experts": experts, "vocab_size": 1000,
        "num_experts_per_tok": min(chosen, experts), "first_k_dense_replace": dense,
        "n_shared_experts": shared, "tie_word_embeddings": False,
    }  # fmt: skip


def headers(config: dict[str, Any], *, stacked: bool) -> dict[str, Tensor]:
    """The tensors of a mixture, with each expert by itself or all of a layer in one tensor."""
    width, each = config["hidden_size"], config["moe_intermediate_size"]
    heads, experts = 64 * config["num_attention_heads"], config["n_routed_experts"]
    shapes = dict.fromkeys(("model.embed_tokens", "lm_head"), (config["vocab_size"], width))
    for i in range(config["num_hidden_layers"]):
        layer = f"model.layers.{i}"
        shapes |= {f"{layer}.self_attn.{name}_proj": (heads, width) for name in "qkvo"}
        if i < config["first_k_dense_replace"]:
            shapes[f"{layer}.mlp.all_proj"] = (3 * config["intermediate_size"], width)
            continue
        shapes[f"{layer}.mlp.gate"] = (experts, width)
        shared = 3 * each * config["n_shared_experts"]
        shapes[f"{layer}.mlp.shared_experts.all_proj"] = (shared, width)
        if stacked:
            shapes[f"{layer}.mlp.experts.all_proj"] = (experts, 3 * each, width)  # type: ignore[assignment]
        else:
            for n in range(experts):
                shapes[f"{layer}.mlp.experts.{n}.all_proj"] = (3 * each, width)
    return {f"{name}.weight": Tensor("bfloat16", shape) for name, shape in shapes.items()}


@given(sizes=st.fixed_dictionaries(SIZES), stacked=st.booleans())
def test_of_the_experts_a_token_leaves_out_those_that_are_not_chosen(
    sizes: dict[str, int], *, stacked: bool
) -> None:
    config = mixture(**sizes)
    found = costs(config, headers(config, stacked=stacked))
    layers = max(0, sizes["layers"] - sizes["dense"])
    left_out = max(0, sizes["experts"] - sizes["chosen"])
    expert = 3 * config["moe_intermediate_size"] * config["hidden_size"]
    assert not found["doubt"]
    assert found["routed_bytes"] == 2 * layers * sizes["experts"] * expert
    active = found["parameters"] - layers * left_out * expert
    assert found["active_parameters"] == pytest.approx(active, abs=1)
    assert found["loaded_bytes"] == 2 * found["parameters"]


@given(tokens=st.lists(st.floats(1, 1e6), min_size=2, max_size=2).map(sorted))
def test_longer_texts_and_larger_steps_cost_no_less(tokens: list[float]) -> None:
    few, many = tokens
    model = Model(
        parameters=10, bytes=20, routed_bytes=16, experts=8, experts_per_token=2,
        kv_bytes_per_token=12, windowed_bytes_per_token=8, window=1000, state_bytes=5,
        tensor_parallel=1,
    )  # fmt: skip
    assert 4 < model.read_bytes(few) <= model.read_bytes(many) <= 20
    assert model.kv_bytes(few) <= model.kv_bytes(many) <= 12 * many + 5


@pytest.mark.parametrize(
    ("config", "kv_bytes", "windowed"),
    [
        # The last layers of Gemma 3n read the cache of earlier ones; five of six have a window.
        (
            heads(
                12, 8, 2, model_type="gemma3n_text", head_dim=256, sliding_window=512,
                num_kv_shared_layers=4,
                layer_types=(["sliding_attention"] * 5 + ["full_attention"]) * 2,
            ),
            2 * 8 * 2 * 256 * 2, 2 * 7 * 2 * 256 * 2,
        ),
        # Gemma 3 says by its class that every sixth layer attends to all.
        (
            heads(12, 8, 2, model_type="gemma3_text", head_dim=256, sliding_window=1024),
            2 * 12 * 2 * 256 * 2, 2 * 10 * 2 * 256 * 2,
        ),
        # Three of four layers of Qwen3-Next have a state.
        (
            heads(
                8, 16, 2, model_type="qwen3_next", head_dim=256, hidden_size=2048,
                full_attention_interval=4, linear_num_value_heads=32, linear_num_key_heads=16,
            ),
            2 * 2 * 2 * 256 * 2, 0,
        ),
        # Engines of ModelOpt's weights keep keys and values in 8 bits, if the weights say so.
        (
            heads(
                2, 8, 2, model_type="llama", head_dim=128,
                quantization_config={
                    "quant_method": "modelopt", "quant_algo": "FP8", "kv_cache_quant_algo": "FP8"
                },
            ),
            2 * 2 * 2 * 128, 0,
        ),
    ],
)  # fmt: skip
def test_layers_that_keep_less_cost_less(
    config: dict[str, Any], kv_bytes: int, windowed: int
) -> None:
    found = costs(config)
    assert found["kv_bytes_per_token"] == kv_bytes
    assert found["windowed_bytes_per_token"] == windowed


def test_only_layers_without_experts_have_a_width_to_divide_besides_that_of_experts() -> None:
    found = {name: costs(MODELS[name].config) for name in MODELS}
    others = {name for name, each in found.items() if "intermediate size" in str(each["splits"])}
    assert {name for name, each in found.items() if not each["expert_splits"]} == {
        "Llama 3.1 405B", "Qwen2.5 72B"
    }  # fmt: skip
    assert others == {
        "Llama 3.1 405B", "Qwen2.5 72B", "DeepSeek V3", "Kimi K2", "GLM 4.5", "Llama 4 Maverick"
    }  # fmt: skip
    assert found["DeepSeek V3"]["expert_splits"] == {"blocks of 128 in experts": 2048 // 128}


def test_what_a_config_does_not_say_of_experts_is_told() -> None:
    config = mixture(layers=2, width=2, heads=2, experts=4, chosen=2, dense=0, shared=0)
    files = headers(config, stacked=False)
    unsaid = {key: value for key, value in config.items() if key != "num_experts_per_tok"}
    for silent in (unsaid, {key: each for key, each in unsaid.items() if "experts" not in key}):
        found = costs(silent, files)
        assert "how many experts" in found["doubt"]
        assert found["active_parameters"] == found["parameters"]
    assert not costs(config, files)["doubt"]


def test_the_cache_of_a_type_that_nobody_here_knows_is_an_estimate() -> None:
    config = MODELS["Llama 3.1 405B"].config
    assert not costs(config)["doubt"]
    assert "an estimate" in costs(config | {"model_type": "of its own"})["doubt"]


PACKED = {
    "FP8": (FP8, {"weight": ("float8_e4m3fn", 1), "weight_scale_inv": ("float32", 0)}),
    "GPTQ": (
        {"quant_method": "gptq", "bits": 4, "group_size": 128},
        {"qweight": ("int32", 8), "scales": ("float16", 0), "qzeros": ("int32", 0)},
    ),
    "8-bit GPTQ": ({"quant_method": "gptq", "bits": 8}, {"qweight": ("int32", 4)}),
    "AWQ": ({"quant_method": "awq", "w_bit": 4}, {"qweight": ("int32", 8), "g_idx": ("int32", 0)}),
    "compressed": (
        {
            "quant_method": "compressed-tensors",
            "config_groups": {"group_0": {"weights": {"num_bits": 4, "type": "int"}}},
        },
        {"weight_packed": ("int32", 8), "weight_scale": ("bfloat16", 0)},
    ),
    "MXFP4": (
        {"quant_method": "mxfp4"},
        {"experts.gate_up_proj_blocks": ("uint8", 2), "experts.gate_up_proj_scales": ("uint8", 0)},
    ),
    "bitsandbytes": (
        {"quant_method": "bitsandbytes", "load_in_4bit": True},
        {"weight": ("uint8", 2), "weight.absmax": ("float32", 0)},
    ),
}


@pytest.mark.parametrize("name", PACKED)
def test_packed_numbers_count_as_the_parameters_that_they_are(name: str) -> None:
    quantization, tensors = PACKED[name]
    found = {
        f"model.layers.0.mlp.up_proj.{part}": Tensor(dtype, (4, 10))
        for part, (dtype, _) in tensors.items()
    }
    config = heads(1, 1, 1, model_type="llama", quantization_config=quantization)
    assert costs(config, found)["parameters"] == 40 * sum(each for _, each in tensors.values())


_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**30), 10**30) | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=6,
)
_NAMES = st.sampled_from(
    [
        *sorted({key for each in MODELS.values() for key in text_config(each.config, FILE).given}),
        "layers_block_type", "moe_layers", "moe_layers_enum", "num_kv_shared_layers",
        "conv_L_cache", "linear_attn_config", "ffn_config", "text_config", "compression_config",
        "linear_num_value_heads",
    ]
)  # fmt: skip


@given(
    model=st.sampled_from(sorted(MODELS)),
    change=st.dictionaries(_NAMES, _VALUES | st.integers(1, 10**7), max_size=4),
)
@example(model="Kimi K2", change={"quantization_config": {"quant_method": ["fp8"], "bits": -1}})
def test_a_hostile_config_gives_numbers_or_one_message(model: str, change: dict[str, Any]) -> None:
    files = headers(mixture(2, 2, 2, 4, 2, 1, 1), stacked=True)
    try:
        found = costs(MODELS[model].config | change, files)
    except UserError as error:
        assert str(FILE) in str(error)
    else:
        assert 0 <= found["active_parameters"] <= found["parameters"]
        assert 0 <= found["windowed_bytes_per_token"] <= found["kv_bytes_per_token"]
