"""The harness's notes on each document that it scores, as its `--log_samples` writes them."""

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

from lm_eval.utils import handle_non_serializable, sanitize_list

from coordinate_eval.evaluators.confined.messages import LoggedSample, LoggedVerdict
from coordinate_eval.evaluators.harness.code_eval import AnswerBook
from coordinate_eval.evaluators.harness.item_scores import number_of, wrapped
from coordinate_eval.records import Answer, Question


class Noted(NamedTuple):
    """The harness's notes on one document, for one of its task's filters."""

    item: int
    task: str
    sample: dict[str, Any]
    words: list[str]
    """The verdicts on its programs, or its judge's words."""

    def verdict(self) -> LoggedVerdict:
        """Return its scores."""
        metrics = {name: self.sample.get(name) for name in self.sample["metrics"]}
        numbers = {
            name: number for name in metrics if (number := number_of(metrics[name])) is not None
        }
        return LoggedVerdict(
            item=self.item,
            task=self.task,
            filter=self.sample["filter"],
            metrics=numbers,
            doc_hash=self.sample["doc_hash"],
        )

    def logged(self) -> LoggedSample:
        """Return all of it, as a line of the harness's own file of samples has it."""
        given = self.sample["arguments"]
        arguments = {
            f"gen_args_{n}": {f"arg_{m}": value for m, value in enumerate(each)}
            for n, each in enumerate(given)
        }
        sanitized = {name: sanitize_list(self.sample[name]) for name in ("resps", "filtered_resps")}
        plain = {"arguments": arguments, "target": str(self.sample["target"]), **sanitized}
        return LoggedSample(
            item=self.item,
            task=self.task,
            words=self.words,
            content=json.dumps({**self.sample, **plain}, default=handle_non_serializable),
        )


class NotingBook(AnswerBook):
    """An answer book that notes, document by document, what it has looked up."""

    def __init__(self, answers: Mapping[str, Answer]) -> None:
        """Look up `answers`, by the question's id."""
        super().__init__(answers)
        self._said: list[str] = []
        self._of_documents: dict[str, list[list[str]]] = {}

    def __call__(self, question: Question) -> Answer:
        """Return the answer to this question."""
        answer = super().__call__(question)
        self._said.append(answer.result)
        return answer

    @contextmanager
    def noting(self, tasks: Mapping[str, Any]) -> Iterator[None]:
        """Note in the block what is looked up while these tasks process each of their documents."""
        with wrapped(tasks, self._noted):
            yield

    def _noted(self, process: Callable[..., Any], task: str) -> Callable[..., Any]:
        of_documents = self._of_documents.setdefault(task, [])

        def noted(*args: Any, **more: Any) -> Any:  # noqa: ANN401  as the harness's own
            self._said = []
            try:
                return process(*args, **more)
            finally:
                of_documents.append(self._said)

        return noted

    def noted(
        self,
        samples: Mapping[str, list[dict[str, Any]]],
        items: Mapping[tuple[str, int], int],
        names: Mapping[str, str],
    ) -> Iterator[Noted]:
        """Yield what the harness has noted, in its order, with what was looked up for it.

        Args:
            items: position in the dataset by task and number of the document.
            names: of the tasks in the dataset's results.
        """
        for task, of_task in samples.items():
            for sample, words in zip(of_task, self._of_documents[task], strict=True):
                yield Noted(items[task, sample["doc_id"]], names[task], sample, words)
