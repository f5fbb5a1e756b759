"""A `coordinate-eval.yaml` says once where config and tokenizer of a folder's checkpoints are."""

import json
import os
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


def test_the_nearest_counts_and_flags_before_it(folder: Path) -> None:
    step, hf = sides(folder / "first/step-10"), folder.parent / "hf"
    (folder / "coordinate-eval.yaml").write_text("config: ../hf/config.json\n")
    assert inspect(step).files == [str(step / "config.json"), str(step / "tokenizer.json")]
    (step / "coordinate-eval.yaml").write_text("config: ../../../hf/config.json\n")
    assert inspect(step).files == [str(hf / "config.json"), str(step / "tokenizer.json")]
    given = folder.parent / "given"
    given.mkdir()
    (given / "config.json").write_text(json.dumps(CONFIG))
    assert inspect(step, config=given).files[0] == str(given / "config.json")


def test_the_config_of_a_training_is_no_model_and_does_not_count(folder: Path) -> None:
    step, hf = folder / "first/step-10", folder.parent / "hf"
    (folder / "coordinate-eval.yaml").write_text("config: ../hf/config.json\ntokenizer: ../hf\n")
    (step / "config.json").write_text(json.dumps({"run_name": "first", "model": {"d_model": 64}}))
    assert inspect(step).files == [str(hf / "config.json"), str(hf / "tokenizer.json")]


def test_a_file_that_others_can_write_is_named_and_not_used(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for above, mode in ((folder / "first", 0o666), (folder, 0o644)):
        said = above / "coordinate-eval.yaml"
        up = os.path.relpath(folder.parent / "hf", above)
        said.write_text(f"config: {up}/config.json\ntokenizer: {up}\n")
        said.chmod(mode)
    assert inspect(folder / "first/step-10").files[0] == str(folder.parent / "hf/config.json")
    told = capsys.readouterr().err
    assert f"{folder}/first/coordinate-eval.yaml is not used" in told
    assert f"{folder}/coordinate-eval.yaml is used" in told


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give files away")
def test_of_others_only_the_owner_of_the_checkpoint_counts(folder: Path) -> None:
    said, step = folder / "coordinate-eval.yaml", folder / "first/step-10"
    said.write_text("config: ../hf/config.json\ntokenizer: ../hf\n")
    os.chown(said, 4242, -1)
    refused(step, "no config.json")
    os.chown(step, 4242, -1)
    assert len(inspect(step).files) == 2
    said.rename(folder / "mine")
    said.symlink_to("mine")
    os.chown(said, 4243, -1, follow_symlinks=False)
    refused(step, "no config.json")


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
