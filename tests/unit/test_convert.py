"""State dicts become safetensors with the same weights, and never run what they hold."""

import json
import os
import resource
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.tiny import tiny_model

from coordinate_eval.coordinator.inputs.checkpoints.checkpoint import inspect
from coordinate_eval.coordinator.workers.on_node.convert import torch_to_safetensors
from coordinate_eval.errors import UserError

torch = pytest.importorskip("torch")
safetensors_torch = pytest.importorskip("safetensors.torch")


def converted(source: Path, target: Path, **options: Any) -> dict[str, Any]:
    """Return all tensors in the folder of a conversion."""
    done: list[int] = []
    torch_to_safetensors(source, target, done.append, **options)
    files = sorted(target.glob("*.safetensors"))
    tensors: dict[str, Any] = {}
    for file in files:
        tensors |= safetensors_torch.load_file(file)
    assert done == sorted(done)
    assert done[-1] == sum(tensor.nbytes for tensor in tensors.values())
    assert [entry for entry in target.iterdir() if entry.name.startswith(".")] == []
    return tensors


def saved(tmp_path: Path, value: object) -> Path:
    torch.save(value, tmp_path / "x.pt")
    return tmp_path / "x.pt"


def state() -> dict[str, Any]:
    return {
        "a.weight": torch.arange(12.0).reshape(3, 4),
        "b.weight": torch.arange(12, dtype=torch.bfloat16).reshape(3, 4).T,
        "c": torch.tensor(7),
    }


def equal(left: dict[str, Any], right: dict[str, Any]) -> bool:
    return left.keys() == right.keys() and all(
        left[name].dtype == right[name].dtype and torch.equal(left[name], right[name])
        for name in left
    )


@pytest.mark.parametrize("tied", [False, True])
def test_transformers_loads_the_same_model(tmp_path: Path, tied: bool) -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.AutoConfig.from_pretrained(tiny_model(), tie_word_embeddings=tied)
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config)
    original, source, target = tmp_path / "original", tmp_path / "source", tmp_path / "target"
    model.save_pretrained(original)
    for folder in (source, target):
        folder.mkdir()
        shutil.copy(original / "config.json", folder)
    torch.save({"model": model.state_dict(), "step": 3}, source / "model.pt")
    tensors = converted(source / "model.pt", target)
    assert ("lm_head.weight" in tensors) == (not tied)
    first, second = (
        transformers.AutoModelForCausalLM.from_pretrained(folder) for folder in (original, target)
    )
    assert equal(first.state_dict(), second.state_dict())
    shutil.copy(tiny_model() / "tokenizer.json", target)
    assert inspect(target).parameters == inspect(target, tokenizer=tiny_model()).parameters > 0


@pytest.mark.parametrize(
    "wrap",
    [
        lambda state: state,
        lambda state: {"model": state, "optimizer": {"state": {0: torch.zeros(5)}}},
        lambda state: {"state_dict": state, "epoch": 3},
        lambda state: {"model_state_dict": state},
        lambda state: {"module": {f"module.{name}": value for name, value in state.items()}},
        lambda state: {f"module._orig_mod.{name}": value for name, value in state.items()},
        lambda state: {f"_orig_mod.module.{name}": value for name, value in state.items()},
        lambda state: {f"_fsdp_wrapped_module.{name}": value for name, value in state.items()},
        lambda state: {
            name.replace(".", "._fsdp_wrapped_module."): value for name, value in state.items()
        },
        lambda state: state | {"extra_state": None},
        lambda state: {name: torch.nn.Parameter(v, False) for name, v in state.items()},
    ],
)
def test_finds_the_weights_and_their_names(tmp_path: Path, wrap: Callable[[Any], Any]) -> None:
    assert equal(converted(saved(tmp_path, wrap(state())), tmp_path / "to"), state())


def test_a_prefix_that_only_some_share_is_a_name(tmp_path: Path) -> None:
    tensors = {"module.a": torch.zeros(2), "b": torch.ones(2)}
    assert equal(converted(saved(tmp_path, tensors), tmp_path / "to"), tensors)


