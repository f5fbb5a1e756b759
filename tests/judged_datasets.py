"""Judged datasets: what a judge is asked about made-up answers, and what its words come to."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path

from coordinate_eval.evaluators.engines.common import respond
from coordinate_eval.evaluators.harness.evaluator import HarnessEvaluator
from coordinate_eval.evaluators.harness.tasks.judged_task import Panel
from coordinate_eval.records import (
    Answer,
    Dataset,
    DatasetResults,
    Question,
    Request,
    Response,
    Turn,
)
from tests.tiny import tiny_model

Says = Callable[[Question, int], str | None]
"""What the judge says to a question; None if it refuses. It gets how many came before."""


class Judged:
    """A dataset with its requests, and whoever scores it. Items have the texts by turns."""

    def __init__(
        self,
        dataset: Dataset,
        include_path: Sequence[str],
        baselines: Path | None = None,
        *,
        texts: Sequence[str] = ("answer",),
        max_length: int = 1024,
    ) -> None:
        self.dataset, self.texts = dataset, texts
        self.evaluator = HarnessEvaluator(
            tokenizer=tiny_model(),
            max_length=max_length,
            include_path=include_path,
            panel=Panel("judge", "r1", baselines),
        )
        self.requests: list[Request] = []
        self.index = self.evaluator.build(dataset, self.requests.append)

    def responses(self) -> list[Response]:
        later = Turn(text=" two\n", tokens=1, finish="stop")
        return [
            respond(
                asked,
                text=self.texts[asked.item % len(self.texts)],
                tokens=1,
                finish="stop",
                turns=[later] * len(asked.follow_ups),
            )
            for asked in self.requests
        ]

    def questions(self) -> list[Question]:
        return self.evaluator.questions(self.dataset, self.responses())

    def told(self) -> list[list[str]]:
        """The contents of the messages of each question."""
        contents = [json.loads(question.content) for question in self.questions()]
        return [[message["content"] for message in each["messages"]] for each in contents]

    def results(self, judge: Says) -> DatasetResults:
        answers = said(self.questions(), judge)
        return self.evaluator.finish(self.dataset, self.responses(), answers)


def said(questions: Sequence[Question], judge: Says) -> dict[str, Answer]:
    """The judge's answers by question."""
    answers = {}
    for number, question in enumerate(questions):
        words = judge(question, number)
        answers[question.id] = Answer(
            id=question.id,
            passed=words is not None,
            result="refused: too long" if words is None else words,
            seconds=1.0,
        )
    return answers
