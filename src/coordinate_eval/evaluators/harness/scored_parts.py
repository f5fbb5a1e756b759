"""Parts of scoring that the harness has no name for."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from coordinate_eval.errors import CoordinateError, UserError
from coordinate_eval.evaluators.harness.answered_dataset import Answered
from coordinate_eval.evaluators.harness.tasks.task_loader import in_words
from coordinate_eval.records import Dataset


def generated_texts(answered: Answered) -> Iterator[tuple[str, list[str]]]:
    """Yield the task of each generated answer, and the texts of its turns."""
    for ask, given in answered:
        if ask.instance.request_type == "generate_until":
            for answer in given:
                yield ask.task, [answer] if isinstance(answer, str) else answer


def of_many(answered: Answered) -> Answered:
    """Return the instances of tasks with several documents, or all if no task has several."""
    documents = Counter(task for task, _ in {(ask.task, ask.doc) for ask, _ in answered})
    if max(documents.values(), default=0) < 2:
        return answered
    return [(ask, given) for ask, given in answered if documents[ask.task] > 1]


def score_documents(task: Any, answered: Answered) -> None:  # noqa: ANN401  lm_eval has no types
    """Process each document as `evaluate` does, so that the metric asks its questions."""
    documents: dict[int, list[Any]] = {}
    for ask, given in answered:
        ask.instance.resps = given
        documents.setdefault(ask.doc, []).append(ask.instance)
    instances = [ask.instance for ask, _ in answered]
    for ensemble in task._filters:
        ensemble.apply(instances)
    for filter_name in instances[0].filtered_resps:
        for of_document in documents.values():
            of_document.sort(key=lambda instance: instance.idx)
            kept = [instance.filtered_resps[filter_name] for instance in of_document]
            task.process_results(of_document[0].doc, kept)


@contextmanager
def own_code(dataset: Dataset) -> Iterator[None]:
    """Turn an exception of filters and metrics into a `UserError` about the task's own code."""
    try:
        yield
    except CoordinateError:
        raise
    except Exception as error:
        raise UserError(
            f"dataset {dataset.name!r}: the task's own code fails on the responses: "
            f"{in_words(error)}"
        ) from error
