"""Verdicts in a judge's words, and the scores that they make. Pure functions of their arguments.

A verdict is a list of values: one rating, or what a label stands for, once for each time that it
counts. None stands for words without a verdict, which count in no mean and are counted themselves.

Of a pair, side A is the baseline in the first game, and the answer in the second. A value is the
share of a battle that side A wins. Rules of Arena-Hard (Li et al., 2024): a pair with a game
without a verdict is left out whole; all battles of all others weigh the same.

Style control removes from a win rate what length and Markdown add to it, also by Arena-Hard's
rules: a logistic regression fits the outcomes of battles to the differences in style, and what is
left is the answer's own strength. Length is counted in words here, and in tokens there.
"""

import math
import re
import statistics
from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from coordinate_eval.evaluators.judged.thinking import spoken
from coordinate_eval.records import Rubric

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


Verdict = list[float] | None

SECONDS = 2.0
"""Longest search for a verdict in a judge's words. A pattern may take for ever on some texts."""

STYLE_CONTROLLED = "win_rate_style_controlled"
"""Name of the win rate without what style adds. The names of its interval begin with it."""

CONFIDENCE = 0.9
RESAMPLES = 1000


class Lack(StrEnum):
    """Reasons for which a judge's words have no verdict: names of counts in the results."""

    UNENDED = "thinking_unended"
    EMPTY = "empty"
    OUT_OF_RANGE = "out_of_range"
    NO_MATCH = "no_match"


class Found(NamedTuple):
    """A verdict found in a judge's words, or the reason why the words have no verdict."""

    verdict: Verdict
    lack: Lack | None = None


def look_for_verdict(words: str, rubric: Rubric) -> Found:
    """Return the verdict in a judge's words after its thinking, by the first pattern that matches.

    A rating outside of the rubric's scale, or a label that it does not have, is no verdict, and
    nothing is looked for in its place.
    """
    said = spoken(words)
    if said is None:
        return Found(None, Lack.UNENDED)
    if not said.strip():
        return Found(None, Lack.EMPTY)
    import regex  # a package of the harness: the standard library's knows no time limit

    flags = regex.IGNORECASE if rubric.ignore_case else 0
    for pattern in rubric.patterns:
        found = None
        try:
            for match in regex.finditer(pattern, said, flags, timeout=SECONDS):
                if match[1]:
                    found = match[1]
                    if rubric.take == "first":
                        break
        except TimeoutError:
            return Found(None, Lack.NO_MATCH)
        if found is not None:
            return _meaning(found.strip(), rubric)
    return Found(None, Lack.NO_MATCH)


def _meaning(said: str, rubric: Rubric) -> Found:
    if rubric.labels:
        labels = rubric.labels
        if rubric.ignore_case:
            said, labels = said.upper(), {name.upper(): v for name, v in labels.items()}
        values = labels.get(said)
        return Found(values, None if values else Lack.NO_MATCH)
    try:
        rating = float(said)
    except ValueError:
        return Found(None, Lack.NO_MATCH)
    least, most = rubric.scale or (-math.inf, math.inf)
    if math.isfinite(rating) and least <= rating <= most:
        return Found([rating])
    return Found(None, Lack.OUT_OF_RANGE)


def battles(first: Verdict, second: Verdict) -> list[float]:
    """Return the shares of battles that the answer wins in two games with sides exchanged."""
    if first is None or second is None:
        return []
    return second + [1 - value for value in first]


def side_preferred(first: Verdict, second: Verdict) -> float | None:
    """Return 1 if the same side wins both games, else 0; None if a game has no verdict."""
    if first is None or second is None:
        return None
    ahead = [np.sign(np.mean(values) - 0.5) for values in (first, second)]
    return float(ahead[0] == ahead[1] != 0)


Values = Sequence[Sequence[float]]
"""The values of each document."""


class Mean:
    """The mean of all values of all documents, with a standard error that knows of documents."""

    def __call__(self, documents: Values) -> float:
        """Return the mean, NaN if there is no value."""
        values = [value for document in documents for value in document]
        return math.fsum(values) / len(values) if values else math.nan

    def stderr(self, documents: Values) -> float:
        """Return the standard error of this ratio of two sums over documents.

        With one value each, it is the standard error of a mean. Values of one document are not
        independent: see Miller, "Adding Error Bars to Evals" (2024), on clusters.
        """
        with_values = [document for document in documents if document]
        count = len(with_values)
        if count < 2:
            return math.nan
        mean = self(documents)
        off = math.fsum((math.fsum(of) - mean * len(of)) ** 2 for of in with_values)
        return math.sqrt(count / (count - 1) * off) / sum(map(len, with_values))


