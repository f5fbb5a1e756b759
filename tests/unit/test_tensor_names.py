"""Weights by a trainer's names become those of Hugging Face, bit for bit, or are refused."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from tests import trainers

from coordinate_eval._text_config import TextConfig, text_config
from coordinate_eval.coordinator.inputs.checkpoints.names import mapping
from coordinate_eval.coordinator.inputs.checkpoints.names.renamed import Renamed
from coordinate_eval.coordinator.inputs.checkpoints.sources import Layout, Tensor
from coordinate_eval.errors import UserError

LLAMAS = ("llama", "mistral", "qwen2", "qwen3")
CASES = [
    *((t, k) for t in ("torchtitan", "torchtitan, early") for k in
      ("llama", "mistral", "qwen3", "qwen3_moe", "deepseek_v3")),
    *(("meta", k) for k in ("llama", "mistral", "mixtral")),
    *(("olmo_core", k) for k in ("olmo2", "llama", "qwen3")),
    *((t, k) for t in ("litgpt", "litgpt, early") for k in (*LLAMAS, "mixtral", "olmo2", "gpt_neox")),
    ("gpt_neox", "gpt_neox"),
    *((t, k) for t in ("megatron", "megatron, local", "megatron, stacked", "megatron, single")
      for k in (*LLAMAS, "mixtral", "qwen3_moe", "deepseek_v3")),
]  # fmt: skip


class InMemory:
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


def config_of(kind: str, **other: Any) -> TextConfig:  # noqa: ANN401 - values of a config
    return text_config({**trainers.CONFIGS[kind], "model_type": kind, **other}, Path("config.json"))


def renamed(state: Mapping[str, torch.Tensor], config: TextConfig) -> Renamed:
    chosen = mapping.choose(state, config.kind)
    assert chosen is not None
    return Renamed(InMemory(state), chosen, config)


@pytest.mark.parametrize(("trainer", "kind"), CASES)
def test_weights_of_a_trainer_are_those_of_hugging_face(trainer: str, kind: str) -> None:
    config = config_of(kind)
    wanted = trainers.weights(kind)
    state = trainers.FORWARD[trainer](dict(wanted), config.given)

    found = renamed(state, config)

    assert found.tensors == {k: Tensor("float32", tuple(v.shape)) for k, v in wanted.items()}
    for name, tensor in wanted.items():
        assert torch.equal(found.read(name), tensor), name
