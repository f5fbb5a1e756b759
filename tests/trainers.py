"""Weights of tiny Hugging Face models, written as trainers name and order them.

The orders are written down here a second time, from what the trainers' own code does with a
tensor, so that a mapping is compared with something that is not made from it. They were compared
with the trainers' own converters once, of torchtitan 0.3.0 and litgpt 0.5.13, and with what a
model of megatron-core 0.16.1 answers:
`PYTHONPATH=. python tests/scripts/compare_trainers.py`.
"""
# Torch and transformers have no types here: they may be absent while types are checked.

import importlib
import re
from collections.abc import Callable, Mapping
from functools import cache, partial
from typing import Any, Final

State = dict[str, Any]

_SIZES: Final = {
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "tie_word_embeddings": False,
}
CONFIGS: Final[Mapping[str, dict[str, Any]]] = {
    "llama": _SIZES,
    "mistral": _SIZES,
    "qwen2": _SIZES,
    "qwen3": {**_SIZES, "head_dim": 16},
    "mixtral": {**_SIZES, "num_local_experts": 4},
    "qwen3_moe": {**_SIZES, "num_experts": 4, "moe_intermediate_size": 24},
    "gpt_oss": {**_SIZES, "num_local_experts": 4, "num_experts_per_tok": 2},
    "olmo2": _SIZES,
    **dict.fromkeys(("gemma", "gemma2", "gemma3_text"), _SIZES),
    "phi3": {**_SIZES, "pad_token_id": 0},
    "gpt_neox": {k: v for k, v in _SIZES.items() if k not in ("num_key_value_heads", "head_dim")},
    "deepseek_v3": {
        **_SIZES, "num_key_value_heads": 4, "q_lora_rank": 24, "kv_lora_rank": 16,
        "qk_nope_head_dim": 8, "qk_rope_head_dim": 4, "v_head_dim": 8, "n_routed_experts": 4,
        "moe_intermediate_size": 24, "n_group": 2, "topk_group": 1, "num_experts_per_tok": 2,
        "first_k_dense_replace": 1,
    },
}  # fmt: skip
"""Configs by type of model."""


@cache
def _model(kind: str) -> Any:
    torch: Any = importlib.import_module("torch")
    transformers: Any = importlib.import_module("transformers")
    config = transformers.AutoConfig.for_model(kind, **CONFIGS[kind])
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config)
    for parameter in model.parameters():
        parameter.data.normal_()
    return model


def weights(kind: str) -> State:
    """The tensors of a model of a type, by the names with which transformers saves them."""
    loading: Any = importlib.import_module("transformers.core_model_loading")
    model = _model(kind)
    return dict(loading.revert_weight_conversion(model, model.state_dict()))


def in_memory(state: State, config: Mapping[str, Any]) -> State:
    """Weights as transformers has them in memory, whatever the names in its files are."""
    return dict(_model(config["model_type"]).state_dict())


def _layer_of(name: str) -> tuple[str, str]:
    """The number of a layer, and what follows in a name; empty without a layer."""
    found = re.match(r"(?:model|gpt_neox)\.layers\.(\d+)\.(.*)", name)
    return (found[1], found[2]) if found else ("", name)


def _swap(name: str, *pairs: tuple[str, str]) -> str:
    return next((name.replace(old, new) for old, new in pairs if old in name), name)


def pairs(rows: Any, heads: int) -> Any:
    """Rows of queries or keys in pairs, as Meta's rotary embedding turns them."""
    half = rows.shape[0] // heads // 2
    out = rows.clone()
    for begin in range(0, rows.shape[0], 2 * half):
        out[begin : begin + 2 * half : 2] = rows[begin : begin + half]
        out[begin + 1 : begin + 2 * half : 2] = rows[begin + half : begin + 2 * half]
    return out


def groups(qkv: list[Any], count: int) -> Any:
    """A group for each head of keys: its queries, its keys, its values."""
    torch: Any = importlib.import_module("torch")
    parts = [each.chunk(count) for each in qkv]
    return torch.cat([part for group in zip(*parts, strict=True) for part in group])


_GPT_OSS = (
    ("gate_up_proj_bias", "mlp1_bias_EG", 3),
    ("gate_up_proj", "mlp1_weight_EGD", 4),
    ("down_proj_bias", "mlp2_bias_ED", 3),
    ("down_proj", "mlp2_weight_EDF", 4),
)
"""Experts of GPT-OSS, here and in torchtitan, and how many letters earlier names lacked."""


