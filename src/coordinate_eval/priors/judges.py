"""The cost of a question to a judge, learned from those that runs have asked it."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from coordinate_eval.priors.observations import JudgeSeen

GUESS_WEIGHT = 0.01
"""Weight of what is taken without these observations, in questions."""


class PerQuestion(NamedTuple):
    """The means over questions to a judge."""

    seconds: float
    """Of a server, from the question to its answer, beside all else that it is asked."""
    tokens: float
    """Read and written."""


def learned(
    seen: Sequence[JudgeSeen], weights: Sequence[float], before: PerQuestion
) -> PerQuestion:
    """Return the weighted means over questions; they are `before` where all weights are 0.

    Nothing is learned from what was not measured: the seconds of a judge that is a checkpoint.
    """
    each = list(zip(seen, weights, strict=True))
    return PerQuestion(
        seconds=_mean(((w, one.questions, one.seconds) for one, w in each), before.seconds),
        tokens=_mean(((w, one.questions, one.tokens) for one, w in each), before.tokens),
    )


def _mean(measured: Iterable[tuple[float, int, float]], before: float) -> float:
    """Return the mean of sums, each with a weight and the questions that it is of."""
    total, sums = GUESS_WEIGHT, GUESS_WEIGHT * before
    for weight, questions, taken in measured:
        if taken > 0:
            total, sums = total + weight * questions, sums + weight * taken
    return sums / total
