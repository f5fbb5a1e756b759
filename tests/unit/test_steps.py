"""The training step that a checkpoint's name tells, as trainers name them; and what is no step."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinate_eval.coordinator.inputs.checkpoints.saved import Pattern, step_of

TOLD = {
    1000: (
        # transformers, DeepSpeed, Megatron-LM, OLMo, Levanter, prime-rl
        "checkpoint-1000", "global_step1000", "iter_0001000", "step1000-unsharded", "step-1000",
        "step_1000", "step1000-bf16", "step_1000_hf", "step-1000.pt", "step1000hf",
        # LLM Foundry, NeMo, Lightning, fairseq, litgpt, T5X
        "ba1000", "ep0-ba1000", "ep3-ba1000-rank0.pt", "epoch=3-step=1000.ckpt",
        "megatron_gpt--val_loss=2.31-step=1000-consumed_samples=256000.0",
        "step=1000-loss=2.35", "checkpoint_3_1000.pt", "iter-001000-ckpt.pth", "checkpoint_1000",
        # Pythia, OLMo 2, and what people call copies
        "step1000-tokens4B", "stage1-step1000", "stage2-ingredient1-step1000-tokens5B",
        "step-1000/pytorch_model-00001-of-00001.bin",
        "step_1000_seed_42", "checkpoint-3-step-1000", "step-1000-of-5000", "update1000", "it_1000",
        "1000", "0000001000", "llama-7b-1000", "llama-7b-1000-hf", "1000-steps", "run-1000steps",
        "step-1000/hf", "1000/model.pt", "step-1000/export-8b", "iter_0001000/hf",
        "global_step_1000/actor/huggingface", "step-1k", "checkpoint-1k",
    ),
    50_000: ("TinyModel-1.1B-step-50K-105b", "step-50K-105b/hf", "50k-steps", "iter_50k"),
    240_000: ("TinyLlama-1.1B-intermediate-step-240k-503b",),
    1_431_000: ("TinyLlama-1.1B-intermediate-step-1431k-3T",),
    1_195_000: ("TinyLlama-1.1B-intermediate-step-1195k-token-2.5T",),
    1_000_000: ("step-1M", "step-1000k-2100B"),
    2_500: ("run-step-2.5k",),
    500: ("step-0.5k",),
    64: ("model_000064.pt", "model_000064"),
    0: ("step-0", "0", "checkpoint-0"),
    12: ("checkpoint-12.pt",),
    358: ("ckpt_358",),
}  # fmt: skip

NO_STEP = (
    # versions and sizes
    "llama-3.1-8b", "qwen2.5-7b", "Meta-Llama-3.1-8B-Instruct", "v1.2", "gpt-2", "phi-4",
    "llama-2-7b", "pythia-160m", "opt-125m", "Step-3.5-Flash", "checkpoint-7b", "ckpt-1.1B",
    "llama-7b-4096", "llama-8b-128k", "llama-7b", "runs-2/final", "llama-3.1-8b/hf",
    "llama-7b-1000/hf", "step-1000/v2/model-8b",
    # tokens and epochs
    "1M", "105b", "step-105b", "tokens-100B", "epoch-3", "epoch_1000", "epoch=3-val_loss=1.78.ckpt",
    # dates, of releases as well
    "2024-05-01", "20240501", "20240501-123000", "2025-01-31_10-20-30", "ckpt-20240501",
    "ckpt-2024-05-01", "exp-240501", "mistral-7b-2407", "DeepSeek-R1-0528",
    # counts of something else, and what is no whole number
    "1000-of-5000",
    "run-7", "run-1000", "seed-1234", "job-123456", "batch-32", "alibaba1000", "step-1,000",
    "step-1000.5", "step-2.0005k", "step_5e3", "latest", "model_final", "checkpoint-best",
)  # fmt: skip


@pytest.mark.parametrize("step", TOLD)
def test_steps_as_trainers_write_them(step: int) -> None:
    for name in TOLD[step]:
        assert step_of(f"/ckpts/{name}") == step, name


def test_what_is_no_step() -> None:
    for name in NO_STEP:
        assert step_of(f"/ckpts/{name}") is None, name
        if "/" not in name:
            assert Pattern(None).step(name) is None, name


@pytest.mark.parametrize(
    ("pattern", "name", "step"),
    [
        ("model-{step}-*", "model-50K-105b", (50_000,)),
        ("model-{step}-*", "model-2.5k-5b", (2_500,)),
        ("llama-{step}-8b", "llama-3.1-8b", None),
        ("llama-{step}", "llama-3", (3,)),
        ("best", "best", (None,)),
    ],
)
def test_a_pattern_reads_thousands_as_well(
    pattern: str, name: str, step: tuple[int | None] | None
) -> None:
    assert Pattern(pattern).step(name) == step


@given(st.text(max_size=80))
def test_any_name_is_read(name: str) -> None:
    step = step_of(name)
    assert step is None or step >= 0
