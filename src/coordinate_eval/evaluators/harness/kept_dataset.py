"""The dataset that an evaluator has in memory: its tasks, and its prompts where needed.

To score an `UnbuiltDataset` no prompt is made. That is safe if the digests of what prompts were
made from, and of what was asked, are those of building.
"""

import copy
import hashlib
import itertools
import json
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import cached_property
from importlib import metadata
from pathlib import Path
from typing import Any

from lm_eval.api.instance import Instance

from coordinate_eval.evaluators.harness.answered_dataset import (
    Answered,
    AnsweredDataset,
    Ask,
    already_built,
)
from coordinate_eval.evaluators.harness.built_dataset import BuiltDataset
from coordinate_eval.evaluators.harness.prompts.language_models import (
    Backend,
    Generation,
    RequestModel,
)
from coordinate_eval.evaluators.harness.prompts.tokenizer import load_tokenizer, load_watched
from coordinate_eval.evaluators.harness.tasks.made_from import (
    item_digests,
    made_from,
    without_examples,
)
from coordinate_eval.evaluators.harness.tasks.task_loader import LoadedTasks, TaskLoader
from coordinate_eval.evaluators.pulse import Pulse
from coordinate_eval.records import Dataset, DatasetRequests, Response


class PromptsNeeded(Exception):
    """Something has changed since the requests were built, or may have: compare all prompts."""


class UnbuiltDataset(AnsweredDataset):
    """One dataset with the documents of its items."""

    def __init__(
        self,
        dataset: Dataset,
        loaded: LoadedTasks,
        model: RequestModel,
        options: str,
        index: DatasetRequests,
    ) -> None:
        """Read the documents. Call it inside `harness_session`, directly after loading.

        Raises:
            PromptsNeeded: its prompts have to be made.
        """
        super().__init__(dataset, loaded, model)
        model.end_text = index.end_text  # no tokenizer is loaded for it
        self.plain_chat = index.plain_chat
        self.own_answers = index.own_answers
        self._digests = index.item_digests
        self._places: list[tuple[str, int, Any]] = []
        self._generations: dict[str, Generation] = {}
        for name, task in loaded.tasks.items():
            documents = task.doc_iterator(limit=dataset.limit)
            self._places += [(name, doc, document) for doc, document in documents]
        self.items = len(self._places)
        self._keep_random_states()
        from_this = made_from(loaded.tasks, options, self.random_states)
        if self.items != index.items or from_this != index.made_from:
            raise PromptsNeeded
        for name, task in loaded.tasks.items():
            task.build_all_requests = already_built
            task._instances = []
            if task.OUTPUT_TYPE == "generate_until":
                arguments = copy.deepcopy(task.config.generation_kwargs)
                self._generations[name] = model.generation(arguments)

    def documents(self) -> Iterator[tuple[str, int, Any]]:
        """Yield task, number and content of each item's document, in item order."""
        yield from self._places

    def answered(self, responses: Iterable[Response], *, whole: bool) -> Answered:
        """Return the instances of the answered items with their responses.

        Raises as that of `AnsweredDataset` does, and:
            PromptsNeeded: responses are missing, answer another prompt, or have no request.
        """
        by_item: dict[int, list[Response]] = {}
        for response in responses:
            by_item.setdefault(response.item, []).append(response)
        if by_item.keys() - range(self.items) or (whole and len(by_item) != self.items):
            raise PromptsNeeded
        for of_item in by_item.values():
            of_item.sort(key=lambda response: (response.index, response.repeat, response.window))
        self._check(by_item)
        found = [
            (ask, given)
            for item, of_item in sorted(by_item.items())
            for ask, given in self._instances_of(item, of_item)
        ]
        if whole:
            for name, task in self.loaded.tasks.items():
                task._instances = [ask.instance for ask, _ in found if ask.task == name]
        return found

    def _check(self, by_item: dict[int, list[Response]]) -> None:
        """Check that items are those of building, and the responses those to their requests."""
        digests = item_digests(self._places[item][-1] for item in by_item)
        for digest, (item, of_item) in zip(digests, by_item.items(), strict=True):
            for response in of_item:
                digest.add(response)
            if str(digest) != self._digests[item]:
                raise PromptsNeeded

    def _instances_of(self, item: int, responses: list[Response]) -> Answered:
        name, doc, document = self._places[item]
        task = self.loaded.tasks[name]
        kind = "loglikelihood" if task.OUTPUT_TYPE == "multiple_choice" else task.OUTPUT_TYPE
        found = []
        for index, of_index in itertools.groupby(responses, key=lambda response: response.index):
            repeats = [list(each) for _, each in itertools.groupby(of_index, lambda r: r.repeat)]
            instance = Instance(kind, document, (), index, (task.config.task, doc, len(repeats)))
            ask = Ask(instance, item, name, doc, index, repeats[0][0].prompt_hash)
            found.append((ask, [self._value(ask, windows) for windows in repeats]))
        return found

    def _generation(self, ask: Ask) -> Generation:
        conversation = self._conversations[ask.task]
        if conversation.sampling is None:
            return self._generations[ask.task]
        given = self.loaded.tasks[ask.task].config.generation_kwargs
        return self.model.generation(conversation.arguments(given, ask.instance.doc))


