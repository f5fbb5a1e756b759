"""Checkpoints of torch.distributed.checkpoint are read without torch's reader, and run nothing."""

import collections
import json
import os
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.checkpoints import refused, same, sides
from tests.mutations import mutated_bytes
from tests.random_examples import examples

from coordinate_eval.coordinator.inputs.checkpoints import reading
from coordinate_eval.coordinator.inputs.checkpoints.checkpoint import inspect
from coordinate_eval.coordinator.inputs.checkpoints.formats import dcp_metadata
from coordinate_eval.coordinator.workers.on_node import convert
from coordinate_eval.errors import UserError
from coordinate_eval.records import CheckpointFormat

torch = pytest.importorskip("torch")
dcp = pytest.importorskip("torch.distributed.checkpoint")


def state() -> dict[str, Any]:
    torch.manual_seed(0)
    return {
        "a.weight": torch.randn(6, 4),
        "b.weight": torch.randn(3, 5).to(torch.bfloat16).T,
        "c": torch.tensor(7),
    }


def saved(folder: Path, content: dict[str, Any]) -> Path:
    sides(folder)
    dcp.save(content, checkpoint_id=folder, no_dist=True)
    return folder


def tensors(folder: Path) -> dict[str, Any]:
    source = reading.source(inspect(folder))
    return {name: source.read(name) for name in source.tensors}


@pytest.mark.parametrize(
    "wrap",
    [
        lambda state: state,
        lambda state: {"model": state, "optimizer": {"state": {"a": torch.zeros(5)}}},
        lambda state: {"app": {"model": state, "optim": {"exp_avg": torch.zeros(9)}}},
        lambda state: {"training": {"model": state, "optim": {"exp_avg": torch.zeros(9)}}},
        lambda state: {"state": {"model": state, "rank_zero_seed": 17}, "rng": [torch.zeros(3)]},
        lambda state: state | {"optimizer": {"x": torch.zeros(5)}, "train_state": {"step": 3}},
        lambda state: {"state_dict": {f"_orig_mod.{name}": t for name, t in state.items()}},
        lambda state: {"model": {f"module.{name}": t for name, t in state.items()}},
    ],
)
def test_the_model_is_found(tmp_path: Path, wrap: Callable[[Any], Any]) -> None:
    folder = saved(tmp_path / "step-100", wrap(state()))
    found = inspect(folder)
    assert (found.format, found.parameters) == (CheckpointFormat.DCP, 40)
    same(folder, state())


@pytest.mark.parametrize("attribute", ["net", "net.base"])
def test_the_attribute_that_has_the_model_is_no_part_of_its_names(
    tmp_path: Path, attribute: str
) -> None:
    names = {"model.layers.0.weight": torch.zeros(3), "lm_head.weight": torch.ones(3)}
    names |= {f"model.layers.{number}.weight": torch.zeros(3) for number in range(1, 20)}
    wrapped = {f"{attribute}.{name}": tensor for name, tensor in names.items()}
    wrapped["seen"] = torch.zeros((), dtype=torch.int64)
    same(saved(tmp_path, {"model": wrapped}), names)


def test_a_rank_may_have_had_nothing_to_save(tmp_path: Path) -> None:
    folder = saved(tmp_path / "step-100", {"model": state()})
    (folder / "__1_0.distcp").touch()
    assert inspect(folder).parameters == 40

    (folder / "__0_0.distcp").write_bytes(b"")
    refused(folder, "__0_0.distcp has 0 of the")


@pytest.mark.parametrize("inside", ["pytorch_model_fsdp_0", "model_and_optim"])
def test_a_folder_inside_is_found(tmp_path: Path, inside: str) -> None:
    folder = sides(tmp_path / "checkpoint-1000")
    dcp.save({"model": state()}, checkpoint_id=folder / inside, no_dist=True)
    (folder / "optimizer_0").mkdir()
    same(folder, state())
    same(folder / inside, state())


def test_parts_of_one_shape_may_lie_in_their_files_otherwise(tmp_path: Path) -> None:
    content = {name: torch.randn(5, 3) for name in "ac"} | {"b": torch.randn(3, 5).T}
    same(saved(tmp_path / "step-1", content), content)


def test_it_is_written_as_safetensors(tmp_path: Path) -> None:
    folder = saved(tmp_path / "step-1", {"model": state(), "optimizer": {"x": torch.zeros(99)}})
    found = inspect(folder)
    to = sides(tmp_path / "to")
    convert.write(reading.source(found), to, lambda _: None)
    same(to / "model.safetensors", state())
    assert found.bytes == sum(tensor.nbytes for tensor in state().values())


def test_several_files_of_a_rank(tmp_path: Path) -> None:
    sides(tmp_path)
    writer = dcp.FileSystemWriter(tmp_path, single_file_per_rank=False, thread_count=2)
    dcp.save({"model": state()}, storage_writer=writer, no_dist=True)
    assert len(inspect(tmp_path).weights) == 4
    same(tmp_path, state())


