"""Note the scores of each item while the harness scores a dataset.

Nothing here calls a task's own code: its functions may have effects, and scores must equal the
harness's. Documents are read before scoring, because a metric may change them.
"""

import hashlib
import json
import math
import re
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import pairwise
from typing import Any

import numpy as np
from lm_eval.utils import handle_non_serializable

from coordinate_eval.evaluators.harness.answered_dataset import Answered
from coordinate_eval.records import ItemScores

LEAST_CHARACTERS = 64
"""Characters of a field that make it a passage, and not a name or a label."""

_ADDRESS = re.compile(" at 0x[0-9a-f]+")

MOST_VALUES = 1_500_000
"""Values of a dataset that are noted: 300,000 items for five metrics. More are not compared."""


class ItemBook:
    """The items of a dataset, and what the harness finds for each.

    Whatever a task's documents and metrics are, scoring goes on: where anything fails here, there
    are no tables.
    """

    def __init__(self, answered: Answered, documents: Iterable[tuple[str, int, Any]]) -> None:
        """Read the documents of the dataset."""
        self._items: dict[str, dict[int, int]] = {}
        for ask, _ in answered:
            self._items.setdefault(ask.task, {})[ask.doc] = ask.item
        self._digests: dict[str, str] = {}
        self._clusters: dict[str, dict[int, int]] = {}
        with suppress(Exception):
            every: dict[str, dict[int, Any]] = {}
            for task, doc, content in documents:
                every.setdefault(task, {})[doc] = content
            clusters = clusters_of(
                {t: [docs[n] for n in sorted(docs)] for t, docs in every.items()}
            )
            self._clusters = {
                task: dict(zip(sorted(every[task]), of_task, strict=True))
                for task, of_task in clusters.items()
            }
            self._digests = {task: _digest(docs) for task, docs in every.items()}
        self._found: dict[str, list[Mapping[str, Any]]] = {}

    @contextmanager
    def noting(self, tasks: Mapping[str, Any]) -> Iterator[None]:
        """Note in the block what these tasks return for each of their documents."""
        with wrapped(tasks, self._noted):
            yield

    def _noted(self, process: Callable[..., Any], task: str) -> Callable[..., Any]:
        found = self._found.setdefault(task, [])

        def noted(*args: Any, **more: Any) -> Any:  # noqa: ANN401  as the harness's own
            metrics = process(*args, **more)
            found.append(metrics)
            return metrics

        return noted

    def tables(self, tasks: Mapping[str, Any], names: Mapping[str, str]) -> list[ItemScores]:
        """Return the scores of all items: of each task, a table for each of its filters.

        The harness processes all documents in order, once for each filter. A task that was
        processed otherwise has no table.
        """
        with suppress(Exception):
            return self._tables(tasks, names)
        return []

    def _tables(self, tasks: Mapping[str, Any], names: Mapping[str, str]) -> list[ItemScores]:
        tables: list[ItemScores] = []
        for name, task in tasks.items():
            found, items = self._found.get(name, []), self._items.get(name, {})
            filters = list(task.instances[0].filtered_resps) if task.instances else []
            if not items or len(found) != len(items) * len(filters):
                continue
            order = sorted(items)
            numbers = [items[doc] for doc in order]
            if any(after <= before for before, after in pairwise(numbers)):
                continue
            of_task = self._clusters.get(name, {})
            clusters = [of_task[doc] for doc in order] if of_task else []
            for n, filter_name in enumerate(filters):
                metrics = _columns(found[n * len(items) : (n + 1) * len(items)])
                if metrics:
                    table = ItemScores(
                        task=names[name],
                        filter=filter_name,
                        items=numbers,
                        documents=self._digests[name],
                        clusters=clusters,
                        metrics=metrics,
                    )
                    tables.append(table)
        values = sum(len(table.items) * (1 + len(table.metrics)) for table in tables)
        return tables if values <= MOST_VALUES else []


@contextmanager
def wrapped(
    tasks: Mapping[str, Any], wrap: Callable[[Callable[..., Any], str], Callable[..., Any]]
) -> Iterator[None]:
    """Replace each task's `process_results` in the block by what `wrap` makes of it."""
    before = {name: vars(task).get("process_results") for name, task in tasks.items()}
    for name, task in tasks.items():
        task.process_results = wrap(task.process_results, name)
    try:
        yield
    finally:
        for name, task in tasks.items():
            del task.process_results
            if before[name] is not None:
                task.process_results = before[name]


