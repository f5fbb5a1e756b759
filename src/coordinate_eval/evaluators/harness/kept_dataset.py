"""The dataset that an evaluator has in memory: its tasks, and its prompts where needed."""

import hashlib
import json
from collections.abc import Iterable
from contextlib import suppress
from functools import cached_property
from importlib import metadata
from pathlib import Path
from typing import Any

from coordinate_eval.evaluators.harness.answered_dataset import Answered, AnsweredDataset
from coordinate_eval.evaluators.harness.built_dataset import BuiltDataset
from coordinate_eval.evaluators.harness.prompts.language_models import Backend, RequestModel
from coordinate_eval.evaluators.harness.prompts.tokenizer import load_tokenizer
from coordinate_eval.evaluators.harness.prompts.watched_tokenizer import WatchedTokenizer
from coordinate_eval.evaluators.harness.tasks.made_from import without_examples
from coordinate_eval.evaluators.harness.tasks.task_loader import TaskLoader
from coordinate_eval.evaluators.harness.unbuilt_dataset import PromptsNeeded, UnbuiltDataset
from coordinate_eval.evaluators.pulse import Pulse
from coordinate_eval.records import Dataset, DatasetRequests, Response


class KeptDataset:
    """The last dataset that was asked for, with its settings.

    Args:
        loader: of the harness's tasks.
        tokenizer: a folder with the checkpoint's tokenizer.
        max_length: most tokens of a prompt and its output together.
        backend: the model class of the harness whose truncation is used.
        seed: of the harness's random generators.
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
    def _tokenizer(self) -> Any:  # noqa: ANN401  one of many classes of transformers, or ours
        if self._pulse is None:
            return load_tokenizer(self._tokenizer_folder)
        return WatchedTokenizer(self._tokenizer_folder, self._pulse)

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
