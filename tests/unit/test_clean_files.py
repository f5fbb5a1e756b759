"""Clean copies name no code and no other folder, and are the same in everything else."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.hostile.checkpoints import HOSTILE, Hostile, make
from tests.tiny import tiny_model

from coordinate_eval.coordinator.inputs.checkpoints import checkpoint, clean_files
from coordinate_eval.errors import UserError
from coordinate_eval.evaluators import own_code

NAMES_CODE = ("auto_map", "custom_pipelines", "custom_generate")
AWAY = ("speculators_config", "transformers_weights", "base_model_name_or_path")
PATHS = ("vocab_file", "fast_tokenizer_files", "attn_implementation")

keys = st.text(max_size=8) | st.sampled_from(NAMES_CODE + AWAY + PATHS)
leaves = st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=8)
leaves = leaves | st.sampled_from(["/etc/passwd", "../x", "some/kernel", "vocab.txt", "hostile.X"])
values = st.recursive(
    leaves, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=4)
)


def without(value: Any) -> Any:
    """The rule, said another way: every forbidden entry is gone, all others are there."""
    if isinstance(value, list):
        return [without(each) for each in value]
    if not isinstance(value, dict):
        return value
    return {
        key: without(each)
        for key, each in value.items()
        if key not in NAMES_CODE + AWAY
        if not (key.endswith(("_file", "_files", "_implementation")) and "/" in str(strings(each)))
    }


def strings(value: Any) -> list[str]:
    if isinstance(value, dict | list):
        parts = value.values() if isinstance(value, dict) else value
        return [text for each in parts for text in strings(each)]
    return [value] if isinstance(value, str) else []


@given(values)
def test_a_copy_lacks_what_names_code_and_nothing_else(value: Any) -> None:
    content = json.dumps(value).encode()
    cleaned, _ = clean_files.clean(Path("config.json"), content)
    assert json.dumps(json.loads(cleaned)) == json.dumps(without(value))
    if json.dumps(without(value)) == json.dumps(value):
        assert cleaned == content  # byte for byte, however it was written


@pytest.mark.parametrize(
    "name", ["tokenizer.json", "vocab.json", "added_tokens.json", "merges.txt"]
)
def test_any_text_may_be_a_token(name: str) -> None:
    content = b'{"auto_map": 5, "vocab_file": 6, "a/_file": 7}'
    assert clean_files.clean(Path(name), content) == (content, {})


@pytest.mark.parametrize(
    "content", [b"{", b"\xff\xfe", b"[" * 100_000, b'{"a": ' + b"9" * 5000 + b"}", b"{'a': 1}"]
)
def test_a_config_that_is_no_json_is_refused(content: bytes) -> None:
    with pytest.raises(UserError, match=r"/x/tokenizer_config\.json is not JSON"):
        clean_files.clean(Path("/x/tokenizer_config.json"), content)


def test_an_endless_config_is_refused() -> None:
    content = b'{"a": "' + b"a" * (17 << 20) + b'"}'
    with pytest.raises(UserError, match=r"/x/config\.json has 17\.0 MiB"):
        clean_files.clean(Path("/x/config.json"), content)


@pytest.mark.parametrize("hostile", HOSTILE, ids=lambda each: each.name)
def test_copies_of_hostile_files_name_nothing(hostile: Hostile, tmp_path: Path) -> None:
    folder = make(hostile, tmp_path / "CKPT")
    copies = tmp_path / "copies"
    copies.mkdir()
    names = ["config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json"]
    clean_files.copy([str(folder / name) for name in names], copies)
    for name in names:
        content = (copies / name).read_text()
        assert not [key for key in NAMES_CODE + AWAY if f'"{key}"' in content], name
        if name != "tokenizer.json":
            assert "somebody/kernel" not in content
            assert "vocab.pkl" not in content
    assert {entry.name for entry in copies.iterdir()} <= {*names, own_code.RECORD}


def test_a_record_says_which_code_is_missing(tmp_path: Path) -> None:
    tokenizer = {"auto_map": {"AutoTokenizer": ["slow.Slow", None]}, "tokenizer_class": "Slow"}
    config = {
        "auto_map": {"AutoConfig": "c.C", "AutoModel": "m.M"},
        "text": {"custom_pipelines": {}},
    }
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(tokenizer))
    (tmp_path / "config.json").write_text(json.dumps(config))
    files = [str(tmp_path / name) for name in ("config.json", "tokenizer_config.json")]
    expected = {"AutoConfig": "c.C", "AutoModel": "m.M", "AutoTokenizer": "slow.Slow"}
    assert own_code.named(tmp_path) == expected  # from the files themselves

    (copies := tmp_path / "copies").mkdir()
    clean_files.copy(files, copies)
    assert own_code.named(copies) == expected
    assert "c.C, m.M, slow.Slow" in own_code.note(copies, RuntimeError())


def test_no_record_without_code(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    (copies := tmp_path / "copies").mkdir()
    clean_files.copy([str(tmp_path / "config.json")], copies)
    assert [entry.name for entry in copies.iterdir()] == ["config.json"]
    assert own_code.note(copies, RuntimeError()) == ""


@pytest.mark.parametrize("code", ["\x1b[2J", "a.B" * 10_000])
def test_names_of_code_do_no_harm_in_a_message(code: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"auto_map": {"AutoModel": code}}))
    note = own_code.note(tmp_path, RuntimeError())
    assert note.isprintable()
    assert len(note) < 300


def test_copies_are_as_private_as_the_files(tmp_path: Path) -> None:
    private, folder = tmp_path / "private", tmp_path / "copy"
    folder.mkdir()
    shutil.copytree(tiny_model(), private)
    for file in private.iterdir():
        file.chmod(0o600)
    clean_files.copy(checkpoint.inspect(private).files, folder)
    copied = list(folder.iterdir())
    assert copied
    assert not [file for file in copied if file.stat().st_mode & 0o077]