def test_shards_of_safetensors_without_an_index(tmp_path: Path) -> None:
    save_file = pytest.importorskip("safetensors.torch").save_file
    sides(tmp_path)
    whole = torch.randn(6, 4)
    for rank, part in enumerate(whole.split(4)):
        where = json.dumps({"a.weight": {"saved_offsets": [4 * rank, 0]}})
        file = tmp_path / f"shard-{rank + 1:05}-model-00001-of-00001.safetensors"
        save_file({"a.weight": part}, file, metadata={"DCP_SHARDING_INFO": where})
    same(tmp_path, {"a.weight": whole})
    (tmp_path / "shard-00001-model-00001-of-00001.safetensors").unlink()
    refused(tmp_path, "a.weight", "a file of a rank is missing")


def test_torch_files_that_trainers_leave_beside_parts_are_no_weights(tmp_path: Path) -> None:
    folder = saved(tmp_path / "step-1", {"model": state()})
    torch.save({"a": torch.zeros(3)}, folder / "ema.pt")
    torch.save({"state": 1}, folder / "train_dataloader_dprank000.pt")
    same(folder, state())
    inside = sides(tmp_path / "checkpoint-1000")
    dcp.save({"model": state()}, checkpoint_id=inside / "pytorch_model_fsdp_0", no_dist=True)
    for name in ("sampler.bin", "dl_state_dict.bin", "ema_model.pt"):
        torch.save({"a": torch.zeros(3)}, inside / name)
    same(inside, state())


# -- what is not whole ---------------------------------------------------------------------------


def test_files_of_ranks_that_are_missing_or_cut_are_named(tmp_path: Path) -> None:
    folder = saved(tmp_path / "step-1", {"model": state()})
    (file,) = folder.glob("*.distcp")
    content = file.read_bytes()
    file.write_bytes(content[:-1])
    refused(folder, file.name, "cut short")
    file.unlink()
    refused(folder, "is incomplete", file.name)
    file.write_bytes(content)
    (folder / ".metadata").rename(folder / ".metadata.tmp")
    refused(folder, "written last", "try again afterwards")


def test_a_file_that_was_cut_behind_the_model_was_being_written(tmp_path: Path) -> None:
    content = {"model": state(), "optimizer": {"exp_avg": torch.zeros(5000)}}
    file = saved(tmp_path / "step-1", content) / "__0_0.distcp"
    os.truncate(file, file.stat().st_size - 10_000)
    refused(file.parent, file.name, "cut short")


def test_parts_of_another_save_are_refused(tmp_path: Path) -> None:
    one, two = (
        saved(tmp_path / name, {"model": {"a": torch.zeros(*shape)}})
        for name, shape in (("one", (4, 6)), ("two", (6, 4)))
    )
    shutil.copy(two / "__0_0.distcp", one)
    with pytest.raises(UserError, match="of another save"):
        tensors(one)


def optimized(folder: Path, steps: list[float]) -> list[Path]:
    """The files of a model whose optimizer has made so many steps of each parameter."""
    sides(folder)
    counters = {f"w{n}": {"step": torch.tensor(step)} for n, step in enumerate(steps)}
    content = {"model": state(), "optimizer": {"state": counters}}
    dcp.save(content, storage_writer=dcp.FileSystemWriter(folder, thread_count=4), no_dist=True)
    return sorted(folder.glob("*.distcp"))


def test_files_of_two_steps_are_told_by_the_optimizer(tmp_path: Path) -> None:
    one, other = (optimized(tmp_path / f"step-{n}", [float(n)] * 12) for n in (100, 200))
    assert len(one) == len(other) == 4
    inspect(tmp_path / "step-200")
    shutil.copy(one[3], other[3])
    refused(tmp_path / "step-200", "mixes files of two steps", "100", "200")


def test_parameters_that_were_trained_later_are_no_other_step(tmp_path: Path) -> None:
    optimized(tmp_path / "step-200", [200.0, 200.0, 50.0] * 4)
    inspect(tmp_path / "step-200")


def test_objects_that_ranks_saved_as_a_whole_are_told(tmp_path: Path) -> None:
    planner = dcp.DefaultSavePlanner(flatten_state_dict=False)
    dcp.save({"model": state()}, checkpoint_id=sides(tmp_path), planner=planner, no_dist=True)
    refused(tmp_path, "lists no tensors", "flatten_state_dict=False")


# -- what is hostile -----------------------------------------------------------------------------


class Runs:
    def __init__(self, command: str) -> None:
        self.command = command

    def __reduce__(self) -> Any:
        return os.system, (self.command,)


