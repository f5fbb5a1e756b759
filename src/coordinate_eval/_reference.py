"""`coordinate_eval.reference`: a few log-likelihoods of the trainer's own model, to compare with.

Nothing is imported here that `import coordinate_eval` would have to wait for.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

SCHEMA = "coordinate-eval/reference@1"

PROMPTS = (
    "The capital of France is Paris, and the capital of Japan is Tokyo. The river that flows "
    "through the first of these cities is the Seine.",
    "def fibonacci(n):\n    if n < 2:\n        return n\n    return fibonacci(n - 1) + "
    "fibonacci(n - 2)\n",
    "Question: A train travels 60 miles in 1.5 hours. What is its average speed?\nAnswer: 60 / "
    "1.5 = 40 miles per hour.",
    "Zwölf Boxkämpfer jagen Viktor quer über den großen Sylter Deich. 東京は日本の首都です。",
    "1, 1, 2, 3, 5, 8, 13, 21, 34, 55, 89, 144, 233, 377, 610, 987",
)
"""Texts of several kinds, long enough for positions to matter."""


def reference(model: Any, tokenizer: Any, path: str | os.PathLike[str]) -> None:  # noqa: ANN401
    """Write log-likelihoods of a few texts by a model in training, for `--check-against`.

    Call it in every process that holds a part of the model; process 0 (RANK) writes the file.

    Args:
        model: any callable that takes token ids of shape [1, tokens] and returns logits, a tuple
            that begins with them, or an object that has them as `logits`.
        tokenizer: has `encode`, or is a callable whose result has `input_ids`.
    """
    import torch

    parameter = next(iter(getattr(model, "parameters", lambda: ())()), None)
    device = getattr(parameter, "device", "cpu")
    kinds = [] if parameter is None else [parameter.dtype]
    training = bool(getattr(model, "training", False))
    if training:
        model.eval()
    prompts = []
    try:
        with torch.no_grad():
            for text in PROMPTS:
                ids = _ids(tokenizer, text)
                found = model(torch.tensor([ids], device=device))
                logits = getattr(found, "logits", found)
                logits = logits[0] if isinstance(logits, tuple) else logits
                kinds.append(logits.dtype)
                prompts.append({"text": text, "ids": ids, "logprobs": logprobs(logits, ids)})
    finally:
        if training:
            model.train()
    for name in {str(device).partition(":")[0], "cpu"}:
        if torch.is_autocast_enabled(name):
            kinds.append(torch.get_autocast_dtype(name))
    coarsest = max((kind for kind in kinds if kind.is_floating_point), key=_eps)
    dtype = str(coarsest).removeprefix("torch.")
    if os.environ.get("RANK", "0") == "0":
        _write(path, {"schema": SCHEMA, "dtype": dtype, "prompts": prompts})


def logprobs(logits: Any, ids: list[int]) -> list[float]:  # noqa: ANN401 - a tensor
    """Return the log-likelihood of each token but the first, given those before it."""
    import torch

    each = torch.log_softmax(logits.reshape(-1, logits.shape[-1])[: len(ids)].float(), -1)
    after = torch.tensor(ids[1:], device=each.device)
    found: list[float] = each[:-1].gather(1, after[:, None])[:, 0].tolist()
    return found


def _ids(tokenizer: Any, text: str) -> list[int]:  # noqa: ANN401
    found = tokenizer.encode(text) if hasattr(tokenizer, "encode") else tokenizer(text).input_ids
    return [int(each) for each in getattr(found, "ids", found)]


def _eps(kind: Any) -> float:  # noqa: ANN401 - a type of torch
    import torch

    return float(torch.finfo(kind).eps)


def _write(path: str | os.PathLike[str], value: dict[str, Any]) -> None:
    import json
    from pathlib import Path

    target = Path(path)
    unfinished = target.with_name(f"{target.name}.{os.getpid()}.part")
    unfinished.write_text(json.dumps(value), encoding="utf-8")
    unfinished.replace(target)