def torchtitan(state: State, config: Mapping[str, Any], *, early: bool = False) -> State:
    """Weights as torchtitan has them; up to 0.2 if they are `early`."""
    torch: Any = importlib.import_module("torch")
    made: State = {}
    experts: dict[str, dict[int, Any]] = {}
    kind = config["model_type"]
    inner = "experts." if early else "routed_experts.inner_experts."
    ends = {"w1": "_EFD", "w2": "_EDF", "w3": "_EFD"}
    own = {"gate_proj": "w1", "down_proj": "w2", "up_proj": "w3"}
    for name, tensor in state.items():
        layer, rest = _layer_of(name)
        if found := re.match(r"mlp\.experts\.(\d+)\.(\w+)\.weight", rest):
            which = own[found[2]]
            key = f"layers.{layer}.moe.{inner}{which}{'' if early else ends[which]}"
            experts.setdefault(key, {})[int(found[1])] = tensor
            continue
        if kind in ("llama", "mistral", "mixtral") and "q_proj" in rest:
            tensor = pairs(tensor, config["num_attention_heads"])
        if kind in ("llama", "mistral", "mixtral") and "k_proj" in rest:
            tensor = pairs(tensor, config["num_key_value_heads"])
        qkv = "" if early or kind == "deepseek_v3" else "qkv_linear."
        rest = _swap(
            rest,
            ("mlp.router.", "moe.router.gate."),
            ("self_attn.sinks", "attention.sinks"),
            *(
                (f"mlp.experts.{name}", f"moe.{inner}{which if not early else which[:-end]}")
                for name, which, end in _GPT_OSS
            ),
            ("mlp.gate.e_score_correction_bias", f"moe.expert_bias{'' if early else '_E'}"),
            ("mlp.gate.", "moe.router.gate."),
            ("shared_experts.gate_proj", "shared_experts.w1"),
            ("shared_experts.down_proj", "shared_experts.w2"),
            ("shared_experts.up_proj", "shared_experts.w3"),
            ("mlp.gate_proj", "feed_forward.w1"),
            ("mlp.down_proj", "feed_forward.w2"),
            ("mlp.up_proj", "feed_forward.w3"),
            ("self_attn.q_proj", f"attention.{qkv}wq"),
            ("self_attn.k_proj", f"attention.{qkv}wk"),
            ("self_attn.v_proj", f"attention.{qkv}wv"),
            ("self_attn.o_proj", "attention.wo"),
            ("self_attn.q_norm", "attention.q_norm"),
            ("self_attn.k_norm", "attention.k_norm"),
            ("self_attn.q_a_proj", "attention.wq_a"),
            ("self_attn.q_a_layernorm", "attention.q_norm"),
            ("self_attn.q_b_proj", "attention.wq_b"),
            ("self_attn.kv_a_proj_with_mqa", "attention.wkv_a"),
            ("self_attn.kv_a_layernorm", "attention.kv_norm"),
            ("self_attn.kv_b_proj", "attention.wkv_b"),
            ("input_layernorm", "attention_norm"),
            ("post_attention_layernorm", "ffn_norm"),
            ("model.embed_tokens", "tok_embeddings"),
            ("model.norm", "norm"),
            ("lm_head", "output" if early else "lm_head"),
        ).replace("mlp.shared", "moe.shared")
        if re.search(r"mlp[12]_weight", rest):
            tensor = tensor.transpose(1, 2).contiguous()
        made[f"layers.{layer}.{rest}" if layer else rest] = tensor
    stacked = {k: torch.stack([v[n] for n in sorted(v)]) for k, v in experts.items()}
    return made | stacked


def meta(state: State, config: Mapping[str, Any]) -> State:
    """Weights as Meta and Mistral publish them, in `consolidated.*`."""
    made = torchtitan(
        {k: v for k, v in state.items() if "block_sparse" not in k}, config, early=True
    )
    for name, tensor in state.items():
        layer, rest = _layer_of(name)
        if "block_sparse_moe" in rest:
            made[f"layers.{layer}.{rest.replace('block_sparse_moe', 'feed_forward')}"] = tensor
    torch: Any = importlib.import_module("torch")
    return made | {"rope.freqs": torch.ones(4)}


