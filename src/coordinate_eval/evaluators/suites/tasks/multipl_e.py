"""Programs of MultiPL-E and of data sets in its format: an answer between a prompt and tests.

A row has `prompt`, `tests` and `stop_tokens`. Its program is the prompt, the answer up to the first
of its stop tokens, and the tests. Rows of any data set in this format can be used.
"""

from collections.abc import Sequence
from typing import Any

Doc = dict[str, Any]

# The sandbox starts the class Main, and in Rust the tests. Assertions of Java are off by default.
_ENDS = {
    "java": "class Main { public static void main(String[] args) throws Throwable { "
    "ClassLoader.getSystemClassLoader().setDefaultAssertionStatus(true); Problem.main(args); } }\n",
    "rust": "#[test] fn all_of_them() { main() }\n",
}


def programs(responses: Sequence[Sequence[str]], docs: Sequence[Doc]) -> list[list[str]]:
    """Return the programs of each document's answers, without their tests."""
    return [
        [doc["prompt"].strip() + answer(doc, text) for text in texts]
        for texts, doc in zip(responses, docs, strict=True)
    ]


def answer(doc: Doc, text: str) -> str:
    """Return the part of a text before the first of the row's stop tokens."""
    ends = [place for token in doc["stop_tokens"] if (place := text.find(token)) >= 0]
    return text[: min(ends, default=len(text))]


def pass_at_k(
    references: list[str], predictions: list[list[str]], k: list[int], language: str
) -> dict[str, float]:
    """Return the unbiased estimate of pass@k for each k for which there are enough answers."""
    import evaluate

    tests = [f"{test}\n{_ENDS.get(language, '')}" for test in references]
    scores, _ = evaluate.load("code_eval").compute(
        references=tests, predictions=predictions, k=k, language=language
    )
    return dict(scores)
