"""Compare log-likelihoods of converted weights with those of the trainer's own model.

Shapes do not tell one order of rows from another: queries, keys and values by group or one after
the other, rotary halves or pairs. Answers do. The weights are converted as for a node, and a model
of transformers computes on the CPU what `coordinate_eval.reference` has written in training.
"""

import json
import math
import os
import tempfile
from pathlib import Path
from typing import Any, Final, NamedTuple

from pydantic import Field, ValidationError

from coordinate_eval import _user_files
from coordinate_eval._format import brief
from coordinate_eval._reference import SCHEMA, logprobs
from coordinate_eval.coordinator.inputs.checkpoints import clean_files, reading
from coordinate_eval.coordinator.workers.on_node import convert
from coordinate_eval.errors import UserError
from coordinate_eval.records import Checkpoint, Record

_ROUNDED: Final = {"bfloat16": 0.5, "float16": 0.06, "float32": 2e-3, "float64": 2e-3}
"""The largest difference of a log-likelihood, by type, that rounding makes: 64 times the relative
step of a number, as logits are about that large; in float32 what TF32 makes of it."""
_MEAN_PART = 8
"""The mean difference may be this part of the largest one."""
_COARSE = ("bfloat16", "float16", "float32", "float64")
_MOST_TOKENS = 4096


class _Prompt(Record):
    text: str = Field(max_length=20_000)
    ids: list[int] = Field(min_length=2, max_length=_MOST_TOKENS)
    logprobs: list[float]


class _Reference(Record):
    dtype: str
    prompts: list[_Prompt] = Field(min_length=1, max_length=100)


class Compared(NamedTuple):
    """The differences between log-likelihoods and those of a trainer."""

    tokens: int
    largest: float
    mean: float
    allowed: float
    """The largest difference that the coarser of both types explains."""
    where: str
    """The token with the largest difference, in words."""


def check(checkpoint: Checkpoint, file: Path) -> Compared:
    """Compare a checkpoint with a reference.

    It takes the memory of the model on this machine, in the type of its weights, and as much room
    among temporary files if it has to be converted.

    Raises:
        UserError: It differs by more than rounding, or cannot be compared.
    """
    reference = read(file)
    _check_ids(checkpoint, reference, file)
    with tempfile.TemporaryDirectory(prefix="coordinate-eval-") as made:
        folder = Path(made)
        clean_files.copy(checkpoint.files, folder)
        if checkpoint.converted:
            opened = reading.source(checkpoint)
            reading.write_config(opened, folder)
            convert.write(opened, folder, lambda _: None)
        else:
            for weights in map(Path, checkpoint.weights):
                (folder / weights.name).symlink_to(weights)
        found = _compare(folder, checkpoint, reference, file)
    if found.largest > found.allowed or found.mean > found.allowed / _MEAN_PART:
        raise UserError(
            f"checkpoint {checkpoint.path} answers otherwise than the model that wrote {file}: "
            f"{found.where}; the mean difference of {found.tokens:,} tokens is {found.mean:.3g}, "
            f"and rounding explains {found.allowed / _MEAN_PART:.3g}, and {found.allowed:.3g} for "
            "one. The order of rows may be another than the mapping says (queries, keys and "
            "values, or rotary pairs), the config another, or the reference of another step"
        )
    return found


def read(file: Path) -> _Reference:
    """Return the reference in a file.

    Raises:
        UserError: There is none, or its numbers are not finite.
    """
    try:
        found = json.loads(_user_files.read_text(file, "reference", anybodys=True))
        if not isinstance(found, dict) or found.get("schema") != SCHEMA:
            raise ValueError(f"its schema is not {SCHEMA}")
        reference = _Reference.model_validate(found)
    except (ValueError, ValidationError, RecursionError) as error:
        raise UserError(
            f"{file} is not what coordinate_eval.reference writes: {brief(error, 300)}"
        ) from error
    for each in reference.prompts:
        if len(each.logprobs) != len(each.ids) - 1 or not all(map(math.isfinite, each.logprobs)):
            raise UserError(
                f"{file}: {brief(each.text)} has log-likelihoods that are missing or not finite: "
                "the model in training gave none"
            )
    return reference


def _check_ids(checkpoint: Checkpoint, reference: _Reference, file: Path) -> None:
    """Refuse tokens that the model has no embedding for."""
    largest = max(max(each.ids) for each in reference.prompts)
    least = min(min(each.ids) for each in reference.prompts)
    if least < 0 or (checkpoint.vocabulary and largest >= checkpoint.vocabulary):
        raise UserError(
            f"{file} has token {largest:,}, and the model has {checkpoint.vocabulary:,}: it was "
            "written with the tokenizer of another model"
        )


def _compare(folder: Path, checkpoint: Checkpoint, reference: _Reference, file: Path) -> Compared:
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils import logging

    torch.set_num_threads(len(os.sched_getaffinity(0)))  # a conversion computes on one of its own
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        tokenizer: Any = AutoTokenizer.from_pretrained(
            folder, local_files_only=True, trust_remote_code=False
        )
        model: Any = AutoModelForCausalLM.from_pretrained(
            folder, dtype=getattr(torch, checkpoint.dtype), local_files_only=True,
            trust_remote_code=False, use_safetensors=True,
        )  # fmt: skip
    except Exception as error:
        raise UserError(
            f"transformers cannot load {checkpoint.path}, so it is not compared with {file}: "
            f"{brief(error, 300)}"
        ) from error
    largest, total, tokens, where = -1.0, 0.0, 0, ""
    with torch.no_grad():
        for prompt in reference.prompts:
            _check_tokens(tokenizer, prompt, file)
            own = logprobs(model(torch.tensor([prompt.ids])).logits, prompt.ids)
            for place, (one, other) in enumerate(zip(own, prompt.logprobs, strict=True), 1):
                # NaN differs from everything.
                difference = abs(one - other) if math.isfinite(one) else math.inf
                total, tokens = total + difference, tokens + 1
                if difference > largest:
                    largest = difference
                    where = (
                        f"token {place} (id {prompt.ids[place]}) of {brief(prompt.text, 40)!r} has "
                        f"the log-likelihood {one:.4f}, and {other:.4f} there"
                    )
    coarser = min(
        (d for d in (checkpoint.dtype, reference.dtype) if d in _COARSE),
        key=_COARSE.index, default="bfloat16",
    )  # fmt: skip
    return Compared(tokens, largest, total / tokens, _ROUNDED[coarser], where)


def _check_tokens(tokenizer: Any, prompt: _Prompt, file: Path) -> None:  # noqa: ANN401
    """Refuse another tokenizer than the trainer's, whatever it puts before and after a text."""
    own = list(tokenizer.encode(prompt.text, add_special_tokens=False))
    if own and not any(
        prompt.ids[start : start + len(own)] == own
        for start in range(len(prompt.ids) - len(own) + 1)
    ):
        raise UserError(
            f"{file}: the tokenizer beside the checkpoint makes other tokens of "
            f"{brief(prompt.text, 40)!r} than the trainer's. Give that one with --tokenizer"
        )