def olmo_core(state: State, config: Mapping[str, Any]) -> State:
    """Weights as OLMo-core has them."""
    made: State = {}
    late = config["model_type"] == "olmo2"
    for name, tensor in state.items():
        layer, rest = _layer_of(name)
        rest = _swap(
            rest,
            ("mlp.gate_proj", "feed_forward.w1"),
            ("mlp.down_proj", "feed_forward.w2"),
            ("mlp.up_proj", "feed_forward.w3"),
            ("self_attn.q_proj", "attention.w_q"),
            ("self_attn.k_proj", "attention.w_k"),
            ("self_attn.v_proj", "attention.w_v"),
            ("self_attn.o_proj", "attention.w_out"),
            ("self_attn.", "attention."),
            ("input_layernorm", "attention_norm"),
            ("post_attention_layernorm", "attention_norm" if late else "feed_forward_norm"),
            ("post_feedforward_layernorm", "feed_forward_norm"),
            ("model.embed_tokens", "embeddings"),
            ("model.norm", "lm_head.norm"),
            ("lm_head", "lm_head.w_out"),
        )
        made[f"blocks.{layer}.{rest}" if layer else rest] = tensor
    return made


def litgpt(state: State, config: Mapping[str, Any], *, early: bool = False) -> State:
    """Weights as LitGPT has them; before 0.5 if they are `early`."""
    torch: Any = importlib.import_module("torch")
    made: State = {}
    kind = config["model_type"]
    qkv = "attn.attn" if early else "attn.qkv"
    for name, tensor in state.items():
        layer, rest = _layer_of(name)
        prefix = f"transformer.h.{layer}."
        if found := re.match(r"self_attn\.q_proj\.(weight|bias)", rest):
            begin = name.partition("q_proj")[0]
            each = [state[f"{begin}{which}_proj.{found[1]}"] for which in "qkv"]
            fused = groups(each, config["num_key_value_heads"]) if early else torch.cat(each)
            made[f"{prefix}{qkv}.{found[1]}"] = fused
            continue
        if re.match(r"self_attn\.[kv]_proj", rest):
            continue
        if "query_key_value" in rest and not early:
            heads = config["num_attention_heads"]
            view = tensor.reshape(heads, 3, -1, *tensor.shape[1:])
            tensor = torch.cat([view[:, n].reshape(-1, *tensor.shape[1:]) for n in range(3)])
        late = kind in ("olmo2", "gemma2", "gemma3_text")
        if "gate_up_proj" in rest:
            made[f"{prefix}mlp.fc_1.weight"], made[f"{prefix}mlp.fc_2.weight"] = tensor.chunk(2)
            continue
        rest = _swap(
            rest,
            ("self_attn.qkv_proj", qkv),
            ("pre_feedforward_layernorm", "norm_2"),
            ("self_attn.o_proj", "attn.proj"),
            ("self_attn.q_norm", "attn.norm_q"),
            ("self_attn.k_norm", "attn.norm_k"),
            ("mlp.gate_proj", "mlp.fc_1"),
            ("mlp.up_proj", "mlp.fc_2"),
            ("mlp.down_proj", "mlp.proj"),
            ("gate_proj", "fc_1"),
            ("up_proj", "fc_2"),
            ("down_proj", "proj"),
            ("block_sparse_moe.gate", "mlp.gate"),
            ("input_layernorm", "norm_1"),
            ("post_attention_layernorm", "post_attention_norm" if late else "norm_2"),
            ("post_feedforward_layernorm", "post_mlp_norm"),
            ("attention.query_key_value", qkv),
            ("attention.dense", "attn.proj"),
            ("mlp.dense_h_to_4h", "mlp.fc"),
            ("mlp.dense_4h_to_h", "mlp.proj"),
            ("model.embed_tokens", "transformer.wte"),
            ("gpt_neox.embed_in", "transformer.wte"),
            ("model.norm", "transformer.ln_f"),
            ("gpt_neox.final_layer_norm", "transformer.ln_f"),
            ("embed_out", "lm_head"),
        )
        if "block_sparse_moe" in rest:
            rest = re.sub(r"w([123])", lambda m: ("fc_1", "proj", "fc_2")[int(m[1]) - 1], rest)
            rest = rest.replace("block_sparse_moe", "mlp")
        made[prefix + rest if layer else rest] = tensor
    return made


