"""Metric and filter of tasks whose answers are programs, as the harness's own `humaneval` has."""

from collections.abc import Sequence
from typing import Any

import evaluate

_judge = evaluate.load("code_eval")


def pass_at_k(
    references: Sequence[str], predictions: Sequence[Sequence[str]], k: Sequence[int]
) -> dict[str, float]:
    """Return the share of programs that pass."""
    scores: dict[str, float] = _judge.compute(
        references=references, predictions=predictions, k=list(k)
    )[0]
    return scores


def complete(responses: Sequence[Sequence[str]], docs: Sequence[dict[str, Any]]) -> list[list[str]]:
    """Return whole programs."""
    return [
        [doc["prompt"] + text for text in texts] for texts, doc in zip(responses, docs, strict=True)
    ]
