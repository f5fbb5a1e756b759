"""Files of `torch.save` are described from their pickles, of which nothing is run."""

import collections
import functools
import json
import os
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.checkpoints import of_torch, refused, sides

from coordinate_eval.coordinator.inputs.checkpoints.checkpoint import inspect
from coordinate_eval.coordinator.inputs.checkpoints.formats import torch_pickle
from coordinate_eval.records import CheckpointFormat

torch = pytest.importorskip("torch")


@pytest.fixture
def state(tmp_path: Path) -> Path:
    return of_torch(tmp_path / "torch")


def test_describes_a_state_dict(state: Path) -> None:
    found = inspect(state)
    file = inspect(state / "model.pt")
    assert file.path == str(state / "model.pt")
    assert file.model_copy(update={"path": found.path}) == found
    assert found.format is CheckpointFormat.TORCH
    assert found.weights == [str(state / "model.pt")]
    assert (found.parameters, found.dtype) == (26, "float32")


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float8_e4m3fn", "int8", "float64"])
def test_knows_types_and_protocols(tmp_path: Path, protocol: int, dtype: str) -> None:
    sides(tmp_path)
    tensors = collections.OrderedDict(
        a=torch.nn.Parameter(torch.zeros(3, 7), requires_grad=False).to(getattr(torch, dtype)),
        b=torch.zeros(5).to(getattr(torch, dtype)),
    )
    torch.save(tensors, tmp_path / "x.bin", pickle_protocol=protocol)
    found = inspect(tmp_path)
    assert (found.parameters, found.dtype) == (26, dtype)


@pytest.mark.parametrize(
    "wrap",
    [
        lambda state: {"model": state},
        lambda state: {"state_dict": state, "epoch": 3, "lr": 0.1, "names": ["a"], "none": None},
        lambda state: {"model": {"state_dict": state}},
        lambda state: collections.OrderedDict(model_state_dict=state, rng=torch.zeros(99)),
        lambda state: {"module": state, "optimizer": {"state": {0: {"exp": torch.zeros(99)}}}},
    ],
)
def test_counts_the_model_in_a_training_state(tmp_path: Path, wrap: Callable[[Any], Any]) -> None:
    sides(tmp_path)
    torch.save(wrap({"a": torch.zeros(8), "b": torch.zeros(2)}), tmp_path / "x.pth")
    assert inspect(tmp_path).parameters == 10


def test_ignores_what_trainers_leave_and_asks_when_unsure(state: Path) -> None:
    for name in (
        "optimizer.pt", "optim_001000_rank0.pt", "train.pt", "scheduler.pt", "rng_state_0.pth",
        "training_args.bin",
    ):  # fmt: skip
        (state / name).write_bytes(b"not read")
    assert inspect(state).weights == [str(state / "model.pt")]
    (state / "ema.pt").write_bytes(b"")
    refused(state, "'ema.pt'", "'model.pt'")


def shards(folder: Path, count: int, value: float) -> dict[str, str]:
    names = [f"pytorch_model-{n + 1:05}-of-{count:05}.bin" for n in range(count)]
    for n, name in enumerate(names):
        torch.save({f"w{n}": torch.full((4,), value)}, folder / name)
    return {f"w{n}": name for n, name in enumerate(names)}


def test_shards_that_the_index_names_count_and_without_it_one_save(tmp_path: Path) -> None:
    folder = sides(tmp_path)
    shards(folder, 2, 1.0)
    assert inspect(folder).parameters == 8
    new = shards(folder, 3, 2.0)
    refused(folder, "of several saves", "-of-00002.bin", "-of-00003.bin")
    index = folder / "pytorch_model.bin.index.json"
    index.write_text(json.dumps({"weight_map": new}))
    assert inspect(folder).weights == [str(folder / name) for name in new.values()]
    torch.save({"w0": torch.zeros(4)}, folder / "pytorch_model.bin")
    refused(folder, "of several saves", "pytorch_model.bin")
    index.unlink()
    for old in folder.glob("*-of-00002.bin"):
        old.unlink()
    refused(folder, "of several saves", "'pytorch_model.bin'", "-of-00003.bin")
    (folder / "pytorch_model.bin").unlink()
    index.write_text(json.dumps({"weight_map": new | {"x": "gone.bin"}}))
    refused(folder, "incomplete", "gone.bin")


@pytest.mark.parametrize(
    "names", [["torch.distributed.tensor DTensor"], ["torch._utils _rebuild_wrapper_subclass",
              "torch.distributed._shard.sharded_tensor.api ShardedTensor"]],
)  # fmt: skip
def test_parts_of_ranks_in_a_file_are_refused_with_a_way_out(
    tmp_path: Path, names: list[str]
) -> None:
    sides(tmp_path)
    pickled = "".join("c" + name.replace(" ", "\n") + "\n" for name in names)
    with zipfile.ZipFile(tmp_path / "x.pt", "w") as archive:
        archive.writestr("x/data.pkl", b"\x80\x02" + pickled.encode() + b".")
    refused(tmp_path, "x.pt holds parts of tensors", "full_state_dict=True")


class Runs:
    def __init__(self, function: Callable[..., Any], *arguments: object) -> None:
        self.reduced = (function, arguments)

    def __reduce__(self) -> Any:
        return self.reduced


