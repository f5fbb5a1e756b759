"""Checkpoints of PyTorch that claim to hold tensors of any size."""

import collections
import io
import pickle
import zipfile
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest


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
