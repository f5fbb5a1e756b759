"""Digests of what the prompts of a dataset were made from.

Scoring needs responses, and no prompt. It makes the prompts again only if something that they were
made from may have changed since, or if a task's scoring might notice that they were not made.
Local data files are noted with the requests, which expire when a file changes.
"""

import dataclasses
import functools
import hashlib
import inspect
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from glob import glob
from pathlib import Path
from typing import Any

from lm_eval.api.task import ConfigurableTask, Task
from pydantic_core import to_json

from coordinate_eval.evaluators.harness.prompts.conversation import Conversation
from coordinate_eval.records import Key

RandomStates = tuple[Any, Any]
"""The states of the generators of Python and of numpy."""

_DIGITS = 16


class ItemDigest:
    """A digest of an item: its document, and the requests that were made of it, in their order."""

    def __init__(self, document: Any) -> None:  # noqa: ANN401  whatever a task has for one
        """Begin with the document.

        Raises:
            ValueError: it has something that JSON has no word for.
        """
        self._hash = hashlib.sha256(to_json(document, inf_nan_mode="strings"))

    def add(self, key: Key) -> None:
        """Add a request, or the response to it."""
        place = f"\n{key.task} {key.doc} {key.index} {key.repeat} {key.window} {key.prompt_hash}"
        self._hash.update(place.encode())

    def __str__(self) -> str:
        return self._hash.hexdigest()[:_DIGITS]


def item_digests(documents: Iterable[Any]) -> list[ItemDigest]:
    """Return a digest of each item without its requests; none if a document has no digest."""
    try:
        return [ItemDigest(document) for document in documents]
    except ValueError:
        return []


def made_from(tasks: Mapping[str, Task], options: str, random_states: RandomStates) -> str:
    """Return a digest of what prompts are made from, except their documents.

    Args:
        tasks: the leaf tasks by name.
        options: all else that prompts depend on.
        random_states: of when the prompts were made, or the documents read. If making prompts
            draws numbers, the two differ.

    Returns:
        the digest, empty if the prompts have to be made before these tasks score.
    """
    code: dict[Path, str] = {}
    python_state, (_, numbers, *more) = random_states
    parts = [options, repr(python_state), repr(numbers.tolist()), repr(more)]
    for name, task in tasks.items():
        if needs_prompts(task):
            return ""
        # What the library notes of data, and of all that was done to them.
        noted = {split: getattr(data, "_fingerprint", None) for split, data in task.dataset.items()}
        if None in noted.values():
            return ""
        config = dataclasses.asdict(task.config)
        del config["metadata"]  # the folder of the tokenizer is in it
        conversation = Conversation.of(task)
        if conversation != Conversation():
            parts.append(repr(conversation))
        parts.append(json.dumps([name, noted, _keyed(config)], default=_described(code)))
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:_DIGITS]


def needs_prompts(task: Task) -> bool:
    """Return whether the scoring of a task might notice that it has made no prompts.

    The harness hands a prompt to no function that scores. But a task's own functions may leave
    something behind in their module: where some make prompts and some score, all are called.
    """
    if type(task) is not ConfigurableTask or task.prompt is not None:
        return True
    of_item, of_examples = task.config, task.fewshot_cfg
    scoring = [of_item.doc_to_choice, of_item.doc_to_target]
    if task.multiple_input:
        scoring.append(of_item.doc_to_text)
    making = [of_item.doc_to_text, of_examples.doc_to_text, of_examples.doc_to_choice]
    making += [of_examples.doc_to_target, of_examples.sampler, *scoring]
    if not any(map(callable, making)):
        return False
    return any(map(callable, scoring)) or _scores_itself(task)


@contextmanager
def without_examples() -> Iterator[None]:
    """Have the harness load tasks without reading their examples inside the block.

    It reads them where functions choose them that might leave something behind for others.
    """
    real = ConfigurableTask.fewshot_docs

    def fewshot_docs(task: ConfigurableTask) -> Any:  # noqa: ANN401  as there
        shots = task.fewshot_cfg
        functions = (task.config.process_docs, shots.process_docs, shots.samples)
        return real(task) if any(map(callable, functions)) and _scores_itself(task) else None

    ConfigurableTask.fewshot_docs = fewshot_docs
    try:
        yield
    finally:
        ConfigurableTask.fewshot_docs = real


