"""Folders of checkpoints without weights, of PyTorch's files, and of files that claim anything."""

import collections
import io
import json
import pickle
import zipfile
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

from coordinate_eval.coordinator.inputs.checkpoints import reading
from coordinate_eval.coordinator.inputs.checkpoints.checkpoint import inspect
from coordinate_eval.errors import UserError

CONFIG = {
    "model_type": "made_up",
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "hidden_size": 64,
    "max_position_embeddings": 512,
}


def described(shape: tuple[int, ...], stride: tuple[int, ...], cells: int = 4) -> bytes:
    """A pickle of one tensor of this shape over a storage of `cells` float32."""
    torch = pytest.importorskip("torch")

    class Tensor:
        def __reduce__(self) -> Any:
            return torch._utils._rebuild_tensor_v2, (
                Storage(), 0, shape, stride, False, collections.OrderedDict(),
            )  # fmt: skip

    class Storage:
        pass

    class Pickler(pickle._Pickler):
        def persistent_id(self, value: object) -> Any:
            if isinstance(value, Storage):
                return "storage", torch.FloatStorage, "0", "cpu", cells
            return None

    made = io.BytesIO()
    Pickler(made, protocol=2).dump({"w": Tensor()})
    return made.getvalue()


def archive(
    path: Path,
    pickled: bytes,
    cells: int = 4,
    *,
    compressed: bool = False,
    more: Mapping[str, bytes] = MappingProxyType({}),
) -> Path:
    """A checkpoint file with this pickle, and a storage of `cells` float32."""
    kind = zipfile.ZIP_DEFLATED if compressed else zipfile.ZIP_STORED
    with zipfile.ZipFile(path, "w", kind) as made:
        made.writestr("x/data.pkl", pickled)
        made.writestr("x/byteorder", b"little")
        for name, content in more.items():
            made.writestr(name, content)
        made.writestr("x/data/0", bytes(4 * cells))
        made.writestr("x/version", b"3\n")
    return path


def sides(folder: Path, **config: Any) -> Path:
    """Write what lies beside weights, a configuration and a tokenizer; the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(CONFIG | config))
    (folder / "tokenizer.json").write_text('{"vocab": {}}')
    return folder


def refused(path: Path, *hints: str, **flags: Path) -> None:
    """Check that a checkpoint is refused in words that have these hints."""
    with pytest.raises(UserError) as caught:
        inspect(path, **flags)
    for hint in hints:
        assert hint in str(caught.value)
    assert len(str(caught.value)) < 1500


def same(path: Path, expected: Mapping[str, Any]) -> None:
    """Check that a checkpoint's tensors are these, bit for bit."""
    torch = pytest.importorskip("torch")
    read = reading.source(inspect(path))
    assert read.tensors.keys() == expected.keys()
    for name, tensor in expected.items():
        assert torch.equal(read.read(name), tensor), name
        assert read.tensors[name].dtype == str(tensor.dtype).removeprefix("torch.")


def of_torch(folder: Path) -> Path:
    """Write a checkpoint of 26 numbers, some of them shared, as `torch.save` does; the folder."""
    torch = pytest.importorskip("torch")
    sides(folder)
    shared = torch.zeros(10, dtype=torch.bfloat16)
    tensors = {"a": shared, "b": shared, "c": torch.zeros(4), "d": torch.zeros(6, 2).T}
    torch.save(tensors, folder / "model.pt")
    return folder