def gpt_neox(state: State, config: Mapping[str, Any]) -> State:
    """Weights as GPT-NeoX has them, in one process."""
    if config["model_type"] != "gpt_neox":
        return _gpt_neox_of_llama(state, config)
    made: State = {}
    last = config["num_hidden_layers"]
    for name, tensor in state.items():
        layer, rest = _layer_of(name)
        if layer:
            rest = _swap(rest, ("dense_h_to_4h", "linear1"), ("dense_4h_to_h", "linear2"))
            made[f"sequential.{int(layer) + 2}.{rest}"] = tensor
            continue
        rest = _swap(
            rest,
            ("gpt_neox.embed_in", "sequential.0.word_embeddings"),
            ("gpt_neox.final_layer_norm", f"sequential.{last + 3}.norm"),
            ("embed_out", f"sequential.{last + 4}.final_linear"),
            ("lm_head", f"sequential.{last + 4}.final_linear"),
        )
        made[rest] = tensor
    return made


def _gpt_neox_of_llama(state: State, config: Mapping[str, Any]) -> State:
    """Weights of a Llama as GPT-NeoX has them since its MLPs have linear1 and linear2."""
    torch: Any = importlib.import_module("torch")
    last, heads = config["num_hidden_layers"], config["num_attention_heads"]
    made: State = {
        "sequential.0.word_embeddings.weight": state["model.embed_tokens.weight"],
        f"sequential.{last + 3}.norm.scale": state["model.norm.weight"],
        f"sequential.{last + 4}.final_linear.weight": state["lm_head.weight"],
    }
    for layer in range(last):
        old, new = f"model.layers.{layer}.", f"sequential.{layer + 2}."
        qkv = [state[f"{old}self_attn.{each}_proj.weight"] for each in "qkv"]
        alike = config["num_key_value_heads"] == heads
        made |= {
            f"{new}attention.query_key_value.weight": groups(qkv, heads)
            if alike
            else torch.cat(qkv),
            f"{new}attention.dense.weight": state[f"{old}self_attn.o_proj.weight"],
            f"{new}mlp.linear1.weight": torch.cat(
                [state[f"{old}mlp.up_proj.weight"], state[f"{old}mlp.gate_proj.weight"]]
            ),
            f"{new}mlp.linear2.weight": state[f"{old}mlp.down_proj.weight"],
            **{
                f"{new}{norm}.scale": state[f"{old}{norm}.weight"]
                for norm in ("input_layernorm", "post_attention_layernorm")
            },
        }
    return made


