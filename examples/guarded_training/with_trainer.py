"""Hugging Face's Trainer under a guard: it begins where the guard says, and leaves steps out.

torchrun --nproc-per-node 1 with_trainer.py --checkpoints FOLDER
"""

import argparse
import os
from pathlib import Path

import torch
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    Trainer,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
)

from train import skipped_steps

DATA = [{"input_ids": row, "labels": row} for row in torch.arange(256).reshape(16, 16)]


class LeaveOut(TrainerCallback):
    """Steps whose data the guard found bad change nothing."""

    def __init__(self) -> None:
        self.steps = skipped_steps(os.environ.get("COORDINATE_EVAL_SKIP", ""))

    def on_pre_optimizer_step(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        *,
        optimizer: torch.optim.Optimizer,
        **more: object,
    ) -> None:
        """Drop the gradients of such a step: the optimizer leaves weights without one alone."""
        if state.global_step + 1 in self.steps:
            optimizer.zero_grad()


def main() -> None:
    """Train for a few steps and save twice."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--checkpoints", type=Path, required=True)
    given = parser.parse_args()
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=256, num_attention_heads=4, **sizes))
    saving = {"max_steps": 4, "save_steps": 2, "report_to": []}
    trainer = Trainer(
        model=model,
        args=TrainingArguments(str(given.checkpoints), use_cpu=True, **saving),
        train_dataset=DATA,
        callbacks=[LeaveOut()],
    )
    start = os.environ.get("COORDINATE_EVAL_RESUME_FROM")
    trainer.train(resume_from_checkpoint=start or None)


if __name__ == "__main__":
    main()
