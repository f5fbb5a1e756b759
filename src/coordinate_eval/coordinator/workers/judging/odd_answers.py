"""Oddities of a judge's answers, counted while it is asked. Scoring finds more."""

from collections import Counter
from collections.abc import Iterable, Iterator

from coordinate_eval.evaluators.judged.thinking import spoken
from coordinate_eval.records import Answer


def count_odd(answers: Iterable[Answer]) -> dict[str, int]:
    """Return how many answers are odd, by kind. The names are those of the results."""
    return dict(sorted(Counter(kind for answer in answers for kind in _kinds(answer)).items()))


def _kinds(answer: Answer) -> Iterator[str]:
    if not answer.passed:
        yield "refused"
        return
    said = spoken(answer.result)
    if said is None:
        yield "thinking_unended"
    elif not said.strip():
        yield "empty"
    if answer.cut:
        yield "cut"
    yield from (f"without_{name}" for name in answer.without)