class KeptDataset:
    """The last dataset that was asked for, with its settings.

    Args:
        backend: the model class of the harness whose truncation is used.
        pulse: where to note calls of the tokenizer, for whoever watches this process.
    """

    def __init__(
        self,
        loader: TaskLoader,
        *,
        tokenizer: Path,
        max_length: int,
        backend: Backend,
        seed: int,
        pulse: Pulse | None,
    ) -> None:
        self._loader, self._tokenizer_folder = loader, tokenizer
        self._max_length, self._backend, self._seed = max_length, backend, seed
        self._pulse = pulse
        self._key = ""
        self._found: AnsweredDataset | None = None

    def load_tokenizer(self) -> None:
        """Load the tokenizer, which may draw random numbers and takes seconds."""
        _ = self._tokenizer

    def answered(
        self, dataset: Dataset, responses: Iterable[Response], *, whole: bool
    ) -> tuple[AnsweredDataset, Answered]:
        """Return the dataset and its instances with their responses, ready to be scored."""
        found = self._kept(dataset) or self.built(dataset)
        try:
            answered = found.answered(responses, whole=whole)
        except PromptsNeeded:
            found = self.built(dataset)
            answered = found.answered(responses, whole=whole)
        found.rewind()
        return found, answered

    def unchanged(self, dataset: Dataset, index: DatasetRequests) -> AnsweredDataset | None:
        """Return the dataset, None if its prompts have to be compared with those of its requests.

        Where anything fails here, making the prompts fails too, and is asked to explain it.
        """
        if self._kept(dataset) is None and index.made_from:
            model, options = self._model(dataset), self.options(dataset)
            with suppress(Exception):
                with without_examples():
                    loaded = self._loader.load(dataset)
                self._keep(dataset, UnbuiltDataset(dataset, loaded, model, options, index))
        return self._kept(dataset)

    def built(self, dataset: Dataset) -> BuiltDataset:
        """Return the dataset with its prompts, and make them unless they are in memory."""
        found = self._kept(dataset)
        if not isinstance(found, BuiltDataset):
            self.load_tokenizer()
            loaded = self._loader.load(dataset)
            found = BuiltDataset(dataset, loaded, self._model(dataset))
            self._keep(dataset, found)
        return found

    def _kept(self, dataset: Dataset) -> AnsweredDataset | None:
        return self._found if self._key == key_of(dataset) else None

    def _keep(self, dataset: Dataset, found: AnsweredDataset) -> None:
        self._key, self._found = key_of(dataset), found

    def _model(self, dataset: Dataset) -> RequestModel:
        return RequestModel(
            lambda: self._tokenizer,
            max_length=self._max_length,
            backend=self._backend,
            think_end=dataset.think_end_token,
        )

    def options(self, dataset: Dataset) -> str:
        """Return what the prompts of a dataset depend on besides its tasks."""
        given = dataset.model_dump_json(exclude={"group", "prior", "items", "splittable"})
        options = [given, self._max_length, self._backend, self._seed, self._tokenizer_digest]
        return json.dumps([*options, metadata.version("lm_eval")])

    @cached_property
    def _tokenizer(self) -> Any:  # noqa: ANN401  one of many classes of transformers
        if self._pulse is None:
            return load_tokenizer(self._tokenizer_folder)
        return load_watched(self._tokenizer_folder, self._pulse)

    @cached_property
    def _tokenizer_digest(self) -> str:
        digest = hashlib.sha256()
        for path in sorted(self._tokenizer_folder.iterdir()):
            if path.is_file() and path.name != "config.json":  # each checkpoint has its own
                digest.update(f"{path.name}\n".encode() + path.read_bytes())
        return digest.hexdigest()


def key_of(dataset: Dataset) -> str:
    """Return a text that differs between datasets, and between settings of the same dataset."""
    return dataset.model_dump_json()