def test_nothing_in_the_metadata_runs(tmp_path: Path) -> None:
    folder = saved(tmp_path / "step-1", {"model": state()})
    metadata = pickle.loads((folder / ".metadata").read_bytes())
    metadata.planner_data["x"] = Runs(f"touch {tmp_path / 'proof'}")
    (folder / ".metadata").write_bytes(pickle.dumps(metadata))
    refused(folder, ".metadata would run code", "nothing was loaded")
    assert not (tmp_path / "proof").exists()


HOSTILE: dict[str, Callable[[Any, Any], None]] = {
    "elsewhere": lambda info, _: setattr(info, "relative_path", "../../secret"),
    "absolute": lambda info, _: setattr(info, "relative_path", "/etc/passwd"),
    "in a folder": lambda info, _: setattr(info, "relative_path", "linked/__0_0.distcp"),
    "not of a rank": lambda info, _: setattr(info, "relative_path", "config.json"),
    "far": lambda info, _: setattr(info, "offset", 1 << 60),
    "negative": lambda info, _: setattr(info, "offset", -4096),
    "longer": lambda info, _: setattr(info, "length", 1 << 62),
    "no number": lambda info, _: setattr(info, "length", "x"),
    "transformed": lambda info, _: setattr(info, "transform_descriptors", ["stream.zstd/1"]),
    "larger than its parts": lambda _, tensor: setattr(tensor, "size", torch.Size([1 << 40])),
    "part outside": lambda _, tensor: setattr(tensor.chunks[0], "offsets", torch.Size([3, 3])),
    "no part": lambda _, tensor: setattr(tensor, "chunks", []),
    "dimensions": lambda _, tensor: setattr(tensor.chunks[0], "sizes", torch.Size([24])),
    "a part twice": lambda _, tensor: tensor.chunks.append(
        type(tensor.chunks[0])(torch.Size([1, 0]), torch.Size([1, 4]))
    ),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_hostile_places_are_refused(tmp_path: Path, kind: str) -> None:
    folder = saved(tmp_path / "step-1", {"model": {"a": torch.zeros(6, 4)}})
    metadata = pickle.loads((folder / ".metadata").read_bytes())
    HOSTILE[kind](
        next(iter(metadata.storage_data.values())), metadata.state_dict_metadata["model.a"]
    )
    (folder / ".metadata").write_bytes(pickle.dumps(metadata))
    refused(folder, str(folder))


def nested(levels: int = 60) -> tuple[Any, ...]:
    """Return tuples that take time to hash or print that doubles at each level."""
    value: tuple[Any, ...] = ("x",)
    for _ in range(levels):
        value = (value, value)
    return value


def deep_name(metadata: Any) -> None:
    index, info = next(iter(metadata.storage_data.items()))
    saved = type(index)(index.fqn, index.offset)
    metadata.storage_data = {saved: info}
    object.__setattr__(saved, "fqn", nested())


@pytest.mark.parametrize(
    "change",
    [
        deep_name,
        lambda metadata: metadata.planner_data.update({"model.a": ("model", nested())}),
        lambda metadata: metadata.planner_data.update({"model.a": ("model", "a" * 5000)}),
        lambda metadata: metadata.planner_data.update({"model.a": ("model", 10**5000)}),
        lambda metadata: metadata.planner_data.update({"model.a": ("a",) * 100}),
    ],
)
def test_names_that_take_long_are_refused(tmp_path: Path, change: Callable[[Any], None]) -> None:
    folder = saved(tmp_path / "step-1", {"model": {"a": torch.zeros(6, 4)}})
    metadata = pickle.loads((folder / ".metadata").read_bytes())
    change(metadata)
    (folder / ".metadata").write_bytes(pickle.dumps(metadata))
    refused(folder, ".metadata is damaged", "name")


def test_metadata_of_too_many_steps_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = saved(tmp_path / "step-1", {"model": {"a": torch.zeros(6, 4)}})
    monkeypatch.setattr(dcp_metadata, "_MOST_OPCODES", 50)
    refused(folder, ".metadata holds more than tensors")


@pytest.fixture(scope="module")
def example(tmp_path_factory: pytest.TempPathFactory) -> Path:
    content = {"model": state(), "optimizer": {"state": collections.OrderedDict(x=torch.zeros(2))}}
    return saved(tmp_path_factory.mktemp("dcp"), content)


@examples(150)
@given(random=st.randoms(use_true_random=False))
def test_random_metadata(
    example: Path, tmp_path_factory: pytest.TempPathFactory, random: Random
) -> None:
    folder = tmp_path_factory.mktemp("random")
    shutil.copytree(example, folder, dirs_exist_ok=True)
    content = (example / ".metadata").read_bytes()
    (folder / ".metadata").write_bytes(mutated_bytes(random, content))
    try:
        tensors(folder)
    except UserError as error:
        assert str(error)