def test_names_that_become_equal_are_refused(tmp_path: Path) -> None:
    source = saved(tmp_path, {"a": torch.zeros(2), "_orig_mod.a": torch.ones(2)})
    with pytest.raises(UserError, match="wrappers"):
        torch_to_safetensors(source, tmp_path / "to", lambda _: None)


def test_shared_memory_is_written_out(tmp_path: Path) -> None:
    whole = torch.arange(20.0)
    tensors = {"whole": whole, "same": whole, "part": whole[3:9], "turned": whole.view(4, 5).T}
    assert equal(converted(saved(tmp_path, tensors), tmp_path / "to"), tensors)


@pytest.mark.parametrize(
    ("config", "kept"),
    [({"tie_word_embeddings": True}, False), ({"tie_word_embeddings": False}, True), ({}, True)],
)
def test_a_tied_output_layer_is_left_out(
    tmp_path: Path, config: dict[str, bool], kept: bool
) -> None:
    embedding = torch.zeros(4, 2)
    source = saved(tmp_path, {"model.embed_tokens.weight": embedding, "lm_head.weight": embedding})
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert ("lm_head.weight" in converted(source, tmp_path / "to")) == kept


def test_an_output_layer_of_its_own_stays(tmp_path: Path) -> None:
    tensors = {"embed.weight": torch.zeros(4, 2), "lm_head.weight": torch.ones(4, 2)}
    (tmp_path / "config.json").write_text('{"tie_word_embeddings": true}')
    assert equal(converted(saved(tmp_path, tensors), tmp_path / "to"), tensors)


def test_large_models_become_shards_with_an_index(tmp_path: Path) -> None:
    tensors = {f"w{n}": torch.full((n + 1, 10), float(n)) for n in range(6)}
    source = saved(tmp_path, tensors)
    assert equal(converted(source, tmp_path / "to", shard_bytes=100), tensors)
    for name in ("config.json", "tokenizer.json"):
        (tmp_path / "to" / name).write_text("{}")
    found = inspect(tmp_path / "to")
    assert found.parameters == sum(tensor.numel() for tensor in tensors.values())
    assert len(found.weights) == 6
    index = json.loads((tmp_path / "to" / "model.safetensors.index.json").read_text())
    assert index["metadata"]["total_size"] == 4 * found.parameters


class Runs:
    def __init__(self, command: str) -> None:
        self.command = command

    def __reduce__(self) -> Any:
        return os.system, (self.command,)


def test_code_in_a_file_never_runs(tmp_path: Path) -> None:
    proof = tmp_path / "proof"
    source = saved(tmp_path, {"a": torch.zeros(3), "b": Runs(f"touch {proof}")})
    with pytest.raises(UserError, match="would run code"):
        torch_to_safetensors(source, tmp_path / "to", lambda _: None)
    assert not proof.exists()
    assert not list((tmp_path / "to").glob("*"))


@pytest.mark.parametrize("part", [0.0, 0.3, 0.6, 0.99])
def test_a_torn_file_is_refused(tmp_path: Path, part: float) -> None:
    source = saved(tmp_path, state())
    whole = source.read_bytes()
    source.write_bytes(whole[: int(len(whole) * part)])
    with pytest.raises(UserError, match=r"x\.pt"):
        torch_to_safetensors(source, tmp_path / "to", lambda _: None)


def test_a_load_that_takes_more_memory_than_fits_the_file_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.save(state(), tmp_path / "x.pt")
    before = resource.getrlimit(resource.RLIMIT_AS)
    monkeypatch.setattr(torch, "load", lambda *_, **__: bytearray(2 << 30))
    with pytest.raises(UserError, match=r"x\.pt cannot be loaded as weights"):
        torch_to_safetensors(tmp_path / "x.pt", tmp_path / "target", lambda _: None)
    assert resource.getrlimit(resource.RLIMIT_AS) == before


def test_sparse_tensors_are_refused(tmp_path: Path) -> None:
    source = saved(tmp_path, {"a": torch.eye(3).to_sparse()})
    with pytest.raises(UserError):
        torch_to_safetensors(source, tmp_path / "to", lambda _: None)
