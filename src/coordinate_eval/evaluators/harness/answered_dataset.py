"""A dataset with the responses to its requests, ready for the harness's `evaluate`."""

import copy
import random
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from lm_eval.api.instance import Instance

from coordinate_eval.errors import CoordinateError, RecordError, UserError
from coordinate_eval.evaluators.harness.prompts.conversation import Conversation
from coordinate_eval.evaluators.harness.prompts.language_models import Generation, RequestModel
from coordinate_eval.evaluators.harness.tasks.made_from import RandomStates
from coordinate_eval.evaluators.harness.tasks.task_loader import LoadedTasks, in_words
from coordinate_eval.records import Dataset, OwnAnswers, Response


@dataclass(frozen=True, slots=True)
class Ask:
    """One instance of the harness, and its position in the dataset."""

    instance: Instance
    item: int
    task: str
    doc: int
    index: int
    prompt_hash: str

    def __str__(self) -> str:
        return f"task {self.task!r}, document {self.doc}, request {self.index}"


Answered = list[tuple[Ask, list[Any]]]
"""Instances, each with its responses, one for each repeat.

The response to a log-likelihood is (nats, greedy), to a rolling one the sum over its windows, and
to a generation the text as the harness would cut it. Where the task names follow-ups, it is the
list of the texts of all turns, also for a document that has none.
"""


@dataclass(frozen=True, slots=True)
class Selection:
    """Some documents of a dataset, as arguments of the harness's `evaluate`."""

    table: dict[str, Any]
    samples: Mapping[str, list[int]] | None
    recorded: dict[int, list[Any]]
    """The responses by the `id()` of an instance."""


class AnsweredDataset(ABC):
    """One dataset whose responses can be scored."""

    items: int
    random_states: RandomStates
    plain_chat: bool
    """True if the checkpoint has no chat template, so that tasks gave their own."""
    own_answers: dict[str, OwnAnswers]
    """Leaf tasks whose few-shot examples are evaluated items, or show an item's own answer."""

    def __init__(self, dataset: Dataset, loaded: LoadedTasks, model: RequestModel) -> None:
        """Prepare a dataset whose tasks are loaded."""
        self.loaded = loaded
        self.model = model
        self._dataset = dataset
        self._conversations = {name: Conversation.of(task) for name, task in loaded.tasks.items()}

    @abstractmethod
    def answered(self, responses: Iterable[Response], *, whole: bool) -> Answered:
        """Return the instances of the answered items with their responses.

        With `whole`, return the instances of all items, and give them to their tasks.
        """

    @abstractmethod
    def documents(self) -> Iterator[tuple[str, int, Any]]:
        """Yield task, number and content of each item's document, in item order."""

    def _keep_random_states(self) -> None:
        # Metrics may draw random numbers. Every scoring starts from this state.
        self.random_states = random.getstate(), np.random.get_state()

    def rewind(self) -> None:
        """Restore the state of the random generators after the prompts were made."""
        python_state, numpy_state = self.random_states
        random.setstate(python_state)
        np.random.set_state(numpy_state)

    @contextmanager
    def whole(self, answered: Answered) -> Iterator[Selection]:
        """Keep the whole dataset, whose instances these are, inside the block."""
        yield Selection(
            self.loaded.table, None, {id(ask.instance): given for ask, given in answered}
        )

    @contextmanager
    def only(self, answered: Answered) -> Iterator[Selection]:
        """Reduce the dataset to the documents of these instances inside the block.

        The documents of each task are numbered from 0, as `evaluate` numbers its `samples`.
        """
        documents: dict[str, set[int]] = {}
        for ask, _ in answered:
            documents.setdefault(ask.task, set()).add(ask.doc)
        chosen = {task: _Sample(sorted(docs)) for task, docs in documents.items()}
        places = {task: {doc: n for n, doc in enumerate(docs)} for task, docs in chosen.items()}
        tasks = {name: task for name, task in self.loaded.tasks.items() if name in chosen}
        whole = {name: task.instances for name, task in tasks.items()}
        instances: dict[str, list[Instance]] = {name: [] for name in tasks}
        recorded = {}
        for ask, given in answered:
            instance = copy.copy(ask.instance)
            instance.doc_id = places[ask.task][ask.doc]
            instance.resps, instance.filtered_resps = [], {}
            instances[ask.task].append(instance)
            recorded[id(instance)] = given
        try:
            for name, task in tasks.items():
                task._instances = instances[name]
            yield Selection({**self.loaded.table, "tasks": tasks}, chosen, recorded)
        finally:
            for name, task in tasks.items():
                task._instances = whole[name]

    def _value(self, ask: Ask, windows: Sequence[Response]) -> Any:  # noqa: ANN401  a text, a number or a pair
        """Return the response to one repeat of an instance, from those to its windows."""
        kind = ask.instance.request_type
        if kind == "loglikelihood_rolling":
            return sum(self._scored(ask, response)[0] for response in windows)
        (response,) = windows
        if kind == "loglikelihood":
            return self._scored(ask, response)
        if response.text is None:
            raise RecordError(f"dataset {self._dataset.name!r}: the response to {ask} has no text")
        generation = self._generation(ask)
        texts = [response.text, *(turn.text for turn in response.turns)]
        cut = [self.model.cut(text, generation) for text in texts]
        conversation = self._conversations[ask.task]
        if conversation.follow_ups is None:
            return cut[0]
        if len(response.turns) != len(conversation.questions(ask.instance.doc)):
            raise RecordError(
                f"dataset {self._dataset.name!r}: the response to {ask} lacks turns of its "
                "conversation"
            )
        return cut

    @abstractmethod
    def _generation(self, ask: Ask) -> Generation:
        """Return how an instance's texts end."""

    def _scored(self, ask: Ask, response: Response) -> tuple[float, bool]:
        if response.logprob is None or response.greedy is None:
            raise RecordError(
                f"dataset {self._dataset.name!r}: the response to {ask} has no log-probability"
            )
        return response.logprob, response.greedy


class _Sample(list[int]):
    """Some documents of a task. The harness asks of each document whether it is one of them."""

    def __init__(self, documents: Iterable[int]) -> None:
        super().__init__(documents)
        self._among = frozenset(self)

    def __contains__(self, document: object) -> bool:
        return document in self._among


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


def already_built(**_: object) -> None:
    """Replace a task's `build_all_requests` where it has made its instances, or needs none."""
