"""Trainers that ask for the evaluation of each checkpoint they save: one line in each.

The line is marked. The rest is a model so small that this file runs anywhere:

    python trainers.py transformers --checkpoints FOLDER [OPTIONS OF coordinate-eval]

With `--dry-run --cluster cluster.yaml` among the options nothing is submitted.
"""

import argparse
import logging
from collections.abc import Sequence
from pathlib import Path

import torch
from tokenizers import Tokenizer, models
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

import coordinate_eval
from coordinate_eval import integrations

DATA = [{"input_ids": row, "labels": row} for row in torch.arange(256).reshape(16, 16)]


def model() -> LlamaForCausalLM:
    """Return the model to train."""
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
    return LlamaForCausalLM(LlamaConfig(vocab_size=256, num_attention_heads=4, **sizes))


def tokenizer() -> PreTrainedTokenizerFast:
    """Return its tokenizer."""
    words = models.WordLevel({f"<{number}>": number for number in range(256)})
    made = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(words))
    made.pad_token_id = 0
    return made


def with_transformers(folder: Path, options: Sequence[str]) -> None:
    """Train with Hugging Face's Trainer."""
    from transformers import Trainer, TrainingArguments

    saving = {"max_steps": 4, "save_steps": 2, "report_to": []}
    Trainer(
        model=model(),
        args=TrainingArguments(str(folder), use_cpu=True, **saving),
        train_dataset=DATA,
        processing_class=tokenizer(),  # saved in every checkpoint
        callbacks=[integrations.transformers_callback(options=options)],  # the line
    ).train()


def with_lightning(folder: Path, options: Sequence[str]) -> None:
    """Train with Lightning, whose checkpoints have no config and no tokenizer beside them."""
    from pytorch_lightning import LightningModule, Trainer
    from pytorch_lightning.callbacks import ModelCheckpoint

    class Module(LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = model()

        def training_step(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
            loss: torch.Tensor = self.model(**batch).loss
            return loss

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.AdamW(self.parameters())

    folder.mkdir(parents=True, exist_ok=True)
    model().config.save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    saver = ModelCheckpoint(folder, "{step}", every_n_train_steps=2, save_top_k=-1)
    asking = integrations.lightning_callback(options=options)  # the line
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    Trainer(max_steps=4, accelerator="cpu", callbacks=[saver, asking], **quiet).fit(
        Module(), torch.utils.data.DataLoader(DATA, batch_size=1)
    )


def with_accelerate(folder: Path, options: Sequence[str]) -> None:
    """Train with Accelerate."""
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    trained = model()
    optimizer = torch.optim.AdamW(trained.parameters())
    batches = torch.utils.data.DataLoader(DATA, batch_size=4)
    trained, optimizer, batches = accelerator.prepare(trained, optimizer, batches)
    for step, batch in enumerate(batches, 1):
        accelerator.backward(trained(**batch).loss)
        optimizer.step()
        optimizer.zero_grad()
        if step % 2 == 0:
            saved = folder / f"step-{step}"
            accelerator.save_model(trained, saved)
            if accelerator.is_main_process:
                accelerator.unwrap_model(trained).config.save_pretrained(saved)
                tokenizer().save_pretrained(saved)
            coordinate_eval.after_save(saved, step=step, options=options)  # the line


def main() -> None:
    """Train for a few steps and save twice."""
    trainers = {
        "transformers": with_transformers,
        "lightning": with_lightning,
        "accelerate": with_accelerate,
    }
    parser = argparse.ArgumentParser()
    parser.add_argument("trainer", choices=trainers)
    parser.add_argument("--checkpoints", type=Path, required=True)
    arguments, options = parser.parse_known_args()
    logging.basicConfig(level=logging.INFO)  # `after_save` logs what came of it
    trainers[arguments.trainer](arguments.checkpoints, options)


if __name__ == "__main__":
    main()