class MeanOfItems(Mean):
    """The mean over documents of the mean of their values. Each document counts once."""

    def __call__(self, documents: Values) -> float:
        """Return the mean, NaN if there is no value."""
        return super().__call__(_means(documents))

    def stderr(self, documents: Values) -> float:
        """Return the standard error of a mean."""
        return super().stderr(_means(documents))


class Median:
    """The median of all values of all documents."""

    def __call__(self, documents: Values) -> float:
        """Return the median, NaN if there is no value."""
        values = [value for document in documents for value in document]
        return statistics.median(values) if values else math.nan


def _means(documents: Values) -> list[list[float]]:
    return [[math.fsum(values) / len(values)] for values in documents if values]


class Bound:
    """An end of the bootstrap interval of the mean of all values, drawn one by one."""

    def __init__(self, quantile: float) -> None:
        """Take an end by its quantile."""
        self._quantile = quantile

    def __call__(self, documents: Values) -> float:
        """Return the end of the interval, NaN if there is no value. It is always the same one."""
        values, counts = np.unique(
            [value for document in documents for value in document], return_counts=True
        )
        if not len(values):
            return math.nan
        drawn = np.random.default_rng(0).multinomial(
            counts.sum(), counts / counts.sum(), size=RESAMPLES
        )
        return float(np.quantile(drawn @ values / counts.sum(), self._quantile))


class Total:
    """The sum of all values."""

    def __call__(self, documents: Values) -> float:
        """Return the sum."""
        return math.fsum(value for document in documents for value in document)


def main_metric(rubric: Rubric) -> str:
    """Return the name of the metric to which others add a prompt's name or a document's group."""
    return "win_rate" if rubric.pair else "score"


Aggregation = Callable[[Any], float]


_AGGREGATIONS: dict[str, Callable[[], Aggregation]] = {
    "mean": Mean,
    "median": Median,
    "mean_of_items": MeanOfItems,
}


def metrics_of(rubric: Rubric) -> dict[str, tuple[Aggregation, bool]]:
    """Return the metrics of a rubric: how each is computed, and whether more is better."""
    tail = (1 - CONFIDENCE) / 2
    if rubric.pair:
        found: dict[str, tuple[Aggregation, bool]] = {
            "win_rate": (Mean(), True),
            "win_rate_low": (Bound(tail), True),
            "win_rate_high": (Bound(1 - tail), True),
            "position_bias": (Mean(), False),
        }
        if rubric.style_control:
            found |= {
                STYLE_CONTROLLED: (StyleControlled(), True),
                f"{STYLE_CONTROLLED}_low": (StyleControlledBound(tail), True),
                f"{STYLE_CONTROLLED}_high": (StyleControlledBound(1 - tail), True),
            }
    else:
        found = {"score": (_AGGREGATIONS[rubric.aggregation](), True)}
    return found | {"no_verdict": (Total(), False)}


def document_metrics(
    rubric: Rubric, by: str | None, verdicts: dict[str, list[list[Verdict]]]
) -> dict[str, list[float]]:
    """Return the values of a document by metric.

    Args:
        by: the document's value of the rubric's field `by`, None if it has none.
        verdicts: by prompt, of each of the document's answers, and of each game about it.
    """
    games = [games for of_prompt in verdicts.values() for games in of_prompt]
    missing = [float(verdict is None) for of_answer in games for verdict in of_answer]
    main = main_metric(rubric)
    by_prompt = {name: _values(rubric, found) for name, found in verdicts.items()}
    values = [value for of_prompt in by_prompt.values() for value in of_prompt]
    found = {main: values}
    if rubric.pair:
        sides = [side_preferred(*two) for two in games]
        found |= {f"{main}_low": values, f"{main}_high": values}
        found["position_bias"] = [side for side in sides if side is not None]
    if len(rubric.prompts) > 1:
        found |= {f"{main}_{name}": of_prompt for name, of_prompt in by_prompt.items()}
    if by is not None:
        found[f"{main}_{by}"] = values
    return found | {"no_verdict": missing}


def _values(rubric: Rubric, answers: list[list[Verdict]]) -> list[float]:
    """Return the values of a prompt's verdicts."""
    if rubric.pair:
        return [value for first, second in answers for value in battles(first, second)]
    return [value for (verdict,) in answers if verdict is not None for value in verdict]
