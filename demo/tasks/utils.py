"""Functions of `programs.yaml`: programs out of completions, and the metric that runs them."""

from typing import Any

import evaluate

_code_eval = evaluate.load("code_eval")


def pass_at_k(references: list[str], predictions: list[list[str]], k: list[int]) -> dict[str, Any]:
    """Share of programs that pass their tests, as `{"pass@1": share}`."""
    scores, _ = _code_eval.compute(references=references, predictions=predictions, k=k)
    return dict(scores)


def build_predictions(
    responses: list[list[str]], documents: list[dict[str, Any]]
) -> list[list[str]]:
    """Return whole programs: each document's prompt with each of its completions."""
    return [
        [document["prompt"] + completion for completion in completions]
        for completions, document in zip(responses, documents, strict=True)
    ]
