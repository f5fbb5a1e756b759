"""A `coordinate-eval.yaml` says once where config and tokenizer of a folder's checkpoints are."""

import json
from pathlib import Path

import numpy
import pytest
from safetensors.numpy import save_file
from tests.checkpoints import CONFIG, refused, sides

from coordinate_eval.coordinator.inputs.checkpoints.checkpoint import inspect


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Checkpoints without a config, and a model beside them."""
    sides(tmp_path / "hf")
    (tmp_path / "runs/first/step-10").mkdir(parents=True)
    save_file({"a": numpy.zeros(8)}, tmp_path / "runs/first/step-10/model.safetensors")
    return tmp_path / "runs"


@pytest.mark.parametrize("place", ["", "first", "first/step-10"])
def test_paths_are_relative_to_the_file(folder: Path, place: str) -> None:
    up = "../" * len((folder / place).relative_to(folder.parent).parts)
    (folder / place / "coordinate-eval.yaml").write_text(
        f"config: {up}hf/config.json\ntokenizer: {up}hf\n"
    )
    found = inspect(folder / "first/step-10")
    hf = folder.parent / "hf"
    assert found.files == [str(hf / "config.json"), str(hf / "tokenizer.json")]


def test_it_counts_before_what_lies_beside_and_flags_before_it(folder: Path) -> None:
    step = sides(folder / "first/step-10")
    (folder / "coordinate-eval.yaml").write_text("config: ../hf/config.json\n")
    assert inspect(step).files == [
        str(folder.parent / "hf/config.json"), str(step / "tokenizer.json"),
    ]  # fmt: skip
    given = folder.parent / "given"
    given.mkdir()
    (given / "config.json").write_text(json.dumps(CONFIG))
    assert inspect(step, config=given).files[0] == str(given / "config.json")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("confg: x\n", "line 1: unknown key 'confg'"),
        ("config: ../hf\ntokenizer: [1]\n", "line 2: tokenizer must be a path"),
        ("- config\n", "must be a mapping"),
        ("config: ../no\n", "does not exist"),
    ],
)
def test_what_is_wrong_is_said_with_its_line(folder: Path, text: str, words: str) -> None:
    (folder / "coordinate-eval.yaml").write_text(text)
    refused(folder / "first/step-10", words)
