"""Tensors that lie in parts of files are put together, and nothing else is taken for one."""

import itertools
import math
import struct
import tracemalloc
from pathlib import Path

import pytest
import torch

from coordinate_eval.coordinator.inputs.checkpoints.formats.layouts import Box, Layout
from coordinate_eval.coordinator.inputs.checkpoints.formats.sources import Stored
from coordinate_eval.errors import UserError


def test_parts_of_files_become_one_tensor(tmp_path: Path) -> None:
    whole = torch.arange(24, dtype=torch.float32).reshape(4, 6)
    left, right = tmp_path / "left", tmp_path / "right"
    left.write_bytes(b"head" + whole[:, :2].contiguous().numpy().tobytes())
    right.write_bytes(whole[:, 2:].T.contiguous().numpy().tobytes())  # stored transposed
    boxes = (
        Box(left, 4, (4, 2), (2, 1), (0, 0)),
        Box(right, 0, (4, 4), (1, 4), (0, 2)),
    )

    source = Stored({"w": Layout("float32", (4, 6), boxes)})

    assert torch.equal(source.read("w"), whole)


def test_flat_parts_are_put_together_before_they_get_a_shape(tmp_path: Path) -> None:
    whole = torch.arange(12, dtype=torch.bfloat16).reshape(3, 4)
    file = tmp_path / "file"
    file.write_bytes(whole.view(torch.int16).numpy().tobytes())
    boxes = (Box(file, 0, (5,), (1,), (0,)), Box(file, 10, (7,), (1,), (5,)))

    assert torch.equal(Stored({"w": Layout("bfloat16", (3, 4), boxes, flat=True)}).read("w"), whole)


@pytest.mark.parametrize("room", [4, 28, 900, 40_000, 1 << 20])
@pytest.mark.parametrize("shape", [(150, 260), (3, 40, 130), (2, 3, 2, 30), (700,)], ids=str)
def test_a_tensor_comes_in_parts_of_any_size(
    tmp_path: Path, shape: tuple[int, ...], room: int
) -> None:
    whole = torch.arange(math.prod(shape), dtype=torch.float32).reshape(shape)
    by_rows, right = (half.contiguous() for half in whole.tensor_split(2, -1))
    by_columns = right.transpose(0, -1).contiguous()
    file = tmp_path / "file"
    file.write_bytes(by_rows.numpy().tobytes() + by_columns.numpy().tobytes())
    strides = by_columns.transpose(0, -1).stride()
    middle = (*(0 for _ in shape[1:]), by_rows.shape[-1])
    boxes = (
        Box(file, 0, tuple(by_rows.shape), by_rows.stride(), (0,) * len(shape)),
        Box(file, by_rows.nbytes, tuple(right.shape), strides, middle),
    )
    source = Stored({"w": Layout("float32", shape, boxes)})

    parts = [bytes(part) for part in source.parts("w", memoryview(bytearray(room)))]

    assert b"".join(parts) == whole.numpy().tobytes()
    assert max(map(len, parts)) <= room
    assert torch.equal(source.read("w"), whole)


def test_tensors_of_columns_come_in_turns(tmp_path: Path) -> None:
    tensors = [torch.randn(40, 30), torch.randn(50, 30), torch.randn(20, 30)]
    layouts = {}
    for number, each in enumerate(tensors):
        file = tmp_path / f"{number}"
        file.write_bytes(each.T.contiguous().numpy().tobytes())
        box = Box(file, 0, tuple(each.shape), (1, len(each)), (0, 0))
        layouts[f"{number}"] = Layout("float32", tuple(each.shape), (box,))
    source = Stored(layouts)

    for _ in range(2):  # the second time in memory of the first
        parts = [source.parts(name, memoryview(bytearray(600))) for name in layouts]
        found = zip(*itertools.zip_longest(*(map(bytes, part) for part in parts)), strict=True)
        for tensor, some in zip(tensors, found, strict=True):
            assert b"".join(filter(None, some)) == tensor.numpy().tobytes()


@pytest.mark.parametrize(
    "places",
    [
        pytest.param([(0, 2)], id="a-hole"),
        pytest.param([(0, 3), (2, 1)], id="twice-and-a-hole"),
        pytest.param([(0, 2), (2, 3)], id="beyond"),
    ],
)
def test_parts_that_are_not_the_tensor_are_refused(
    tmp_path: Path, places: list[tuple[int, int]]
) -> None:
    boxes = tuple(Box(tmp_path / "f", 0, (length,), (1,), (at,)) for at, length in places)

    with pytest.raises(UserError, match=r"w"):
        Stored({"w": Layout("float32", (4,), boxes)})


def test_parts_that_cross_are_told_from_a_whole_tensor(tmp_path: Path) -> None:
    columns = tuple(Box(tmp_path / "f", 0, (2, 1), (1, 1), (0, n)) for n in range(2000))
    Stored({"w": Layout("float32", (2, 2000), columns)})

    twice = (*columns[:-1], columns[7])  # as many elements, one part twice
    with pytest.raises(UserError, match="or some twice"):
        Stored({"w": Layout("float32", (2, 2000), twice)})


def test_a_file_that_was_cut_is_named(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(bytes(8))
    source = Stored({"w": Layout("float32", (4,), (Box(file, 0, (4,), (1,), (0,)),))})

    with pytest.raises(UserError, match=r"file was cut short"):
        source.read("w")


@pytest.mark.parametrize("turned", [False, True], ids=["rows", "columns"])
def test_a_sliver_of_a_large_storage_is_read_in_little_memory(tmp_path: Path, turned: bool) -> None:
    file, rows, columns = tmp_path / "file", 1 << 14, 1 << 12
    with file.open("wb") as opened:
        opened.truncate(2 * rows * columns)
        for row in range(rows):  # numbers in the first two columns, and holes
            opened.seek(2 * row * columns)
            opened.write(struct.pack("<HH", row, row + 1))
    shape, strides = (rows, 2), (columns, 1)
    expected = [(row, row + 1) for row in range(rows)]
    if turned:
        shape, strides, expected = shape[::-1], strides[::-1], [*zip(*expected, strict=True)]
    box = Box(file, 0, shape, strides, (0, 0))
    source = Stored({"w": Layout("uint16", shape, (box,))})

    tracemalloc.start()
    try:
        found = b"".join(map(bytes, source.parts("w", memoryview(bytearray(1 << 14)))))
        assert tracemalloc.get_traced_memory()[1] < 10 << 20
    finally:
        tracemalloc.stop()

    assert found == b"".join(struct.pack(f"<{shape[1]}H", *row) for row in expected)
    assert source.held("w") == (4 * rows if turned else 0)
