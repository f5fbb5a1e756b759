"""All prompts of a dataset, built by the harness, and the responses matched to them."""

import copy
import hashlib
import json
import random
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from lm_eval.api.instance import Instance

from coordinate_eval.errors import RecordError, UserError
from coordinate_eval.evaluators.harness.language_models import Prompt, RequestModel
from coordinate_eval.evaluators.harness.task_loader import LoadedTasks, in_words
from coordinate_eval.records import Dataset, Request, RequestKind, Response

_Identity = tuple[str, int, int, int, int]


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


@dataclass(frozen=True, slots=True)
class Selection:
    """Some documents of a dataset, as arguments of the harness's `evaluate`."""

    table: dict[str, Any]
    samples: dict[str, list[int]]
    recorded: dict[int, list[Any]]
    """The responses by the `id()` of an instance."""


class BuiltDataset:
    """One dataset with all instances that the harness makes of it."""

    def __init__(self, dataset: Dataset, loaded: LoadedTasks, model: RequestModel) -> None:
        """Build the instances. Call it inside `harness_session`, directly after loading.

        Raises:
            UserError: a task has no items, or its own code fails.
        """
        self.loaded = loaded
        self.model = model
        self._dataset = dataset
        self.asks: list[Ask] = []
        self.items = 0
        for name, task in loaded.tasks.items():
            _build_instances(name, task, dataset, model)
            self._add(name, task.instances)
            # `evaluate` would build them again, with random generators in another state.
            task.build_all_requests = _already_built
        # Metrics may draw random numbers. Every scoring starts from this state.
        self._random_states = random.getstate(), np.random.get_state()

    def _add(self, task: str, instances: Sequence[Instance]) -> None:
        asked: dict[int, int] = {}
        places: dict[int, int] = {}
        for instance in instances:
            doc = instance.doc_id
            place = places.setdefault(doc, len(places))
            index = asked.get(doc, 0)
            asked[doc] = index + 1
            digest = prompt_hash(instance)
            self.asks.append(Ask(instance, self.items + place, task, doc, index, digest))
        self.items += len(places)

    def requests(self) -> Iterator[Request]:
        """Yield every request, in item order.

        Raises:
            UserError: a prompt does not suit this model, for example because it is too long.
        """
        for ask in self.asks:
            prompts = self._prompts(ask)
            for repeat in range(ask.instance.repeats):
                for window, prompt in enumerate(prompts):
                    yield self._request(ask, prompt, repeat, window)

    def _prompts(self, ask: Ask) -> list[Prompt]:
        try:
            return self.model.prompts(ask.instance)
        except Exception as error:
            raise UserError(f"dataset {self._dataset.name!r}: {ask}: {in_words(error)}") from error

    def _request(self, ask: Ask, prompt: Prompt, repeat: int, window: int) -> Request:
        generation = prompt.generation
        return Request(
            dataset=self._dataset.name,
            item=ask.item,
            task=ask.task,
            doc=ask.doc,
            index=ask.index,
            repeat=repeat,
            window=window,
            prompt_hash=ask.prompt_hash,
            kind=RequestKind.GENERATE if generation else RequestKind.LOGLIKELIHOOD,
            tokens=prompt.tokens,
            continuation=prompt.continuation,
            max_tokens=generation.max_tokens if generation else 0,
            stop=generation.stop if generation else [],
            sampling=generation.sampling if generation else {},
        )

    def rewind(self) -> None:
        """Remove all responses, and restore the random generators' state after building."""
        for ask in self.asks:
            ask.instance.resps = []
            ask.instance.filtered_resps = {}
        python_state, numpy_state = self._random_states
        random.setstate(python_state)
        np.random.set_state(numpy_state)

    @contextmanager
    def only(self, answered: Sequence[tuple[Ask, list[Any]]]) -> Iterator[Selection]:
        """Reduce the dataset to the documents of these instances inside the block.

        The documents of each task are numbered from 0, as `evaluate` numbers its `samples`.
        """
        documents: dict[str, set[int]] = {}
        for ask, _ in answered:
            documents.setdefault(ask.task, set()).add(ask.doc)
        samples = {task: sorted(docs) for task, docs in documents.items()}
        places = {task: {doc: n for n, doc in enumerate(docs)} for task, docs in samples.items()}
        tasks = {name: task for name, task in self.loaded.tasks.items() if name in samples}
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
            yield Selection({**self.loaded.table, "tasks": tasks}, samples, recorded)
        finally:
            for name, task in tasks.items():
                task._instances = whole[name]

    def answered(
        self, responses: Iterable[Response], *, whole: bool
    ) -> list[tuple[Ask, list[Any]]]:
        """Return each instance of the answered items with its responses, one for each repeat.

        With `whole`, return the instances of all items. The response to a log-likelihood is (nats,
        greedy), to a rolling one the sum over its windows, and to a generation the text as the
        harness would cut it.

        Raises:
            RecordError: a response is missing, answers another prompt, or has no request.
        """
        by_identity = {response.identity(): response for response in responses}
        items = {response.item for response in by_identity.values()}
        answered = [
            (ask, [self._take(ask, repeat, by_identity) for repeat in range(ask.instance.repeats)])
            for ask in self.asks
            if whole or ask.item in items
        ]
        if by_identity:
            task, doc, *_ = next(iter(by_identity))
            raise RecordError(
                f"dataset {self._dataset.name!r}: {len(by_identity)} responses have no request, "
                f"such as one to task {task!r}, document {doc}; {_CHANGED}"
            )
        return answered

    def _take(self, ask: Ask, repeat: int, by_identity: dict[_Identity, Response]) -> Any:  # noqa: ANN401  a text, a number or a pair
        kind = ask.instance.request_type
        if kind == "loglikelihood_rolling":
            windows = range(len(self._prompts(ask)))
            taken = [self._pop(ask, repeat, window, by_identity) for window in windows]
            return sum(self._scored(ask, response)[0] for response in taken)
        response = self._pop(ask, repeat, 0, by_identity)
        if kind == "loglikelihood":
            return self._scored(ask, response)
        if response.text is None:
            raise RecordError(f"dataset {self._dataset.name!r}: the response to {ask} has no text")
        return self.model.cut(response.text, self.model.generation(ask.instance.args[1]))

    def _pop(
        self, ask: Ask, repeat: int, window: int, by_identity: dict[_Identity, Response]
    ) -> Response:
        identity = (ask.task, ask.doc, ask.index, repeat, window)
        response = by_identity.pop(identity, None)
        where = f"dataset {self._dataset.name!r}: the response to {ask}"
        if response is None:
            raise RecordError(
                f"{where}, repeat {repeat}, window {window} is missing; run its shard again"
            )
        if response.prompt_hash != ask.prompt_hash:
            raise RecordError(
                f"{where} answers another prompt (hash {response.prompt_hash}, asked "
                f"{ask.prompt_hash}); {_CHANGED}"
            )
        return response

    def _scored(self, ask: Ask, response: Response) -> tuple[float, bool]:
        if response.logprob is None or response.greedy is None:
            raise RecordError(
                f"dataset {self._dataset.name!r}: the response to {ask} has no log-probability"
            )
        return response.logprob, response.greedy


