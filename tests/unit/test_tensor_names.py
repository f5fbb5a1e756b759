"""Weights by a trainer's names become those of Hugging Face, bit for bit, or are refused."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file
from tests import trainers

from coordinate_eval._text_config import TextConfig, text_config
from coordinate_eval.coordinator.inputs.checkpoints.formats import safetensors_file
from coordinate_eval.coordinator.inputs.checkpoints.formats.layouts import Box, Layout, Tensor
from coordinate_eval.coordinator.inputs.checkpoints.formats.sources import Source as TensorSource
from coordinate_eval.coordinator.inputs.checkpoints.formats.sources import (
    Stored,
    bytes_of,
    put_together,
)
from coordinate_eval.coordinator.inputs.checkpoints.names import mapping, patterns
from coordinate_eval.coordinator.inputs.checkpoints.names.patterns import Numbers
from coordinate_eval.coordinator.inputs.checkpoints.names.renamed import Renamed
from coordinate_eval.coordinator.inputs.yaml_file import Source
from coordinate_eval.errors import UserError
from coordinate_eval.records.names import Rule, TensorMapping

LLAMAS = ("llama", "mistral", "qwen2", "qwen3")
CASES = [
    *(("transformers", k) for k in ("mixtral", "qwen3_moe", "deepseek_v3", "gpt_neox")),
    *((t, k) for t in ("torchtitan", "torchtitan, early") for k in
      ("llama", "mistral", "qwen3", "qwen3_moe", "deepseek_v3", "gpt_oss")),
    *(("meta", k) for k in ("llama", "mistral", "mixtral")),
    *(("olmo_core", k) for k in ("olmo2", "llama", "qwen3")),
    *((t, k) for t in ("litgpt", "litgpt, early") for k in
      (*LLAMAS, "mixtral", "olmo2", "gpt_neox")),
    *(("litgpt", k) for k in ("gemma", "gemma2", "gemma3_text", "phi3")),
    *(("gpt_neox", k) for k in ("gpt_neox", "llama", "mistral")),
    *((t, k) for t in ("megatron", "megatron, local", "megatron, stacked", "megatron, single")
      for k in (*LLAMAS, "mixtral", "qwen3_moe", "deepseek_v3")),
]  # fmt: skip


class InMemory(TensorSource):
    """Tensors that are at hand."""

    def __init__(self, state: Mapping[str, torch.Tensor]) -> None:
        self._state = state

    @property
    def tensors(self) -> Mapping[str, Tensor]:
        return {k: Tensor(str(v.dtype)[6:], tuple(v.shape)) for k, v in self._state.items()}

    def read(self, name: str) -> torch.Tensor:
        return self._state[name].clone()

    def layout(self, name: str) -> Layout | None:
        return None


def config_of(kind: str, **other: Any) -> TextConfig:
    return text_config({**trainers.CONFIGS[kind], "model_type": kind, **other}, Path("config.json"))


def renamed(state: Mapping[str, torch.Tensor], config: TextConfig) -> Renamed:
    chosen = mapping.choose(state, config.kind)
    assert chosen is not None
    tied = config.given.get("tie_word_embeddings")
    return Renamed(InMemory(state), chosen, config, tied=tied)


def in_a_file(state: Mapping[str, torch.Tensor], folder: Path) -> Stored:
    file = folder / "model.safetensors"
    save_file({name: tensor.contiguous() for name, tensor in state.items()}, file)
    return safetensors_file.open_source([file], [])


def in_flat_parts(state: Mapping[str, torch.Tensor], folder: Path) -> Stored:
    """Tensors cut at odd places, as ZeRO keeps them."""
    layouts = {}
    for number, (name, tensor) in enumerate(state.items()):
        file = folder / f"flat-{number}"
        file.write_bytes(tensor.contiguous().numpy().tobytes())
        cut = tensor.numel() * 2 // 5
        pieces = ((0, cut), (cut, tensor.numel() - cut))
        boxes = tuple(Box(file, 4 * at, (size,), (1,), (at,)) for at, size in pieces if size)
        layouts[name] = Layout("float32", tuple(tensor.shape), boxes, flat=True)
    return Stored(layouts)


@pytest.mark.parametrize(("trainer", "kind"), CASES)
def test_weights_of_a_trainer_are_those_of_hugging_face(
    trainer: str, kind: str, tmp_path: Path
) -> None:
    config = config_of(kind)
    wanted = trainers.weights(kind)
    state = trainers.FORWARD[trainer](dict(wanted), config.given)
    chosen = mapping.choose(state, kind)
    assert chosen is not None
    whole = [fit.mapping for fit in mapping.fits(state, kind) if not fit.left_over]
    assert [each.name for each in whole][:1] == [
        trainer.partition(",")[0].replace("meta", "torchtitan")
    ]
    assert all(each.name == "transformers" for each in whole[1:]), "two mappings fit"

    for source in (InMemory(state), in_a_file(state, tmp_path), in_flat_parts(state, tmp_path)):
        found = Renamed(source, chosen, config)
        assert found.tensors == {k: Tensor("float32", tuple(v.shape)) for k, v in wanted.items()}
        for name, tensor in wanted.items():
            assert torch.equal(found.read(name), tensor), name
            parts = found.parts(name, memoryview(bytearray(1 << 10)))
            assert b"".join(map(bytes, parts)) == bytes(bytes_of(tensor)), name


def test_rows_that_stay_in_their_order_are_told_by_where_they_lie(tmp_path: Path) -> None:
    state = trainers.megatron(trainers.weights("llama"), config_of("llama").given, "stacked")
    chosen = mapping.choose(state, "llama")
    assert chosen is not None

    found = Renamed(in_a_file(state, tmp_path), chosen, config_of("llama"))

    for name, tensor in trainers.weights("llama").items():
        layout = found.layout(name)
        assert layout is not None
        assert torch.equal(put_together(layout), tensor)


def test_names_of_hugging_face_need_no_mapping() -> None:
    for kind in trainers.CONFIGS:
        assert mapping.choose(trainers.weights(kind), kind) is None


def test_names_below_wrappers_and_a_common_prefix_are_found() -> None:
    config = config_of("llama")
    state = trainers.torchtitan(trainers.weights("llama"), config.given)
    wrapped = {f"app.model._orig_mod.{name}": tensor for name, tensor in state.items()}

    assert renamed(wrapped, config).tensors == renamed(state, config).tensors


def test_a_padded_vocabulary_is_cut_and_a_tied_output_layer_left_out() -> None:
    config = config_of("llama", tie_word_embeddings=True)
    state = trainers.megatron(trainers.weights("llama"), config.given)
    name = "embedding.word_embeddings.weight"
    state[name] = torch.cat([state[name], torch.ones(32, 32)])

    found = renamed(state, config)

    assert "lm_head.weight" not in found.tensors
    wanted = trainers.weights("llama")["model.embed_tokens.weight"]
    assert torch.equal(found.read("model.embed_tokens.weight"), wanted)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        pytest.param({"add": "layers.0.attention.sinks"}, r"1 of 31 are not", id="an-unknown-name"),
        pytest.param({"kind": "gemma2"}, "not for gemma2", id="another-type-of-model"),
        pytest.param({"kind": ""}, "has no model_type. Give the model's", id="no-type-of-model"),
        pytest.param({"num_attention_heads": 3}, "of 3 heads", id="another-number-of-heads"),
        pytest.param({"vocab_size": 200}, "has 96 rows, and vocab_size is 200", id="vocabulary"),
    ],
)
def test_what_does_not_fit_is_refused_with_the_tensor(change: dict[str, Any], words: str) -> None:
    state = trainers.torchtitan(trainers.weights("llama"), config_of("llama").given)
    if "add" in change:
        state[change.pop("add")] = torch.ones(2)
    kind = change.pop("kind", "llama")
    config = config_of("llama", **change)._replace(kind=kind)

    with pytest.raises(UserError, match=words):
        renamed(state, config)


def test_gpt_neox_cuts_each_head_where_all_have_their_own_keys() -> None:
    sizes = {**trainers.CONFIGS["llama"], "model_type": "llama", "num_key_value_heads": 4}
    wanted = trainers.weights("llama") | {
        f"model.layers.{layer}.self_attn.{each}_proj.weight": torch.randn(32, 32)
        for layer in range(3)
        for each in "kv"
    }
    config = text_config(sizes, Path("config.json"))
    found = renamed(trainers.gpt_neox(dict(wanted), sizes), config)
    assert all(torch.equal(found.read(name), tensor) for name, tensor in wanted.items())


def test_halves_of_numbered_experts_and_joined_latent_projections_are_read() -> None:
    for kind in ("mixtral", "deepseek_v3"):
        config, wanted = config_of(kind), trainers.weights(kind)
        state = trainers.megatron(dict(wanted), config.given)
        for name in [name for name in state if ".experts.linear_fc1.weight" in name]:
            whole = state.pop(name)
            state[f"{name}_w"], state[f"{name}_v"] = whole.chunk(2)
        for name in [name for name in state if "linear_q_down_proj" in name]:
            other = name.replace("linear_q_down", "linear_kv_down")
            joined = torch.cat([state.pop(name), state.pop(other)])
            state[name.replace("linear_q_down", "linear_qkv_down")] = joined
        found = renamed(state, config)
        assert all(torch.equal(found.read(name), tensor) for name, tensor in wanted.items())


def test_biases_of_megatrons_mlps_and_the_joined_attention_of_olmo_core_are_read() -> None:
    config, wanted = config_of("llama"), dict(trainers.weights("llama"))
    biased = trainers.megatron(wanted, config.given)
    biased["decoder.layers.1.mlp.linear_fc1.bias"] = torch.arange(96.0)
    biased["decoder.layers.1.mlp.linear_fc2.bias"] = torch.arange(32.0)
    found = renamed(biased, config)
    for name, first, last in (("gate_proj", 0, 48), ("up_proj", 48, 96), ("down_proj", 0, 32)):
        bias = found.read(f"model.layers.1.mlp.{name}.bias")
        assert torch.equal(bias, torch.arange(float(first), float(last)))

    state = trainers.olmo_core(wanted, config.given)
    for layer in range(3):
        prefix = f"blocks.{layer}.attention.w_"
        qkv = [state.pop(f"{prefix}{each}.weight") for each in "qkv"]
        state[f"{prefix}qkv.weight"] = torch.cat(qkv)
    found = renamed(state, config)
    assert all(torch.equal(found.read(name), tensor) for name, tensor in wanted.items())


def test_a_bias_of_routing_that_the_model_lacks_is_left_out_and_told_if_it_counts() -> None:
    config = config_of("qwen3_moe")
    state = trainers.torchtitan(trainers.weights("qwen3_moe"), config.given)
    name = "layers.1.moe.expert_bias_E"
    state[name] = torch.zeros(4)
    assert renamed(state, config).tensors.keys() == trainers.weights("qwen3_moe").keys()
    assert renamed(state, config).not_zero() == []
    state[name][2] = 1e-3
    assert renamed(state, config).not_zero() == [name]


def test_a_missing_half_and_a_missing_expert_are_refused() -> None:
    state = trainers.megatron(trainers.weights("mixtral"), config_of("mixtral").given, "local")
    own = mapping.parse(
        Source(
            "names: {'a.<n>.gate': {with: ['a.<n>.up'], to: 'b.<n>.gate_up'}, "
            "'c.<e>': 'd'}", "own.yaml", Path(), "own.yaml", "mapping",
        ),
        "own",
    ).of("")  # fmt: skip
    rows = torch.ones(2, 2)

    with pytest.raises(UserError, match=r"a\.1\.gate is there without a\.<n>\.up"):
        Renamed(InMemory({"a.1.gate": rows}), own, config_of("llama"))
    with pytest.raises(UserError, match="number 1 is missing of those like c"):
        Renamed(InMemory({"c.0": rows, "c.2": rows}), own, config_of("llama"))
    del state["decoder.layers.0.mlp.experts.local_experts.3.linear_fc2.weight"]
    lacking = renamed(state, config_of("mixtral")).tensors.keys()
    assert trainers.weights("mixtral").keys() - lacking == {
        "model.layers.0.block_sparse_moe.experts.3.w2.weight"
    }


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("names: [a]", r"line 1: names must map"),
        ("names:\n  a: {from: b}", r"line 2: 'a' needs a name|line 2: a needs a name"),
        ("names:\n  a: {to: [b, c]}", "line 2: 2 names"),
        ("names:\n  a: {to: b, rotary: [1, 2]}", "line 2: rotary must be one number"),
        ("names:\n  a: {to: b, zero: true}", "line 2: what is zero is left out"),
        ("names:\n  a: {to: b, turn: 1}", "line 2: unknown key 'turn'"),
        ("names:\n  a: b.<x|y>", "has \\* or words"),
        ("names:\n  a.<n>: {to: [b, c], parts: [1, 1]}", "cannot be stacked and cut"),
        ("names:\n  a*b*c*: d", "line 2: .* has more than 2 \\*"),
        ("names: {a: b}\nleft_out: ['***']", "line 2: .* has more than 2 \\*"),
        ("names: {a: b}\nnames_of: 3", "names_of must map"),
        ("- a", "must be a mapping"),
    ],
)
def test_a_malformed_mapping_is_refused_with_its_line(text: str, words: str) -> None:
    with pytest.raises(UserError, match=words):
        mapping.parse(Source(text, "own.yaml", Path(), "own.yaml", "mapping"), "own")


@pytest.mark.parametrize(
    "number", ["import os", "f()", "heads / 3", "nothing", "2 ** 9 ** 9", "10**99", "a" * 400]
)
def test_numbers_are_computed_and_nothing_is_run(number: str) -> None:
    with pytest.raises(UserError):
        Numbers(config_of("llama"), "own")(number)


@given(
    groups=st.integers(1, 4),
    parts=st.lists(st.integers(1, 3), min_size=1, max_size=4),
    unit=st.integers(1, 3),
    columns=st.integers(1, 3),
)
def test_parts_that_are_cut_apart_and_put_together_again_are_as_before(
    groups: int, parts: list[int], unit: int, columns: int
) -> None:
    whole = torch.arange(groups * sum(parts) * unit * columns).reshape(-1, columns)
    names = [f"part{number}" for number in range(len(parts))]
    apart = [Rule(source=["w"], to=names, parts=list(map(str, parts)), groups=str(groups))]
    together = [Rule(source=names, to=["w"], into=str(groups))]
    config = config_of("llama")

    cut = Renamed(InMemory({"w": whole}), TensorMapping(trainer="one", rules=apart), config)
    again = Renamed(cut, TensorMapping(trainer="other", rules=together), config)

    assert torch.equal(again.read("w"), whole)


def test_of_a_long_prefix_that_all_names_share_a_few_parts_are_left_out() -> None:
    rules = [Rule(source=["w.<n>"], to=["v.<n>"])]
    for depth, left in ((3, 0), (200, 2)):
        names = [f"{'a.' * depth}w.{n}" for n in range(2)]
        assert len(patterns.match(names, rules).left_over) == left
