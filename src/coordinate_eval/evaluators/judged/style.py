"""A win rate without what length and Markdown add to it: style control.

The rules are Arena-Hard's: the outcomes of battles are fitted by a logistic regression on how the
two answers differ in style, and what is left is the answer's own strength. Length is counted in
words here, and in the tokens of one model's tokenizer there.
"""

import re
from collections.abc import Sequence

import numpy as np

_CODE = re.compile(r"```[^`]*```")
_MARKDOWN = (
    [re.compile(r"^#{1,6}\s", re.MULTILINE)],
    [re.compile(r"^[^\S\n]*(?:\d+\.|[-*+])\s", re.MULTILINE)],
    [re.compile(r"\*\*[^*\n]+\*\*"), re.compile(r"__[^_\n]+__")],
)
"""Headings, entries of lists, and what is bold."""

_RIDGE = 1e-6
_STEPS = 100

Battle = Sequence[float]
"""An outcome, then the differences in style."""


def differences(answer: str, baseline: str) -> list[float]:
    """Return how an answer differs from a baseline's: in length, and in Markdown for its length.

    Each is between -1 and 1.
    """
    (length, *marks), (other_length, *other_marks) = _style(answer), _style(baseline)
    found = [(length - other_length) / max(1, length + other_length)]
    for mark, other in zip(marks, other_marks, strict=True):
        density, other_density = mark / (length + 1), other / (other_length + 1)
        found.append((density - other_density) / (density + other_density + 1))
    return found


class StyleControlled:
    """The share of battles that the answers would win if their style were the baseline's."""

    def __call__(self, documents: Sequence[Sequence[Battle]]) -> float:
        """Return the share, NaN if there is no battle."""
        rows = [battle for document in documents for battle in document]
        if not rows:
            return float("nan")
        outcomes, style = np.split(np.asarray(rows, float), [1], axis=1)
        spread = style.std(axis=0, ddof=1) if len(rows) > 1 else np.zeros(style.shape[1])
        style = (style - style.mean(axis=0)) / np.where(spread > 0, spread, 1)
        features = np.hstack([np.ones_like(outcomes), style])
        strength = _fitted(features, outcomes[:, 0])[0]
        return float(1 / (1 + np.exp(-strength)))


def _fitted(features: np.ndarray, outcomes: np.ndarray) -> np.ndarray:
    """Return the coefficients of a logistic regression, by Newton's method."""
    found = np.zeros(features.shape[1])
    for _ in range(_STEPS):
        chances = 1 / (1 + np.exp(-np.clip(features @ found, -30, 30)))
        slope = features.T @ (outcomes - chances) - _RIDGE * found
        weights = chances * (1 - chances)
        bend = (features * weights[:, None]).T @ features + _RIDGE * np.eye(len(found))
        step = np.clip(np.linalg.solve(bend, slope), -1, 1)
        found = found + step
        if np.abs(step).max() < 1e-12:
            break
    return found


def _style(text: str) -> list[int]:
    prose = _CODE.sub("", text)
    marks = (sum(len(mark.findall(prose)) for mark in alike) for alike in _MARKDOWN)
    return [len(text.split()), *marks]