def _scores_itself(task: Task) -> bool:
    """Return whether functions that are not the harness's take part in a task's scoring."""
    return not all(
        module in ("abc", "builtins") or re.match(r"lm_eval\.(?!tasks)", module)
        for module in (str(getattr(f, "__module__", "")) for f in _scoring_functions(task))
    )


def _scoring_functions(task: Task) -> Iterator[Any]:
    """Yield all that a task calls on responses, without wrappers."""
    for found in (
        getattr(task.config, "process_results", None),
        *getattr(task, "_metric_fn_list", {}).values(),
        *getattr(task, "_aggregation_list", {}).values(),
        *(step for ensemble in task._filters for step in ensemble.filters),
    ):
        if callable(found):
            yield from _unwrapped(found)
    yield from type(task).__mro__


def _unwrapped(function: Callable[..., Any]) -> Iterator[Any]:
    """Yield a function, and those that it is made of."""
    if isinstance(function, functools.partial):
        for part in (function.func, *function.args, *function.keywords.values()):
            if callable(part):
                yield from _unwrapped(part)
    else:
        yield inspect.unwrap(function)


def _keyed(config: Any) -> Any:  # noqa: ANN401  what YAML has
    """Return a configuration whose keys are text, as they are in JSON."""
    if isinstance(config, dict):
        return {repr(key): _keyed(value) for key, value in config.items()}
    return list(map(_keyed, config)) if isinstance(config, list | tuple) else config


def _described(code: dict[Path, str]) -> Callable[[object], str]:
    """Return a function that describes what is not JSON; `code` keeps digests of folders."""

    def describe(found: Any) -> str:  # noqa: ANN401  whatever a task has in its configuration
        if not callable(found):
            return repr(found)
        try:
            file = inspect.getsourcefile(inspect.unwrap(found))
        except TypeError:
            file = None
        if file is None:
            return repr(found)
        folder = Path(file).parent
        if folder not in code:
            code[folder] = _of_code(folder)
        names = (getattr(found, name, "") for name in ("__module__", "__qualname__"))
        return " ".join([*names, code[folder]])

    return describe


def _of_code(folder: Path) -> str:
    """Return a digest of the modules in a folder."""
    digest = hashlib.sha256()
    for path in sorted(folder.glob("*.py")):
        digest.update(f"{path.name}\n".encode() + path.read_bytes())
    return digest.hexdigest()


def data_sources(
    dataset_path: str | None, dataset_kwargs: Mapping[str, Any] | None
) -> dict[str, str]:
    """Return '<size> <mtime_ns>' by path for the local data files in a task's configuration.

    Relative paths are resolved in the same way as in the harness: against `data_dir`, against a
    folder given as `dataset_path`, or against the working folder. A name on a hub that is also a
    local file counts as one. Its requests may then be built once more than needed.
    """
    kwargs = dataset_kwargs or {}
    data_dir = str(kwargs.get("data_dir") or "")
    is_folder = bool(dataset_path) and Path(str(dataset_path)).is_dir()
    base = Path(str(dataset_path) if is_folder else "") / data_dir
    patterns = list(_strings(kwargs.get("data_files")))
    if not patterns and (is_folder or data_dir):
        patterns = ["**"]
    found = {str(path.absolute()): path for pattern in patterns for path in _matches(base, pattern)}
    return {name: _state(path) for name, path in sorted(found.items())}


def _strings(value: object) -> Iterator[str]:
    """Yield every string in `data_files`: a string, a list, or a mapping of either by split."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for entry in value.values():
            yield from _strings(entry)
    elif isinstance(value, list | tuple):
        for entry in value:
            yield from _strings(entry)


def _matches(base: Path, pattern: str) -> list[Path]:
    literal = base / pattern
    if literal.is_file():  # its name may contain characters that are special in a pattern
        return [literal]
    # Path.glob refuses absolute patterns.
    found = (base / name for name in glob(pattern, root_dir=base, recursive=True))  # noqa: PTH207
    return [path for path in found if path.is_file()]


def _state(path: Path) -> str:
    status = path.stat()
    return f"{status.st_size} {status.st_mtime_ns}"