def megatron(state: State, config: Mapping[str, Any], layout: str = "rank") -> State:
    """Weights as Megatron-core has them.

    Args:
        state: the weights.
        config: of the model.
        layout: `rank`, that of a rank's own file; `local`, the same without Transformer Engine;
            `stacked`, layers and experts in one tensor, as torch_dist has them; or `single`, each
            expert and each half of the MLP by itself, as newer ones have them.
    """
    torch: Any = importlib.import_module("torch")
    made: State = {}
    engine = layout != "local"
    latent = "kv_lora_rank" in config
    for name, tensor in state.items():
        layer, rest = _layer_of(name)
        begin, tail = name.removesuffix(rest), f"decoder.layers.{layer}."
        dense = begin + "mlp.up_proj.weight" in state
        if found := re.match(r"self_attn\.q_proj\.(weight|bias)", rest):
            if latent:
                made[f"{tail}self_attention.linear_q_proj.{found[1]}"] = tensor
                continue
            each = [state[f"{begin}self_attn.{which}_proj.{found[1]}"] for which in "qkv"]
            fused = groups(each, config["num_key_value_heads"])
            made[f"{tail}self_attention.linear_qkv.{found[1]}"] = fused
            continue
        if re.match(r"self_attn\.[kv]_proj", rest) or re.search(r"up_proj|w3", rest):
            continue
        if found := re.search(r"(.*)(gate_proj|w1)\.weight", rest):
            other = state[begin + rest.replace("gate_proj", "up_proj").replace("w1", "w3")]
            for key, value in _halves(_expert(found[1], layout), tensor, other, layout).items():
                made[tail + key] = value
            continue
        if found := re.search(r"(.*)(down_proj|w2)\.weight", rest):
            where, end = _expert(found[1], layout)
            made[f"{tail}{where}linear_fc2.weight{end}"] = tensor
            continue
        rest = _swap(
            rest,
            ("mlp.gate.e_score_correction_bias", "mlp.router.expert_bias"),
            ("mlp.gate.", "mlp.router."),
            ("block_sparse_moe.gate.", "mlp.router."),
            ("self_attn.o_proj", "self_attention.linear_proj"),
            ("self_attn.q_norm", "self_attention.q_layernorm"),
            ("self_attn.k_norm", "self_attention.k_layernorm"),
            ("self_attn.q_a_proj", "self_attention.linear_q_down_proj"),
            ("self_attn.q_b_proj", "self_attention.linear_q_up_proj"),
            ("self_attn.kv_a_proj_with_mqa", "self_attention.linear_kv_down_proj"),
            ("self_attn.kv_b_proj", "self_attention.linear_kv_up_proj"),
            ("self_attn.q_a_layernorm.weight", "self_attention.linear_q_up_proj.layer_norm_weight")
            if engine
            else ("self_attn.q_a_layernorm", "self_attention.q_layernorm"),
            (
                "self_attn.kv_a_layernorm.weight",
                "self_attention.linear_kv_up_proj.layer_norm_weight",
            )
            if engine
            else ("self_attn.kv_a_layernorm", "self_attention.kv_layernorm"),
            ("post_attention_layernorm.weight", "mlp.linear_fc1.layer_norm_weight")
            if engine and dense
            else ("post_attention_layernorm", "pre_mlp_layernorm"),
            ("input_layernorm.weight", "self_attention.linear_qkv.layer_norm_weight")
            if engine and not latent
            else ("input_layernorm", "input_layernorm"),
            ("model.embed_tokens", "embedding.word_embeddings"),
            ("model.norm", "decoder.final_layernorm"),
            ("lm_head", "output_layer"),
        )
        made[tail + rest if layer else rest] = tensor
    made["decoder.layers.0.self_attention.linear_proj._extra_state"] = torch.zeros(3)
    return _stacked(made) if layout == "stacked" else made


def _expert(where: str, layout: str) -> tuple[str, str]:
    """The part of a name up to a matrix of an MLP, and its end."""
    where = where.replace("block_sparse_moe", "mlp")
    if found := re.fullmatch(r"mlp\.experts\.(\d+)\.", where):
        if layout == "rank":
            return "mlp.experts.", found[1]
        inner = "local_experts" if layout == "local" else "experts"
        return f"mlp.experts.{inner}.{found[1]}.", ""
    return where, ""


def _halves(place: tuple[str, str], gate: Any, up: Any, layout: str) -> State:
    torch: Any = importlib.import_module("torch")
    where, end = place
    if layout == "single":
        return {f"{where}linear_fc1.weight_w": gate, f"{where}linear_fc1.weight_v": up}
    return {f"{where}linear_fc1.weight{end}": torch.cat([gate, up])}


def _stacked(state: State) -> State:
    """Experts in one tensor; and layers, if all have the same."""
    torch: Any = importlib.import_module("torch")
    for hole in (r"experts\.experts\.(\d+)\.", r"decoder\.layers\.(\d+)\."):
        found: dict[str, dict[int, Any]] = {}
        for name in [name for name in state if re.search(hole, name) and "_extra" not in name]:
            match = re.search(hole, name)
            assert match
            short = name[: match.start(1)] + name[match.end(1) + 1 :]
            found.setdefault(short, {})[int(match[1])] = name
        if len({len(each) for each in found.values()}) > 1:
            return state  # such as the first layers of DeepSeek
        for short, each in found.items():
            state[short] = torch.stack([state.pop(each[n]) for n in sorted(each)])
    return state


FORWARD: Final[Mapping[str, Callable[[State, Mapping[str, Any]], State]]] = {
    "transformers": in_memory,
    "torchtitan": torchtitan,
    "torchtitan, early": partial(torchtitan, early=True),
    "meta": meta,
    "olmo_core": olmo_core,
    "litgpt": litgpt,
    "litgpt, early": partial(litgpt, early=True),
    "gpt_neox": gpt_neox,
    "megatron": megatron,
    **{
        f"megatron, {layout}": partial(megatron, layout=layout)
        for layout in ("local", "stacked", "single")
    },
}
"""The trainers, and how each writes a model."""