@pytest.mark.parametrize("protocol", [0, 1, 2, 3, 4, 5])
@pytest.mark.parametrize("hidden", [False, True])
def test_never_runs_what_a_file_says(tmp_path: Path, protocol: int, hidden: bool) -> None:
    sides(tmp_path)
    proof = tmp_path / "proof"
    bomb = Runs(os.system, f"touch {proof}")
    saved = {"a": torch.zeros(3), "b": [({"x": bomb},)]} if hidden else bomb
    if protocol >= 2:
        torch.save(saved, tmp_path / "x.pt", pickle_protocol=protocol)
    else:
        with zipfile.ZipFile(tmp_path / "x.pt", "w") as archive:
            archive.writestr("x/data.pkl", pickle.dumps(bomb, protocol=protocol))
    refused(tmp_path, "would run code", "system", "nothing was loaded")
    assert not proof.exists()


@pytest.mark.parametrize(
    "pickled",
    [
        b"",
        b".",
        b"N.",
        b"garbage",
        b"(i__main__\nX\n.",
        b"(cos\nsystem\nS'true'\no.",
        b"\x80\x04\x8c\x02os\x94\x8c\x06system\x94h\x00h\x01\x93.",
        b"\x80\x04}\x93.",
        b"\x82\x01.",
        b"Pid\n.",
        b"}\x94S'model'\nh\x00s.",
        b"K\x01Q.",
        b")" + b"\x85" * 100_000 + b".",
        b"ctorch._utils\n_rebuild_tensor_v2\n(" + b")" + b"\x85" * 100_000 + b"tR.",
        b"]" * 10,
        b"ctorch._utils\n_rebuild_tensor_v2\n)" + b"2\x86" * 64 + b"R.",
        b"(X\x07\0\0\0storagectorch\nFloatStorage\n)" + b"2\x86" * 64 + b"tQ.",
        b"\x8e\xff\xff\xff\xff\xff\xff\xff\x7f",
    ],
)
def test_bad_pickles_are_refused(tmp_path: Path, pickled: bytes) -> None:
    sides(tmp_path)
    with zipfile.ZipFile(tmp_path / "x.pt", "w") as archive:
        archive.writestr("x/data.pkl", pickled)
    refused(tmp_path, "x.pt")


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_bytes_and_sets_beside_the_weights_are_taken(tmp_path: Path, protocol: int) -> None:
    sides(tmp_path)
    more = {"bytes": b"\x80\xff" * 5000, "array": bytearray(b"ab" * 5000), "seen": set(range(999))}
    saved = {"model": {"a": torch.zeros(3)}, **more, "count": collections.Counter("abc")}
    torch.save(saved, tmp_path / "x.pt", pickle_protocol=protocol)
    assert inspect(tmp_path).parameters == 3


def test_arguments_of_a_module_beside_the_weights_are_taken(tmp_path: Path) -> None:
    sides(tmp_path)
    config = pytest.importorskip("transformers").LlamaConfig(dtype=torch.bfloat16)
    adam = torch.optim.AdamW
    hyper = {"config": config, "optimizer": adam, "partial": functools.partial(adam, lr=0.1)}
    torch.save({"state_dict": {"a": torch.zeros(3)}, "hyper_parameters": hyper}, tmp_path / "x.pt")
    assert inspect(tmp_path).parameters == 3


def test_a_file_without_checksums_is_read(tmp_path: Path) -> None:
    sides(tmp_path)
    before = torch.serialization.get_crc32_options()
    torch.serialization.set_crc32_options(False)
    try:
        torch.save({"a": torch.zeros(3)}, tmp_path / "x.pt")
    finally:
        torch.serialization.set_crc32_options(before)
    assert inspect(tmp_path).parameters == 3


def test_a_pickle_of_too_many_steps_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sides(tmp_path)
    state = {f"layers.{i}.weight": torch.zeros(1) for i in range(200)}
    kept = {i: {"exp_avg": torch.zeros(1), "exp_avg_sq": torch.zeros(1)} for i in range(200)}
    torch.save({"model": state, "optimizer": {"state": kept}}, tmp_path / "x.pt")
    # As many to a tensor as leave room for tens of thousands.
    monkeypatch.setattr(torch_pickle, "_MOST_OPCODES", torch_pickle._MOST_OPCODES * 200 // 40_000)
    assert inspect(tmp_path).parameters == 200
    monkeypatch.setattr(torch_pickle, "_MOST_OPCODES", 1000)
    refused(tmp_path, "x.pt", "holds more than tensors", "Save the weights alone")


def test_other_formats_are_told_apart(tmp_path: Path) -> None:
    sides(tmp_path)
    torch.save({"a": torch.zeros(3)}, tmp_path / "x.pt", _use_new_zipfile_serialization=False)
    refused(tmp_path, "x.pt", "save it again")
    with zipfile.ZipFile(tmp_path / "x.pt", "w") as archive:
        archive.writestr("readme", "hello")
    refused(tmp_path, "not one of torch.save", "model.state_dict()")
    torch.save({"epoch": 1}, tmp_path / "x.pt")
    refused(tmp_path, "no state dict", "'epoch'")
    torch.save([torch.zeros(3)], tmp_path / "x.pt")
    refused(tmp_path, "no state dict", "it is no dict of tensors", "model.state_dict()")
