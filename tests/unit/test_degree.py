"""The tensor-parallel degree: how many GPUs share one engine's model."""

from collections.abc import Sequence

import pytest

from coordinate_eval.coordinator.inputs.settings import Settings
from coordinate_eval.coordinator.inputs.suites import suite
from coordinate_eval.coordinator.planning.costs import expected_works
from coordinate_eval.coordinator.planning.places.degree import Demand, tensor_parallel
from coordinate_eval.errors import UserError
from coordinate_eval.priors import gpus
from coordinate_eval.priors.conditions import sequences
from coordinate_eval.priors.roofline import Work
from coordinate_eval.records import Checkpoint, CheckpointFormat, EngineSettings

REASONING = [
    Work(
        items=500, requests=4000, prompt_tokens=8e5, output_tokens=2.4e7,
        longest_output_tokens=30_000,
    )
]  # fmt: skip


def llama(
    billions: float, layers: int, heads: int, kv_heads: int, *, bytes_each: int = 2
) -> Checkpoint:
    """Heads of 128 dimensions."""
    return Checkpoint(
        path="/c", identity="", format=CheckpointFormat.SAFETENSORS, weights=[], files=[],
        bytes=int(bytes_each * billions * 1e9), parameters=int(billions * 1e9), dtype="bfloat16",
        max_length=8192, attention_heads=heads,
        kv_bytes_per_token=2 * layers * kv_heads * 128 * 2, kv_heads=kv_heads,
        activation_bytes_per_token=layers * heads * 128 * 2,
    )  # fmt: skip


VLLM = EngineSettings()
L8, L70, L405 = llama(8, 32, 32, 8), llama(70.6, 80, 64, 8), llama(405, 126, 128, 8)


def degree(
    checkpoint: Checkpoint,
    gpu: str,
    gib: float,
    works: Sequence[Work] | None = None,
    engine: EngineSettings = VLLM,
) -> int:
    rates = gpus.lookup(gpu)._replace(memory=gib * 2**30)
    works = expected_works(suite.load("base")) if works is None else works
    demand = Demand(checkpoint, Settings(engine=engine), 8192, works)
    return tensor_parallel(demand, rates, sequences(engine, gpu), 8)


@pytest.mark.parametrize(
    ("checkpoint", "gpu", "gib", "expected"),
    [
        (L8, "h100", 80, 1),
        (L8, "l40s", 48, 1),
        # On two GPUs one sequence fits, with room for ten more; on four a full batch does.
        (L70, "h100", 80, 4),
        (L70, "a100", 80, 4),
        (L70, "h200", 141, 2),
        (L405, "h200", 141, 8),
    ],
)
def test_a_node_is_fastest(checkpoint: Checkpoint, gpu: str, gib: float, expected: int) -> None:
    assert degree(checkpoint, gpu, gib) == expected


def test_long_texts_want_more_room_for_keys_and_values() -> None:
    assert degree(L70, "h200", 141, REASONING) == 4
    assert degree(L70, "h100", 80, REASONING) == 8
    # Each GPU holds and reads a copy of what all heads share, so that more of them gain less.
    shared = L70.model_copy(update={"kv_heads": 1})
    assert degree(shared, "h100", 80, REASONING) == 4


def test_little_is_no_reason_for_more_gpus() -> None:
    few = [REASONING[0].model_copy(update={"requests": 8, "output_tokens": 80.0})]
    assert degree(L8, "h100", 80, few) == 1
    assert degree(L70, "h100", 80, []) == 2


def test_without_memory_it_is_one() -> None:
    assert degree(L405, "h100", 0) == 1


def test_weights_of_32_bits_take_16_of_them_where_the_engine_computes_with_16() -> None:
    wide = L70.model_copy(
        update={
            "bytes": 2 * L70.bytes,
            "dtype": "float32",
            "kv_bytes_per_token": 2 * L70.kv_bytes_per_token,
            "activation_bytes_per_token": 2 * L70.activation_bytes_per_token,
        }
    )
    assert degree(wide, "h200", 141) == degree(L70, "h200", 141) == 2
    file = wide.model_copy(update={"bytes": 4 * wide.bytes, "loaded_bytes": wide.bytes})
    assert degree(file, "h200", 141) == 2
    for engine in (
        EngineSettings(args={"dtype": "float32"}),
        EngineSettings(name="transformers"),
    ):
        assert degree(wide, "h200", 141, engine=engine) > 2


def test_an_optimizer_in_the_file_needs_no_gpu() -> None:
    state = llama(8, 32, 32, 8, bytes_each=14)
    assert degree(state, "h100", 80) > 1
    assert degree(state.model_copy(update={"loaded_bytes": 16 * 10**9}), "h100", 80) == 1


@pytest.mark.parametrize(("billions", "heads"), [(405, 128), (70.6, 3), (70.6, 2)])
def test_says_what_does_not_fit(billions: float, heads: int) -> None:
    checkpoint = llama(billions, 80, heads, heads)
    with pytest.raises(UserError, match=r"needs .* GiB .* a node has 8 GPUs of 40 GiB"):
        degree(checkpoint, "a100", 40)
