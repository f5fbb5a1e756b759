"""A judge's budget for a run: requests and tokens."""

import json
from collections.abc import Iterable

from coordinate_eval._format import plural
from coordinate_eval.coordinator.inputs.settings import JudgeSettings
from coordinate_eval.records import Answer, Question

_BYTES_PER_TOKEN = 3
"""Assumed of a question before the judge has counted its tokens: few bytes, so many tokens, so that
the budget holds."""


class Spent(Exception):
    """The budget is spent. The text says which setting raises it."""


class Budget:
    """The requests and tokens of a run's judge: spent, and still left."""

    def __init__(self, settings: JudgeSettings, answers: Iterable[Answer]) -> None:
        self._settings = settings
        self.requests = self.tokens = 0
        for answer in answers:
            self.count(answer)

    def count(self, answer: Answer) -> None:
        """Count an answer, unless the judge gave it to an earlier run."""
        if not answer.kept:
            self.requests += 1
            self.tokens += answer.tokens

    def why_not(self, questions: int, tokens: int) -> str:
        """Return why no more questions with so many tokens can be in flight; empty if they can."""
        most = self._settings.max_requests
        if most is not None and self.requests + questions > most:
            return (
                f"the budget is spent: the judge was asked {plural(self.requests, 'question')}, "
                f"and [judge] max_requests is {most:,}"
            )
        most = self._settings.max_tokens
        if most is not None and self.tokens + tokens > most:
            return (
                f"the budget is spent: the judge read and wrote {plural(self.tokens, 'token')}, "
                f"more questions may take {tokens:,}, and [judge] max_tokens is {most:,}"
            )
        return ""


def most_tokens(question: Question) -> int:
    """Return how many tokens question and answer may have together, as far as can be told."""
    limit = int(json.loads(question.content)["max_tokens"])
    return len(question.content.encode()) // _BYTES_PER_TOKEN + limit
