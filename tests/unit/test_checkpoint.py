"""Checkpoints are described from headers; whatever is wrong is said with its path and a way out."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.numpy import save_file
from tests.checkpoints import of_torch, refused, sides

from coordinate_eval.coordinator.inputs.checkpoints.checkpoint import (
    check_usable,
    inspect,
    unchanged,
)
from coordinate_eval.errors import UserError
from coordinate_eval.records import Checkpoint, CheckpointFormat

torch = pytest.importorskip("torch")


def arrays(count: int = 2) -> dict[str, Any]:
    return {f"w{n}": numpy.full((3, 5), n, dtype=numpy.float16) for n in range(count)}


@pytest.fixture
def single(tmp_path: Path) -> Path:
    folder = sides(tmp_path / 'it\'s a "step"\n1')
    save_file(arrays(), folder / "model.safetensors")
    return folder


@pytest.fixture
def sharded(tmp_path: Path) -> Path:
    folder = sides(tmp_path / "sharded")
    mapping = {}
    for name, array in arrays(3).items():
        save_file({name: array}, folder / f"part-{name}.safetensors")
        mapping[name] = f"part-{name}.safetensors"
    index = {"metadata": {"total_size": 90}, "weight_map": mapping}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder


@pytest.fixture
def state(tmp_path: Path) -> Path:
    return of_torch(tmp_path / "torch")


def test_describes_a_folder(single: Path) -> None:
    found = inspect(single)
    weights = single / "model.safetensors"
    assert found.path == str(single)
    assert found.format is CheckpointFormat.SAFETENSORS
    assert found.weights == [str(weights)]
    assert found.files == [str(single / "config.json"), str(single / "tokenizer.json")]
    assert found.bytes == weights.stat().st_size
    assert (found.parameters, found.dtype) == (30, "float16")
    assert (found.max_length, found.attention_heads) == (512, 4)
    assert found.kv_bytes_per_token == 2 * 2 * 2 * 16 * 2
    assert Checkpoint.model_validate_json(found.line()) == found


def test_a_file_that_a_trainer_prints_stands_for_its_folder(
    single: Path, sharded: Path, tmp_path: Path
) -> None:
    assert inspect(single / "model.safetensors") == inspect(single)
    assert inspect(sharded / "model.safetensors.index.json") == inspect(sharded)

    snapshot = tmp_path / "snapshot"
    snapshot.mkdir()
    for file in single.iterdir():
        (snapshot / file.name).symlink_to(file)
    assert inspect(snapshot / "model.safetensors").path == str(snapshot)


def test_takes_the_shards_of_the_index_and_no_others(sharded: Path) -> None:
    (sharded / "consolidated.safetensors").write_bytes(b"not read")
    (sharded / "optimizer.pt").write_bytes(b"not read")
    found = inspect(sharded)
    assert [Path(name).name for name in found.weights] == [
        f"part-w{n}.safetensors" for n in range(3)
    ]
    assert found.parameters == 45
    assert str(sharded / "model.safetensors.index.json") in found.files


def test_stages_text_files_of_the_tokenizer_and_no_programs(single: Path) -> None:
    tokenizer = ("tokenizer_config.json", "tokenizer.model", "vocab.json", "merges.txt")
    more = ("special_tokens_map.json", "added_tokens.json", "spiece.model", "chat_template.jinja")
    programs = ("tokenizer.py", "tokenization_x.py", "tokenizer.pkl", "tokenizer.bin")
    others = ("trainer_state.json", "README.md", "training_args.bin")
    wanted = ("generation_config.json", "hf_quant_config.json", *tokenizer, *more)
    for name in (*wanted, *programs, *others):
        (single / name).write_text("{}")
    names = {Path(name).name for name in inspect(single).files}
    assert names == {*wanted, "config.json", "tokenizer.json"}


def test_dominant_type_is_that_of_most_parameters(tmp_path: Path) -> None:
    folder = sides(tmp_path)
    tensors = {
        "a": torch.zeros(100, dtype=torch.bfloat16),
        "b": torch.zeros(40, dtype=torch.float32),
        "c": torch.zeros(40, dtype=torch.int64),
    }
    from safetensors.torch import save_file as save

    save(tensors, folder / "model.safetensors")
    found = inspect(folder)
    assert (found.parameters, found.dtype) == (180, "bfloat16")


def test_a_moving_link_changes_nothing(single: Path, sharded: Path, tmp_path: Path) -> None:
    latest = tmp_path / "latest"
    latest.symlink_to(single)
    found = inspect(latest)
    latest.unlink()
    latest.symlink_to(sharded)
    assert found == inspect(single)
    assert unchanged(found)


def test_identity_follows_what_counts(single: Path, tmp_path: Path) -> None:
    found = inspect(single)
    copy = tmp_path / "copy"
    shutil.copytree(single, copy)
    assert inspect(copy).identity == found.identity
    os.utime(copy / "config.json")
    (copy / "README.md").write_text("new")
    assert inspect(copy).identity == found.identity
    os.utime(copy / "model.safetensors", ns=(1, 1))
    assert inspect(copy).identity != found.identity
    assert unchanged(found)
    (single / "tokenizer.json").write_text('{"vocab": {"a": 1}}')
    assert not unchanged(found)
    assert inspect(single).identity != found.identity


@pytest.mark.parametrize("text", ['{"model": {"vocab": {"a"', '[{"a": 1}]'])
def test_a_torn_tokenizer_is_reported(single: Path, text: str) -> None:
    (single / "tokenizer.json").write_text(text)
    refused(single, f"{single / 'tokenizer.json'} is torn")


@pytest.mark.parametrize("text", ["{}", '{"version": "1.0", "model": {}}'])
def test_a_tokenizer_without_a_vocabulary_is_refused(single: Path, text: str) -> None:
    (single / "tokenizer.json").write_text(text)
    with pytest.raises(UserError, match=r"tokenizer\.json has no vocabulary.*--tokenizer"):
        check_usable(inspect(single))


def test_what_is_gone_is_not_unchanged(single: Path) -> None:
    found = inspect(single)
    (single / "model.safetensors").unlink()
    assert not unchanged(found)


@pytest.mark.parametrize(
    ("config", "max_length", "heads", "kv_bytes"),
    [
        ({"text_config": {"max_position_embeddings": 99, "head_dim": 8}}, 99, 4, 2 * 2 * 2 * 8 * 2),
        ({"max_position_embeddings": None, "n_positions": 7}, 7, 4, 256),
        ({"seq_length": 99}, 99, 4, 256),
        ({"max_position_embeddings": "many"}, 2048, 4, 256),
        ({"num_key_value_heads": None}, 512, 4, 512),
        ({"num_key_value_heads": None, "multi_query": True}, 512, 4, 128),
        ({"num_key_value_heads": [1, 2, 4]}, 512, 4, 512),
        ({"num_attention_heads": 0, "num_hidden_layers": -1}, 512, 1, 0),
    ],
)
def test_reads_what_configs_call_differently(
    single: Path, config: dict[str, Any], max_length: int, heads: int, kv_bytes: int
) -> None:
    sides(single, **config)
    found = inspect(single)
    assert (found.max_length, found.attention_heads) == (max_length, heads)
    assert found.kv_bytes_per_token == kv_bytes


def test_says_what_is_missing(single: Path, sharded: Path, tmp_path: Path) -> None:
    refused(tmp_path / "nowhere", "nowhere", "does not exist")
    (tmp_path / "empty").mkdir()
    refused(tmp_path / "empty", "empty", "no weights")
    (tmp_path / "circle").symlink_to(tmp_path / "circle")
    refused(tmp_path / "circle", "circle")
    refused(Path("nul\0"), "not a usable path")
    (sharded / "part-w1.safetensors").unlink()
    refused(sharded, "incomplete", "part-w1.safetensors", "1 of 3")
    (sharded / "model.safetensors.index.json").unlink()
    refused(sharded, "written last")
    refused(single / "config.json", "Give its folder")
    (single / "tokenizer.json").unlink()
    refused(single, "no tokenizer", "--tokenizer")
    (single / "config.json").unlink()
    refused(single, "no config.json", "--config")


def test_says_what_is_malformed(single: Path, sharded: Path) -> None:
    (single / "config.json").write_text('{\n"a": 1,\n!')
    refused(single, "config.json", "line 3")
    for content in ("[1]", "\x80", "", "[" * 100_000):
        (single / "config.json").write_text(content, encoding="latin-1")
        refused(single, "config.json")
    sides(single)
    (single / "model.safetensors").write_bytes(b"")
    refused(single, "is empty")
    save_file({}, single / "model.safetensors")
    refused(single, "no parameters")
    index = sharded / "model.safetensors.index.json"
    mappings: tuple[object, ...] = (
        None,
        {},
        {"a": "../x.safetensors"},
        {"a": ".."},
        {"a": 1},
        {"a": []},
        {"a": "\ud800"},
    )
    for mapping in mappings:
        index.write_text(json.dumps({"weight_map": mapping}))
        refused(sharded, "model.safetensors.index.json")
    index.write_text(json.dumps({"weight_map": {"elsewhere": "part-w1.safetensors"}}))
    refused(sharded, "elsewhere")


def test_config_and_tokenizer_may_lie_elsewhere(single: Path, tmp_path: Path) -> None:
    other = sides(tmp_path / "other", max_position_embeddings=64)
    (single / "tokenizer.json").unlink()
    found = inspect(single, config=other / "config.json", tokenizer=other)
    assert found.max_length == 64
    assert found.files == [str(other / "config.json"), str(other / "tokenizer.json")]
    refused(single, "nowhere", config=tmp_path / "nowhere")
    refused(single, "must be named", config=other / "tokenizer.json")


@pytest.mark.skipif(os.geteuid() != 0, reason="root may read everything, and become another user")
def test_says_what_cannot_be_read(single: Path, tmp_path: Path) -> None:
    single.chmod(0)
    code = (
        "import sys, os; from pathlib import Path\n"
        "from coordinate_eval.coordinator.inputs.checkpoints.checkpoint import inspect\n"
        "from coordinate_eval.errors import UserError\n"
        "os.setuid(65534)\n"
        "try: inspect(Path(sys.argv[1]))\n"
        "except UserError as error: print(error)\n"
    )
    tmp_path.chmod(0o755)
    done = subprocess.run(
        [sys.executable, "-c", code, str(single)], capture_output=True, text=True, check=True
    )
    assert "Permission denied" in done.stdout


@settings(
    deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(cut=st.floats(0, 1, exclude_max=True))
@pytest.mark.parametrize("kind", ["safetensors", "shard", "torch"])
def test_a_file_cut_anywhere_is_reported(
    single: Path, sharded: Path, state: Path, kind: str, cut: float
) -> None:
    folder, name = {
        "safetensors": (single, "model.safetensors"),
        "shard": (sharded, "part-w1.safetensors"),
        "torch": (state, "model.pt"),
    }[kind]
    whole = (folder / name).read_bytes()
    try:
        (folder / name).write_bytes(whole[: int(len(whole) * cut)])
        refused(folder, name)
    finally:
        (folder / name).write_bytes(whole)
