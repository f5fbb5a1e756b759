"""No code of a checkpoint runs where it is read, where prompts are built, nor in an engine."""

from pathlib import Path

import pytest
from tests.hostile.checkpoints import HOSTILE
from tests.hostile.processes import assert_read, read_by
from tests.tiny import need, tiny_model, tokenizer

pytest.importorskip("lm_eval")
pytest.importorskip("transformers")

IN_DRY_RUNS = ("tokenizer map", "own tokenizer", "shadows")

TEXT = "the cat sat on the mat, 東京"


def test_where_prompts_are_built(tmp_path: Path) -> None:
    expected = tokenizer(tiny_model()).encode(TEXT).ids
    assert_read(read_by("build", tmp_path), expected, "no_tokenizer", tmp_path)


@pytest.mark.parametrize("part", ["build", "transformers"])
def test_without_copies(part: str, tmp_path: Path) -> None:
    """What libraries refuse if they are given the checkpoint's own folder."""
    read_by(f"{part}, uncleaned", tmp_path)


def test_a_template_stays_in_its_sandbox(tmp_path: Path) -> None:
    attack = [each for each in HOSTILE if each.name == "template"]
    said = read_by("chat", tmp_path, attack)["template"]
    assert "refused: dataset 'reads_tokenizer'" in said
    assert "unsafe" in said


def test_with_callers_that_trust_it(tmp_path: Path) -> None:
    chosen = [each for each in HOSTILE if "class" not in each.name]
    for told in read_by("trusting", tmp_path, chosen).values():
        assert told[-1].startswith("CheckpointCode: ")
        assert "hostile" in told[-1]


def test_in_a_dry_run(tmp_path: Path) -> None:
    chosen = [each for each in HOSTILE if each.name in IN_DRY_RUNS]
    assert_read(read_by("dry run", tmp_path, chosen), 1, "no_tokenizer", tmp_path)


def test_in_an_engine(tmp_path: Path) -> None:
    need("torch", "transformers")
    assert_read(read_by("transformers", tmp_path), "started", "no_model", tmp_path)
