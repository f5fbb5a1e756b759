"""A dataset with all of its prompts, built whole by the harness, and what was answered to them."""

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
    """One instance of the harness and its place in the dataset."""

    instance: Instance
    item: int
    task: str
    doc: int
    index: int
    prompt_hash: str

    def __str__(self) -> str:
        return f"task {self.task!r}, document {self.doc}, request {self.index}"


@dataclass(frozen=True, slots=True)
class Part:
    """Some documents of a dataset, as arguments of `evaluate`."""

    table: dict[str, Any]
    samples: dict[str, list[int]]
    recorded: dict[int, list[Any]]
    """What was answered, by the `id()` of an instance."""


class BuiltDataset:
    """All that the harness asks about one dataset."""

    def __init__(self, dataset: Dataset, loaded: LoadedTasks, model: RequestModel) -> None:
        """Build it; inside `harness_session`, right after loading.

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
            # `evaluate` builds again, from generators that have moved on.
            task.build_all_requests = _already_built
        # Metrics may draw random numbers: every scoring starts from here.
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
        """Every request, in item order.

        Raises:
            UserError: a prompt cannot be put to this model.
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
        """Forget what was answered, and set the random generators as after building."""
        for ask in self.asks:
            ask.instance.resps = []
            ask.instance.filtered_resps = {}
        python_state, numpy_state = self._random_states
        random.setstate(python_state)
        np.random.set_state(numpy_state)

    @contextmanager
    def only(self, answered: Sequence[tuple[Ask, list[Any]]]) -> Iterator[Part]:
        """The dataset with no other documents than these while the block lasts.

        They are numbered anew, each task's from 0, as `evaluate` numbers its `samples`.
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
            yield Part({**self.loaded.table, "tasks": tasks}, samples, recorded)
        finally:
            for name, task in tasks.items():
                task._instances = whole[name]

    def answered(
        self, responses: Iterable[Response], *, whole: bool
    ) -> list[tuple[Ask, list[Any]]]:
        """What each instance of the answered items was answered, repeat by repeat.

        With `whole`, of every item. A log-likelihood is (nats, greedy), a rolling one the sum of
        its windows, a generation its text as the harness would cut it.

        Raises:
            RecordError: a response is missing, answers another prompt, or was never asked for.
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
                f"dataset {self._dataset.name!r}: {len(by_identity)} responses answer nothing that "
                f"is asked, such as one to task {task!r}, document {doc}; {_CHANGED}"
            )
        return answered

    def _take(self, ask: Ask, repeat: int, by_identity: dict[_Identity, Response]) -> Any:  # noqa: ANN401  what the harness takes: a text, a number or a pair
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
    """Sha256 of what the harness asks, generation arguments included: 16 hex digits."""
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
        if task.instances is not None and not task.instances:
            raise UserError(f"{where} has no items (limit {dataset.limit})") from error
        raise UserError(f"{where} cannot make its prompts: {in_words(error)}") from error


def _already_built(**_: object) -> None:
    """Stands in for a task's `build_all_requests` once that has run."""
