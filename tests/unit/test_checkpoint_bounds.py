"""Checkpoints that claim more than they are: refused in one message, before memory is taken."""

import json
import shutil
import struct
import tempfile
import tracemalloc
from pathlib import Path

import numpy
import pytest
from safetensors.numpy import save_file
from tests.checkpoints import archive, described

from coordinate_eval.coordinator.inputs.checkpoints.checkpoint import inspect
from coordinate_eval.coordinator.inputs.checkpoints.formats import safetensors_file, torch_file
from coordinate_eval.coordinator.workers.on_node import convert
from coordinate_eval.errors import UserError

torch = pytest.importorskip("torch")

DIGITS = 10**400


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A configuration and a tokenizer, without weights."""
    made = tmp_path / "checkpoint"
    made.mkdir()
    (made / "config.json").write_text('{"model_type": "made_up"}')
    (made / "tokenizer.json").write_text('{"vocab": {}}')
    return made


def refused(folder: Path, *words: str) -> None:
    """The folder is refused in a few words and a few MiB."""
    tracemalloc.start()
    try:
        with pytest.raises(UserError) as caught:
            inspect(folder)
        assert tracemalloc.get_traced_memory()[1] < 200 << 20
    finally:
        tracemalloc.stop()
    for word in words:
        assert word in str(caught.value)
    assert len(str(caught.value)) < 1500


# -- numbers of a configuration ------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    [
        "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "hidden_size",
        "head_dim", "max_position_embeddings", "model_max_length",
    ],
)  # fmt: skip
@pytest.mark.parametrize("number", [DIGITS, 10**19, [1, DIGITS]])
@pytest.mark.parametrize("nested", [False, True])
def test_numbers_beyond_any_model_are_refused(
    folder: Path, name: str, number: object, nested: bool
) -> None:
    save_file({"w": numpy.zeros(4)}, folder / "model.safetensors")
    config = {name: number}
    (folder / "config.json").write_text(json.dumps({"text_config": config} if nested else config))
    refused(folder, "config.json", name, "larger than")


def test_products_beyond_any_model_are_refused(folder: Path) -> None:
    save_file({"w": numpy.zeros(4)}, folder / "model.safetensors")
    names = ("num_hidden_layers", "num_attention_heads", "head_dim")
    (folder / "config.json").write_text(json.dumps(dict.fromkeys(names, 10**4)))
    refused(folder, "config.json", "keys and values")


@pytest.mark.parametrize(
    "text",
    [
        '{"num_hidden_layers": ' + "9" * 5000 + "}",
        '{"a": ' + "[" * 100_000 + "]" * 100_000 + "}",
        '{"a": ' * 100_000,
        "9" * 5000,
        '"' + "x" * 100_000,
        '{"model_type": "a", "a": "\ud800"}'.encode("utf-8", "surrogatepass").decode("latin-1"),
        "[]",
        "",
    ],
    ids=range(8),
)
def test_what_is_no_configuration_is_refused(folder: Path, text: str) -> None:
    save_file({"w": numpy.zeros(4)}, folder / "model.safetensors")
    (folder / "config.json").write_text(text)
    if text.startswith('{"model_type"'):
        assert inspect(folder).parameters == 4
    else:
        refused(folder, "config.json")


@pytest.mark.parametrize(
    "text",
    [
        '{"hidden_size": NaN, "num_hidden_layers": Infinity, "head_dim": -Infinity}',
        '{"hidden_size": -1, "num_hidden_layers": 1e999, "num_attention_heads": 0}',
        '{"hidden_size": true, "head_dim": null, "n_head": [], "text_config": [1]}',
        '{"hidden_size": 8, "hidden_size": 4}',
    ],
)
def test_what_is_no_number_does_not_count(folder: Path, text: str) -> None:
    save_file({"w": numpy.zeros(4)}, folder / "model.safetensors")
    (folder / "config.json").write_text(text.replace("{", '{"model_type": "a", ', 1))
    found = inspect(folder)
    assert (found.attention_heads, found.kv_bytes_per_token) == (1, 0)


def test_weights_that_no_disk_holds_are_refused(folder: Path) -> None:
    (folder / "model.pt").write_bytes(b"")
    most = 2**42  # the largest file that ext4 has is of 16 TiB
    header = json.dumps({"w": {"dtype": "U8", "shape": [most], "data_offsets": [0, most]}})
    path = folder / "model.safetensors"
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(header)) + header.encode())
        file.truncate(8 + len(header) + most)
    found = inspect(folder)
    assert found.parameters == found.bytes - 8 - len(header) == most
    # A file system in memory has larger files still.
    with tempfile.TemporaryDirectory(dir="/dev/shm") as place:
        larger = Path(shutil.copytree(folder, f"{place}/larger", ignore=lambda *_: [path.name]))
        with (larger / path.name).open("wb") as file:
            file.write(struct.pack("<Q", len(header)) + header.encode())
            file.truncate(2**61)
        refused(larger, "model.safetensors")


# -- safetensors ---------------------------------------------------------------------------------


def test_a_header_of_too_many_tensors_is_refused_unread(folder: Path) -> None:
    entry = '"t%07d":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},'
    count = safetensors_file.MOST_HEADER_BYTES // 50
    header = "{" + "".join(entry % number for number in range(count))[:-1] + "}"
    whole = struct.pack("<Q", len(header)) + header.encode()
    (folder / "model.safetensors").write_bytes(whole)
    refused(folder, "model.safetensors", "has a header of")


@pytest.mark.parametrize("length", [0, 2, 2**32, 2**62, 2**64 - 1])
def test_a_header_of_an_impossible_length_is_refused(folder: Path, length: int) -> None:
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", length) + b"{}" * 50)
    refused(folder, "model.safetensors")


@pytest.mark.parametrize(
    "header",
    [
        {"w": {"dtype": "F64", "shape": [2**62, 2**62], "data_offsets": [0, 8]}},
        {"w": {"dtype": "F64", "shape": [2**64], "data_offsets": [0, 8]}},
        {"w": {"dtype": "F64", "shape": [-1], "data_offsets": [0, 8]}},
        {"w": {"dtype": "F64", "shape": [1], "data_offsets": [8, 0]}},
        {"w": {"dtype": "F64", "shape": [DIGITS], "data_offsets": [0, DIGITS]}},
        {"w": {"dtype": "X" * 10**6, "shape": [1], "data_offsets": [0, 8]}},
        {"w": [[[]]]},
        [],
    ],
)
def test_headers_that_lie_are_refused(folder: Path, header: object) -> None:
    text = json.dumps(header).encode()
    whole = struct.pack("<Q", len(text)) + text + bytes(8)
    (folder / "model.safetensors").write_bytes(whole)
    refused(folder, "model.safetensors")


# -- state dicts ---------------------------------------------------------------------------------


SHAPES = [
    ((2**36,), (0,)),
    ((2**18, 2**18), (0, 0)),
    ((4, 2**34), (1, 0)),
    ((2**20, 2), (0, 0)),
    ((2**62,), (0,)),
    ((2**63, 2**63), (0, 0)),
    ((2,) * 63, (0,) * 63),
    ((2,) * 5000, (0,) * 5000),
    ((DIGITS,), (0,)),
    ((-1,), (0,)),
]


@pytest.mark.parametrize(("shape", "stride"), SHAPES)
def test_a_tensor_larger_than_its_file_is_refused(
    folder: Path, shape: tuple[int, ...], stride: tuple[int, ...]
) -> None:
    archive(folder / "model.pt", described(shape, stride))
    refused(folder, "model.pt")
    with pytest.raises(UserError, match=r"model\.pt"):
        torch_file.open_source([folder / "model.pt"], [])


def test_small_expansions_and_a_tied_layer_are_read(folder: Path) -> None:
    embedding = torch.zeros(5000, 64)
    mask = torch.ones(1).expand(1, 1, 256, 256)
    torch.save({"e": embedding, "lm_head.weight": embedding, "m": mask}, folder / "model.pt")
    assert inspect(folder).parameters == embedding.numel() + mask.numel()
    (folder / "to").mkdir()
    convert.write(torch_file.open_source([folder / "model.pt"], []), folder / "to", lambda _: None)


def test_many_views_of_one_storage_are_refused(folder: Path) -> None:
    whole = torch.zeros(10**6)
    torch.save({f"w{number}": whole for number in range(50)}, folder / "model.pt")
    refused(folder, "model.pt", "share memory", "clone()")


@pytest.mark.parametrize("of_weights", [True, False])
def test_compressed_files_are_refused(folder: Path, of_weights: bool) -> None:
    cells = 10**7 if of_weights else 4
    path = archive(folder / "model.pt", described((cells,), (1,), cells), cells, compressed=True)
    assert path.stat().st_size < 10**5
    refused(folder, "model.pt", "not one of torch.save")


def test_a_pickle_that_unpacks_to_gigabytes_is_not_unpacked(folder: Path) -> None:
    archive(folder / "model.pt", b"N0" * (40 << 20) + b"N.", compressed=True)
    refused(folder, "model.pt")


@pytest.mark.parametrize("names", [("x/DATA.PKL",), ("y/data.pkl",), ("x/Data/0",)])
def test_names_that_torch_confuses_are_refused(folder: Path, names: tuple[str, ...]) -> None:
    more = dict.fromkeys(names, described((2**36,), (0,)))
    archive(folder / "model.pt", described((4,), (1,)), more=more)
    refused(folder, "model.pt", "not one of torch.save")


def test_sizes_in_the_directory_are_not_believed(folder: Path) -> None:
    path = archive(folder / "model.pt", described((4,), (1,)))
    content = path.read_bytes()
    at = content.index(b"PK\x01\x02", content.index(b"PK\x01\x02") + 4)
    at = content.index(b"x/data/0", at) - 46
    lie = struct.pack("<LL", 2**31, 2**31)
    path.write_bytes(content[: at + 20] + lie + content[at + 28 :])
    refused(folder, "model.pt", "not one of torch.save")


def test_a_directory_of_millions_of_entries_is_not_read(folder: Path) -> None:
    content = archive(folder / "model.pt", described((4,), (1,))).read_bytes()
    at, end = content.index(b"PK\x01\x02"), content.rindex(b"PK\x05\x06")
    entry = content[at : content.index(b"PK\x01\x02", at + 4)]
    many = entry * (32 * 2**20 // len(entry))
    with (folder / "model.pt").open("wb") as file:
        file.write(content[:at] + many)
        file.write(content[end : end + 12] + struct.pack("<LLH", len(many), at, 0))
    refused(folder, "model.pt")


@pytest.mark.parametrize(
    "call",
    [
        b"cbuiltins\nbytearray\n(J\xff\xff\xff\x7ftR",
        b"ctorch\nTensor\n(J\xff\xff\xff\x7ftR",
        b"ctorch\nFloatStorage\n(J\xff\xff\xff\x7ftR",
        b"ctorch.storage\nUntypedStorage\n(J\xff\xff\xff\x7ftR",
    ],
)
def test_calls_that_take_memory_are_never_made(folder: Path, call: bytes) -> None:
    archive(folder / "model.pt", b"}X\x01\0\0\0a" + call + b"s.")
    refused(folder, "model.pt", "has no tensors")


def test_a_tensor_that_is_changed_after_it_was_made_is_refused(folder: Path) -> None:
    pickled = described((4,), (1,))
    assert pickled.endswith(b"s.")
    archive(folder / "model.pt", pickled[:-2] + b")bs.")
    refused(folder, "model.pt", "changes a tensor")


def test_long_names_make_no_long_message(folder: Path) -> None:
    torch.save({"x" * 10**6: 1}, folder / "model.pt")
    refused(folder, "model.pt", "has no tensors")
