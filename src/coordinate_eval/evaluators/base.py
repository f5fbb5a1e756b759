"""What an evaluator is: the only part that knows what a benchmark means.

`build` runs once, before a GPU is taken. `questions` and `finish` run on CPUs; neither sees a
model. `finish` is one harness evaluation over recorded responses, in which executing code is a
look-up among the answers; `finish_part` the same over some of the items.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

from coordinate_eval.records import (
    Answer,
    Dataset,
    DatasetRequests,
    DatasetResults,
    Question,
    Request,
    Response,
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
