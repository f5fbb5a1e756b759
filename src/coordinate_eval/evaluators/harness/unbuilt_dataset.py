"""A dataset whose prompts are not made, and the responses to them.

The instances that the harness scores have documents and responses, and no prompts. That is safe if
the digests of what the prompts were made from, and of what was asked, are those of building.
"""

import copy
import itertools
from collections.abc import Iterable
from typing import Any

from lm_eval.api.instance import Instance

from coordinate_eval.evaluators.harness.answered_dataset import (
    Answered,
    AnsweredDataset,
    Ask,
    already_built,
)
from coordinate_eval.evaluators.harness.prompts.language_models import Generation, RequestModel
from coordinate_eval.evaluators.harness.tasks.made_from import item_digests, made_from
from coordinate_eval.evaluators.harness.tasks.task_loader import LoadedTasks
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

        Args:
            dataset: the dataset.
            loaded: its tasks.
            model: what cuts texts.
            options: what prompts depend on besides the tasks.
            index: of the requests that were built.

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
