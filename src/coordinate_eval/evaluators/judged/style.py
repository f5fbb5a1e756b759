"""A win rate without what length and Markdown add to it: style control.

The rules are Arena-Hard's: the outcomes of battles are fitted by a logistic regression on how the
two answers differ in style, and what is left is the answer's own strength. Length is counted in
words here, and in the tokens of one model's tokenizer there.
"""

import math
import re
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

_CODE = re.compile(r"```[^`]*```")
_MARKDOWN = (
    [re.compile(r"^#{1,6}\s", re.MULTILINE)],
    [re.compile(r"^[^\S\n]*(?:\d+\.|[-*+])\s", re.MULTILINE)],
    [re.compile(r"\*\*[^*\n]+\*\*"), re.compile(r"__[^_\n]+__")],
)
"""Headings, entries of lists, and what is bold."""

_RIDGE = 1e-6
_STEPS = 100

_RESAMPLES, _AT_ONCE = 1000, 100
"""Draws of the bootstrap, and how many of them are in memory at the same time."""

Array = npt.NDArray[np.float64]

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
        rows = _rows(documents)
        return float(_shares(rows, np.ones((1, len(rows))))[0]) if len(rows) else math.nan


class StyleControlledBound:
    """An end of the bootstrap interval of that share: battles are drawn one by one."""

    def __init__(self, quantile: float) -> None:
        """Take an end by its quantile."""
        self._quantile = quantile

    def __call__(self, documents: Sequence[Sequence[Battle]]) -> float:
        """Return the end of the interval, NaN if there is no battle. It is always the same one."""
        rows = _rows(documents)
        if not len(rows):
            return math.nan
        draws = np.random.default_rng(0)
        even = np.full(len(rows), 1 / len(rows))
        shares = [
            _shares(rows, draws.multinomial(len(rows), even, size=_AT_ONCE).astype(float))
            for _ in range(_RESAMPLES // _AT_ONCE)
        ]
        return float(np.quantile(np.concatenate(shares), self._quantile))


def _rows(documents: Sequence[Sequence[Battle]]) -> Array:
    """Return all battles: outcomes in the first column, standardized differences in the others."""
    rows = np.asarray([battle for document in documents for battle in document], float)
    if len(rows):
        style = rows[:, 1:]
        spread = style.std(axis=0, ddof=1) if len(rows) > 1 else np.zeros(style.shape[1])
        rows[:, 1:] = (style - style.mean(axis=0)) / np.where(spread > 0, spread, 1)
    return rows


def _shares(rows: Array, counts: Array) -> Array:
    """Return the share without style for each line of `counts`: how often each battle is there.

    Logistic regressions with an intercept, which is the strength, by Newton's method.
    """
    outcomes = rows[:, 0]
    features = np.hstack([np.ones((len(rows), 1)), rows[:, 1:]])
    size = features.shape[1]
    products = (features[:, :, None] * features[:, None, :]).reshape(len(rows), -1)
    found = np.zeros((len(counts), size))
    for _ in range(_STEPS):
        chances = 1 / (1 + np.exp(-np.clip(found @ features.T, -30, 30)))
        slope = (counts * (outcomes - chances)) @ features - _RIDGE * found
        bend = ((counts * chances * (1 - chances)) @ products).reshape(-1, size, size)
        step = np.linalg.solve(bend + _RIDGE * np.eye(size), slope[:, :, None])[:, :, 0]
        found += np.clip(step, -1, 1)
        if np.abs(step).max() < 1e-12:
            break
    return np.asarray(1 / (1 + np.exp(-found[:, 0])))


def _style(text: str) -> list[int]:
    prose = _CODE.sub("", text)
    marks = (sum(len(mark.findall(prose)) for mark in alike) for alike in _MARKDOWN)
    return [len(text.split()), *marks]
