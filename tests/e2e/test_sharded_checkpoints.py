"""What ranks of a training wrote is scored as the same weights in Hugging Face's format are."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from tests.answered import ENGINE, assert_answered
from tests.runs import Workspace
from tests.tiny import tiny_model

DATASETS = ("tiny_choice", "tiny_talk")
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def sharded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny model as two ranks of FSDP save it, with the state of an optimizer."""
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    out = tmp_path_factory.mktemp("checkpoints") / "step-100"
    subprocess.run([sys.executable, "-m", "tests.fsdp_ranks", out, "2"], cwd=ROOT, check=True)
    return out


def test_parts_of_ranks_are_scored_as_the_model(user: Workspace, sharded: Path) -> None:
    run = user.folder / "of ranks"
    model = ("--config", tiny_model(), "--tokenizer", tiny_model())
    asked = ("run", sharded, *model, "--suite", user.suite(*DATASETS), "--run-dir", run)
    user.call(*asked, *ENGINE)

    assert_answered(run, DATASETS, tiny_model())
    record = json.loads((run / "run.json").read_text())["checkpoint"]
    assert (record["format"], record["path"]) == ("dcp", str(sharded))
    assert sorted(file.name for file in sharded.iterdir()) == [
        ".metadata", "__0_0.distcp", "__1_0.distcp",
    ]  # fmt: skip
    assert list(user.memory.iterdir()) == []
