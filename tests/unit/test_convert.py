"""Sources become safetensors with the same weights, whatever is in the way."""

import json
import shutil
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import pytest
from tests.tiny import tiny_model

from coordinate_eval.coordinator.inputs.checkpoints.checkpoint import inspect
from coordinate_eval.coordinator.inputs.checkpoints.formats import torch_file
from coordinate_eval.coordinator.workers.on_node import convert
from coordinate_eval.errors import UserError

torch = pytest.importorskip("torch")
safetensors_torch = pytest.importorskip("safetensors.torch")


def write(source: Path, target: Path, **options: Any) -> list[int]:
    """Convert a file of torch.save; what was reported."""
    done: list[int] = []
    target.mkdir(exist_ok=True)
    convert.write(torch_file.open_source([source], []), target, done.append, **options)
    return done


def converted(source: Path, target: Path, **options: Any) -> dict[str, Any]:
    """Return all tensors in the folder of a conversion."""
    done = write(source, target, **options)
    tensors: dict[str, Any] = {}
    for file in sorted(target.glob("*.safetensors")):
        tensors |= safetensors_torch.load_file(file)
    assert done == sorted(done)
    assert done[-1] == sum(tensor.nbytes for tensor in tensors.values())
    assert list(target.glob("*.part")) == []
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
        write(source, tmp_path / "to")


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
    (tmp_path / "to").mkdir()
    (tmp_path / "to" / "config.json").write_text(json.dumps(config))
    assert ("lm_head.weight" in converted(source, tmp_path / "to")) == kept


def test_an_output_layer_of_its_own_stays(tmp_path: Path) -> None:
    tensors = {"embed.weight": torch.zeros(4, 2), "lm_head.weight": torch.ones(4, 2)}
    (tmp_path / "to").mkdir()
    (tmp_path / "to" / "config.json").write_text('{"tie_word_embeddings": true}')
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


@pytest.mark.parametrize("part", [0.0, 0.3, 0.6, 0.99])
def test_a_torn_file_is_refused(tmp_path: Path, part: float) -> None:
    source = saved(tmp_path, state())
    whole = source.read_bytes()
    source.write_bytes(whole[: int(len(whole) * part)])
    with pytest.raises(UserError, match=r"x\.pt"):
        write(source, tmp_path / "to")


def test_what_was_killed_goes_on_with_the_files_that_are_whole(tmp_path: Path) -> None:
    tensors = {f"w{n}": torch.full((n + 1, 10), float(n)) for n in range(6)}
    source = saved(tmp_path, tensors)
    to = tmp_path / "to"
    write(source, to, shard_bytes=100)
    (to / "model.safetensors.index.json").unlink()
    names = sorted(to.iterdir())
    for file in names[2:]:
        file.rename(f"{file}.part")
    (to / f"{names[3].name}.part").write_bytes(b"torn")
    before = [file.stat().st_mtime_ns for file in names[:2]]

    assert equal(converted(source, to, shard_bytes=100), tensors)

    assert [file.stat().st_mtime_ns for file in names[:2]] == before


@pytest.mark.parametrize("needed", [{"a.weight"}, {"b.weight", "c"}])
def test_only_what_is_needed_is_written(tmp_path: Path, needed: Collection[str]) -> None:
    tensors = {name: tensor for name, tensor in state().items() if name in needed}
    assert equal(converted(saved(tmp_path, state()), tmp_path / "to", needed=needed), tensors)


def test_tensors_of_all_sizes_and_orders_are_written_at_once(tmp_path: Path) -> None:
    torch.manual_seed(0)
    tensors = {
        f"w{n}": turned if n % 3 else turned.contiguous()
        for n in range(60)
        for turned in [
            torch.randn(n + 1, 2000 + n).to(torch.bfloat16 if n % 3 else torch.float64).T
        ]
    }
    source = saved(tmp_path, tensors)
    assert equal(converted(source, tmp_path / "to", shard_bytes=500_000), tensors)


def test_sparse_tensors_are_refused(tmp_path: Path) -> None:
    source = saved(tmp_path, {"a": torch.eye(3).to_sparse()})
    with pytest.raises(UserError):
        write(source, tmp_path / "to")


def test_a_file_with_numbers_that_are_not_finite_is_never_finished(tmp_path: Path) -> None:
    tensors = {f"w{n}": torch.full((400, 700), float(n)) for n in range(4)}
    tensors["w2"][399, 699], tensors["w2"][0, 0] = torch.nan, -torch.inf
    source, to = saved(tmp_path, tensors), tmp_path / "to"
    to.mkdir()

    for _ in range(2):  # the second time with the files that are whole
        found = convert.write(
            torch_file.open_source([source], []), to, lambda _: None, shard_bytes=1_200_000
        )
        assert found == [("w2", 1, 1)]
        assert sorted(file.suffix for file in to.iterdir()) == [".part", *[".safetensors"] * 3]