_CHANGED = (
    "the task, its data or its options have changed since its requests were built: start a new run"
)


def prompt_hash(instance: Instance) -> str:
    """Return 16 hex digits of the sha256 of a prompt and its generation arguments."""
    asked = json.dumps(list(instance.args), sort_keys=True, separators=(",", ":"), default=str)
    return hashlib.sha256(asked.encode()).hexdigest()[:16]


def _build_instances(name: str, task: Any, dataset: Dataset, model: RequestModel) -> None:  # noqa: ANN401  lm_eval has no types
    try:
        task.build_all_requests(
            limit=dataset.limit,
            system_instruction=dataset.system_instruction,
            apply_chat_template=dataset.chat_template,
            fewshot_as_multiturn=dataset.fewshot_as_multiturn,
            chat_template=model.apply_chat_template if dataset.chat_template else None,
            tokenizer_name=model.tokenizer_name if dataset.chat_template else "",
        )
    except Exception as error:
        where = f"dataset {dataset.name!r}: task {name!r}"
        if getattr(task, "_instances", None) == []:
            raise UserError(f"{where} has no items (limit {dataset.limit})") from error
        raise UserError(f"{where} cannot make its prompts: {in_words(error)}") from error


def _already_built(**_: object) -> None:
    """Replace a task's `build_all_requests` after it has run."""