def number_of(value: object) -> float | None:
    """Return a metric's value of one document, None if it is no number.

    A judge may have rated a document several times: it has the mean.
    """
    if isinstance(value, list) and value and all(isinstance(each, float) for each in value):
        return sum(value) / len(value)
    return float(value) if isinstance(value, bool | int | float | np.number | np.bool_) else None


def _columns(found: Sequence[Mapping[str, Any]]) -> dict[str, list[float | None]]:
    """Return by metric the values of all documents, without metrics that have no number."""
    columns = {
        name: [_finite(number_of(each.get(name))) for each in found]
        for name in dict.fromkeys(name for each in found for name in each)
    }
    return {
        name: values
        for name, values in columns.items()
        if any(value is not None for value in values)
    }


def _finite(number: float | None) -> float | None:
    return None if number is None or not math.isfinite(number) else number


def _plain(value: object) -> Any:  # noqa: ANN401  what JSON can hold
    """Return a value as the harness writes it, without its address in memory."""
    plain = handle_non_serializable(value)
    return _ADDRESS.sub("", plain) if isinstance(plain, str) else plain


def _digest(documents: Mapping[int, Any]) -> str:
    digest = hashlib.sha256()
    for number in sorted(documents):
        text = json.dumps(documents[number], default=_plain, ensure_ascii=False)
        digest.update(text.encode("utf-8", "backslashreplace") + b"\n")
    return digest.hexdigest()[:16]


def clusters_of(documents: Mapping[str, Sequence[Any]]) -> dict[str, list[int]]:
    """Return by task the number of each document's cluster, nothing if all are alone.

    Documents are one cluster if they share a passage, or if they are translations of each other:

    - A passage is a field of at least `LEAST_CHARACTERS` characters that several documents have,
      where the documents of one passage are fewer, on average, than the passages. So a sentence
      of instruction that many documents share is none.
    - Documents of several tasks are translations if the tasks have equally many, and a field that
      is no running number has the same value at the same position in all of them.
    """
    starts, total = {}, 0
    for task, of_task in documents.items():
        starts[task] = total
        total += len(of_task)
    every = [document for of_task in documents.values() for document in of_task]
    parents = list(range(total))

    def root(n: int) -> int:
        while parents[n] != n:
            parents[n] = parents[parents[n]]
            n = parents[n]
        return n

    def join(numbers: Sequence[int]) -> None:
        for other in numbers[1:]:
            parents[root(other)] = root(numbers[0])

    for groups in _passages(every):
        for numbers in groups:
            join(numbers)
    if _are_translations(list(documents.values())):
        for n in range(len(next(iter(documents.values())))):
            join([start + n for start in starts.values()])
    roots = [root(n) for n in range(total)]
    if len(set(roots)) == total:
        return {}
    numbered = {found: n for n, found in enumerate(dict.fromkeys(roots))}
    return {
        task: [numbered[each] for each in roots[start : start + len(documents[task])]]
        for task, start in starts.items()
    }


def _passages(documents: Sequence[Any]) -> Iterator[list[list[int]]]:
    """Yield for each field with passages the documents of each passage."""
    fields: dict[str, dict[str, list[int]]] = {}
    for n, document in enumerate(documents):
        if isinstance(document, Mapping):
            for name, value in document.items():
                if isinstance(value, str) and len(value) >= LEAST_CHARACTERS:
                    fields.setdefault(str(name), {}).setdefault(value, []).append(n)
    for by_text in fields.values():
        count = sum(map(len, by_text.values()))
        if len(by_text) < count <= len(by_text) ** 2:
            yield [numbers for numbers in by_text.values() if len(numbers) > 1]


def _are_translations(tasks: Sequence[Sequence[Any]]) -> bool:
    if len(tasks) < 2 or len({len(each) for each in tasks}) > 1 or len(tasks[0]) < 2:
        return False
    first = [each if isinstance(each, Mapping) else {} for each in tasks[0]]
    return any(
        _is_label([document.get(name) for document in first])
        and all(
            isinstance(theirs, Mapping) and name in theirs and theirs[name] == ours.get(name)
            for other in tasks[1:]
            for ours, theirs in zip(first, other, strict=True)
        )
        for name in first[0]
    )


def _is_label(values: Sequence[Any]) -> bool:
    """Return whether values tell documents apart, and are no running numbers."""
    if not all(isinstance(value, Hashable) and value is not None for value in values):
        return False
    distinct = len(Counter(map(str, values)))
    running = distinct == len(values) and all(str(value).strip().isdigit() for value in values)
    return distinct > 1 and not running
