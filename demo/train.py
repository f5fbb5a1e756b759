"""A small Llama trained from nothing: the training loop that the demo stands for.

It is an ordinary one. All it knows of evaluation is a function that it calls after each save.
"""

import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from transformers.utils.logging import disable_progress_bar

_END = "<|end|>"
_CONTEXT = 256


@dataclass(frozen=True)
class Settings:
    """Settings of the training. Lengths are in tokens, `saves` in optimizer steps."""

    saves: tuple[int, ...] = (100, 250, 450, 650, 900)
    warmup_steps: int = 50
    rows: int = 16
    row_length: int = 64
    learning_rate: float = 3e-3
    seed: int = 0


def train(
    documents: Iterator[str],
    folder: Path,
    settings: Settings,
    *,
    on_step: Callable[[int, float], None],
    on_save: Callable[[int, Path], None],
) -> None:
    """Train to the last of `settings.saves`, saving `folder/step-N` in Hugging Face format.

    `on_step` gets each step's number, from 1, and its loss in nats per token; `on_save` gets
    the step and the checkpoint just written, and training goes on when it returns.
    """
    disable_progress_bar()  # type: ignore[no-untyped-call]  # untyped there; a save is short
    torch.manual_seed(settings.seed)
    torch.set_num_threads(1)  # so small a model gains little from more, and waits on a busy machine
    tokenizer = make_tokenizer(list(itertools.islice(documents, 5000)))
    model = make_model(tokenizer)
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=settings.learning_rate, betas=(0.9, 0.98), weight_decay=0.01
    )
    steps = max(settings.saves)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda done: _rate(done, settings.warmup_steps, steps)
    )
    batches = _batches(documents, tokenizer, settings.rows, settings.row_length)
    for step, batch in enumerate(itertools.islice(batches, steps), start=1):
        loss = model(input_ids=batch, labels=_labels(batch, tokenizer)).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        on_step(step, loss.item())
        if step in settings.saves:
            checkpoint = folder / f"step-{step}"
            model.save_pretrained(checkpoint)
            tokenizer.save_pretrained(checkpoint)
            on_save(step, checkpoint)


def spoil(folder: Path, step: int, bad: int) -> Path:
    """Save a checkpoint again as another step, with noise as large as its weights. Return its path.

    So looks a training that reads a bad batch with too high a learning rate.
    """
    good, checkpoint = folder / f"step-{step}", folder / f"step-{bad}"
    model = LlamaForCausalLM.from_pretrained(good)
    torch.manual_seed(bad)
    with torch.no_grad():
        for weights in model.parameters():
            weights.add_(weights.std() * torch.randn_like(weights))
    model.save_pretrained(checkpoint)
    PreTrainedTokenizerFast.from_pretrained(good).save_pretrained(checkpoint)
    return checkpoint


def make_tokenizer(texts: list[str]) -> PreTrainedTokenizerFast:
    """Learn byte-level BPE from `texts`; each digit is a token of its own."""
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.Sequence(
        [
            # A prompt's last newline is then the same token as before a model's first word.
            pre_tokenizers.Split("\n", "isolated"),
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    bpe.decoder = decoders.ByteLevel()
    bpe.train_from_iterator(
        texts,
        trainers.BpeTrainer(
            vocab_size=512,
            special_tokens=[_END],
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        ),
    )
    return PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]  # untyped there
        tokenizer_object=bpe, eos_token=_END, pad_token=_END, model_max_length=_CONTEXT
    )


def make_model(tokenizer: PreTrainedTokenizerFast) -> LlamaForCausalLM:
    """Make a Llama of 0.7 million parameters in float32, not trained yet."""
    return LlamaForCausalLM(  # type: ignore[no-untyped-call]  # untyped there
        LlamaConfig(
            vocab_size=len(tokenizer),
            hidden_size=128,
            intermediate_size=384,
            num_hidden_layers=3,
            num_attention_heads=4,
            num_key_value_heads=4,
            max_position_embeddings=_CONTEXT,
            tie_word_embeddings=True,
            initializer_range=0.08,  # about 1/√hidden: the usual 0.02 is made for wide ones
            bos_token_id=None,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
        )
    )


def _rate(done: int, warmup: int, steps: int) -> float:
    """Share of the peak learning rate: up in a line, down in a cosine to a tenth."""
    if done < warmup:
        return (done + 1) / warmup
    return 0.55 + 0.45 * math.cos(math.pi * (done - warmup) / (steps - warmup))


def _batches(
    documents: Iterator[str], tokenizer: PreTrainedTokenizerFast, rows: int, length: int
) -> Iterator[torch.Tensor]:
    """Yield token ids of shape (rows, length); a row is whole documents, then padding."""
    end = tokenizer.eos_token_id
    packed: list[list[int]] = [[]]
    for document in documents:
        tokens = [*tokenizer.encode(document), end]
        if len(packed[-1]) + len(tokens) > length:
            if len(packed) == rows:
                yield torch.tensor([row + [end] * (length - len(row)) for row in packed])
                packed = []
            packed.append([])
        packed[-1] += tokens


def _labels(batch: torch.Tensor, tokenizer: PreTrainedTokenizerFast) -> torch.Tensor:
    """Return what to predict: everything but the padding, which is an end after an end."""
    end = batch == tokenizer.eos_token_id
    padding = end & torch.roll(end, 1, dims=1)
    return batch.masked_fill(padding, -100)
