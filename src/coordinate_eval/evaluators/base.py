"""The protocol of an evaluator, the only part that knows the meaning of a benchmark.

No method needs a model or a GPU. `build` makes all requests of a dataset, before any GPU is
allocated. After the responses, `questions` returns the expensive work of the metric, such as
programs to run. `finish` scores the dataset from the responses and the answers to the questions.
`finish_part` does the same for some of the items.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from coordinate_eval._engines import kind_of
from coordinate_eval.evaluators.confined.messages import LoggedSample, LoggedVerdict
from coordinate_eval.evaluators.confined.run_files import AnswerFiles, ResponseFiles
from coordinate_eval.evaluators.pulse import Pulse
from coordinate_eval.records import (
    Answer,
    Dataset,
    DatasetRequests,
    DatasetResults,
    ItemScores,
    Question,
    Request,
    Response,
)


class Evaluator(Protocol):
    """Makes the requests of a dataset, and scores the responses to them."""

    def build(self, dataset: Dataset, write: Callable[[Request], None]) -> DatasetRequests:
        """Call `write` with every request of the dataset, in item order.

        Returns the index of the requests. The caller fills in its `offsets`, `key` and `built`.

        Raises:
            UserError: the task is unknown, malformed, or has no items.
        """
        ...

    def prepare(self) -> None:
        """Import and read what all datasets need. Processes that score are forked afterwards."""
        ...

    def load(self, dataset: Dataset, index: DatasetRequests) -> list[str]:
        """Load what scoring the dataset needs. It stays in memory while there is room.

        `index` is what `build` returned. Scoring reads responses twice if they do not fit it.
        Returns the names of the tasks and groups that the dataset's results may have.
        """
        ...

    def questions(self, dataset: Dataset, responses: Iterable[Response]) -> list[Question]:
        """Return the questions that the metric asks about some items, without duplicates.

        `responses` holds all responses to these items, in any order.
        """
        ...

    def finish(
        self, dataset: Dataset, responses: Iterable[Response], answers: Mapping[str, Answer]
    ) -> DatasetResults:
        """Score the dataset from all of its responses.

        Raises:
            RecordError: a response is missing, or answers another prompt than the one asked.
        """
        ...

    def item_scores(self) -> list[ItemScores]:
        """Return the scores of each item of the dataset that was finished last."""
        ...

    def finish_part(
        self, dataset: Dataset, responses: Iterable[Response], answers: Mapping[str, Answer]
    ) -> DatasetResults:
        """Score some items as if the dataset had no others. All their responses must be given.

        Leaf tasks with no item or only one are left out, also from their groups' scores. If every
        leaf task has only one, all are kept.

        Raises:
            RecordError: a response is missing, or answers another prompt than the one asked.
        """
        ...

    def noted(
        self,
        dataset: Dataset,
        responses: Iterable[Response],
        answers: Mapping[str, Answer],
        *,
        part: bool = False,
    ) -> Sequence["Noted"]:
        """Return what is noted of each document while the dataset is scored, for people.

        They stay in memory: the next call returns the same. With `part` only some items have
        responses. Raises as `finish` does.
        """
        ...


class Noted(Protocol):
    """The notes on one document, for one of its task's filters."""

    def verdict(self) -> LoggedVerdict:
        """Return its scores."""
        ...

    def logged(self) -> LoggedSample:
        """Return all of it."""
        ...


class Scorer(Protocol):
    """The part of an evaluator that scores, from files of a run."""

    def questions(self, dataset: Dataset, responses: ResponseFiles) -> list[Question]:
        """See `Evaluator`."""
        ...

    def finish(
        self, dataset: Dataset, responses: ResponseFiles, answers: AnswerFiles
    ) -> DatasetResults:
        """See `Evaluator`."""
        ...

    def finish_part(
        self, dataset: Dataset, responses: ResponseFiles, answers: AnswerFiles
    ) -> DatasetResults:
        """See `Evaluator`."""
        ...


def harness_evaluator(
    tokenizer: Path,
    include_path: Sequence[str],
    engine: str,
    max_length: int,
    pulse: Pulse | None = None,
    kept_tasks: Path | None = None,
    judge: tuple[str, str] = ("", ""),
    baselines: Path | None = None,
) -> Evaluator:
    """Return the evaluator over lm-evaluation-harness.

    Its tasks are the harness's own and those in the folders `include_path`; the last one wins.
    It reads the tokenizer from the folder `tokenizer`. It cuts prompts to `max_length` tokens in
    the way of the harness's own model class for `engine`. It notes calls of the tokenizer in
    `pulse`, and keeps the index of the harness's tasks in the file `kept_tasks`. Answers of judged
    datasets are rated by `judge`, a model and its revision, and compared with those in `baselines`.
    """
    from coordinate_eval.evaluators.harness.evaluator import HarnessEvaluator
    from coordinate_eval.evaluators.harness.tasks.judged_task import Panel

    return HarnessEvaluator(
        tokenizer=tokenizer,
        max_length=max_length,
        include_path=include_path,
        backend=kind_of(engine).model_class,
        pulse=pulse,
        kept_tasks=kept_tasks,
        panel=Panel(*judge, baselines),
    )
