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
    """Return whole programs, or such that sleep."""
    return [
        [_program(doc, text) for text in texts] for texts, doc in zip(responses, docs, strict=True)
    ]


def _program(doc: dict[str, Any], text: str) -> str:
    if doc["seconds"]:
        return f"import time; time.sleep({doc['seconds']})  # {doc['test']!r}"
    return str(doc["prompt"]) + text
