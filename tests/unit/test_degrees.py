"""The degrees in which GPUs may share a model, from the numbers that they have to divide."""

import pytest

from coordinate_eval.coordinator.planning.places.degrees import (
    Degrees,
    allowed,
    check_gpu,
    check_tensor,
    engine_args,
)
from coordinate_eval.errors import UserError
from coordinate_eval.records import Checkpoint, CheckpointFormat, EngineSettings


def model(heads: int, kv_heads: int, *, stages: int = 1, **more: object) -> Checkpoint:
    return Checkpoint(
        path="/c", identity="", format=CheckpointFormat.SAFETENSORS, weights=[], files=[],
        bytes=1, parameters=1, dtype="bfloat16", max_length=8192, attention_heads=heads,
        kv_bytes_per_token=1, kv_heads=kv_heads, stages=stages,
    ).model_copy(update=more)  # fmt: skip


def tensors(found: list[Degrees]) -> list[int]:
    return [each.tensor for each in found if each.expert == 1 and each.pipeline == 1]


def test_a_degree_divides_the_heads_and_the_widths() -> None:
    assert tensors(allowed(model(32, 8), 8)) == [1, 2, 4, 8]
    assert tensors(allowed(model(24, 8), 8)) == [1, 2, 4, 8]
    assert tensors(allowed(model(24, 3), 8)) == [1, 3, 6]
    assert tensors(allowed(model(96, 12), 6)) == [1, 2, 3, 4, 6]
    assert tensors(allowed(model(32, 8, splits={"width": 148}), 8)) == [1, 2, 4]
    assert tensors(allowed(model(7, 1), 8)) == [1, 7]


def test_whole_experts_need_not_be_cut() -> None:
    mixture = model(64, 4, experts=128, expert_splits={"width": 12})
    assert tensors(allowed(mixture, 8)) == [1, 2, 4]
    assert Degrees(8, 1, 8) in allowed(mixture, 8)
    assert [engine_args(mixture, "vllm", tensor) for tensor in (1, 4, 8)] == [
        {}, {}, {"enable_expert_parallel": True}
    ]  # fmt: skip
    assert all(each.expert == 1 for each in allowed(model(64, 4), 8))


def test_a_pipeline_has_no_more_parts_than_layers_and_gpus() -> None:
    found = allowed(model(128, 8, stages=126), 8, nodes=3)
    assert Degrees(8, 3) in found
    assert Degrees(4, 6) in found
    assert max(each.tensor * each.pipeline for each in found) == 24
    assert max(each.pipeline for each in allowed(model(8, 8, stages=3), 8, nodes=9)) == 3
    assert found[0] == Degrees(1)


def test_gpus_that_vllm_refuses_for_quantized_weights_are_refused_here() -> None:
    vllm, other = EngineSettings(), EngineSettings(name="transformers")
    packed = model(8, 8, quantization="mxfp4")
    for gpu in ("a100", "h100", "mi300x", "gpu of a new kind", ""):
        check_gpu(packed, vllm, gpu)
    check_gpu(packed, other, "v100")
    check_gpu(model(8, 8), vllm, "v100")
    with pytest.raises(UserError, match=r"mxfp4 .* capability 8 or more, and Tesla-T4 has 7\.5"):
        check_gpu(packed, vllm, "Tesla-T4")


def test_a_number_of_gpus_that_vllm_refuses_is_refused_here() -> None:
    llama = model(32, 8, splits={"vocabulary, padded": 128_256})
    for tensor in (1, 2, 8):
        check_tensor(llama, EngineSettings(), tensor)
    check_tensor(llama, EngineSettings(name="transformers"), 3)
    with pytest.raises(UserError, match=r"is 3, .* 32 attention heads \(8 .* 128,256 \(vocab"):
        check_tensor(llama, EngineSettings(), 3)
