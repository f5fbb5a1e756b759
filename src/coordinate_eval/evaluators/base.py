"""What an evaluator is: the only part that knows what a benchmark means.

`build` runs once, before a GPU is taken. `questions` and `finish` run on CPUs; neither sees a
model. `finish` is one harness evaluation over recorded responses, in which executing code is a
look-up among the answers; `finish_part` the same over some of the items.
"""

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Protocol

from coordinate_eval.records import (
    Answer,
    Dataset,
    DatasetRequests,
    DatasetResults,
    Question,
    Request,
    Response,
    Suite,
)


class Evaluator(Protocol):
    """Requests out, responses in, results out."""

    def build(self, dataset: Dataset, write: Callable[[Request], None]) -> DatasetRequests:
        """Hand every request of the dataset to `write`, in item order.

        The `offsets`, `key` and `built` of what is returned are the caller's to fill in.

        Raises:
            UserError: the task is unknown, malformed, or has no items.
        """
        ...

    def questions(self, dataset: Dataset, responses: Iterable[Response]) -> list[Question]:
        """What the metric must know of these whole items; without duplicates.

        `responses` holds all responses of some items, in any order.
        """
        ...

    def finish(
        self, dataset: Dataset, responses: Iterable[Response], answers: Mapping[str, Answer]
    ) -> DatasetResults:
        """Score the whole dataset from all of its responses.

        Raises:
            RecordError: a response is missing or answers another prompt than the one asked.
        """
        ...

    def finish_part(
        self, dataset: Dataset, responses: Iterable[Response], answers: Mapping[str, Answer]
    ) -> DatasetResults:
        """Score some items, of which all responses are given, as if there were no others.

        Leaf tasks of which there is no item, or a single one, are left out, also of their groups'
        scores; where all are, none is.

        Raises:
            RecordError: a response is missing or answers another prompt than the one asked.
        """
        ...


def harness_evaluator(tokenizer: Path, suite: Suite, engine: str, max_length: int) -> Evaluator:
    """The harness with the tokenizer in this folder; prompts fit into `max_length` tokens as the
    harness's own model class for this engine would have it.
    """
    from coordinate_eval.evaluators.harness.evaluator import HarnessEvaluator

    return HarnessEvaluator(
        tokenizer=tokenizer,
        max_length=max_length,
        include_path=suite.include_path,
        backend="vllm" if engine == "vllm" else "hf",
    )
