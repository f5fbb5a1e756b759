"""Load tasks, groups and tags of the harness as its own command does, and explain failures.

The harness takes about ten seconds to index its own fifteen thousand tasks. That index is kept for
the next process, and not read if a task, with everything that it refers to, is defined in the
user's folders.
"""

import json
import random
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import lm_eval.tasks
import numpy as np
from lm_eval.api.task import Task
from lm_eval.defaults import DEFAULT_RANDOM_SEED
from lm_eval.tasks import TaskManager
from lm_eval.tasks._index import Entry, Kind, TaskIndex
from lm_eval.tasks._yaml_loader import load_yaml

from coordinate_eval.errors import CoordinateError, DataMissing, UserError, with_causes
from coordinate_eval.evaluators.harness.code_eval import asks_code_eval
from coordinate_eval.evaluators.harness.prompts.conversation import Conversation
from coordinate_eval.evaluators.harness.tasks import task_names
from coordinate_eval.evaluators.harness.tasks.judged_task import NOBODY, Count, JudgedTask, Panel
from coordinate_eval.evaluators.harness.tasks.made_from import data_sources
from coordinate_eval.evaluators.harness.tasks.task_names import NO_HUB, KeptTasks, no_such_task
from coordinate_eval.records import PYTHON, Dataset

_OWN_FOLDER = Path(lm_eval.tasks.__file__).parent
_SUPPORTED = ("multiple_choice", "loglikelihood", "loglikelihood_rolling", "generate_until")
_OFFLINE = frozenset(
    {
        "ConnectError",
        "ConnectionError",
        "ConnectTimeout",
        "LocalEntryNotFoundError",
        "OfflineModeIsEnabled",
        "ReadTimeout",
    }
)


@dataclass(frozen=True)
class LoadedTasks:
    """The harness's tasks and groups that make up a dataset."""

    table: dict[str, Any]
    """The return value of `TaskManager.load`: `tasks`, `groups` and `group_map` by name."""
    top: str | None
    """The task or group named by the dataset, None for a tag."""
    judged: dict[str, JudgedTask]
    """The rubric's side of each leaf task, of a dataset with a rubric."""

    @property
    def tasks(self) -> dict[str, Task]:
        """Return the leaf tasks by name, in the harness's order."""
        tasks: dict[str, Task] = self.table["tasks"]
        return tasks

    def count_anew(self) -> None:
        """Forget what became of the questions of earlier scorings."""
        for judged in self.judged.values():
            judged.count = Count()


class TaskLoader:
    """A loader of tasks. The user's folders take precedence over the harness's own tasks."""

    def __init__(
        self,
        *,
        include_path: Sequence[str],
        tokenizer: Path,
        seed: int,
        kept_tasks: Path | None = None,
        panel: Panel = NOBODY,
        max_length: int,
    ) -> None:
        """Prepare a loader.

        `kept_tasks` is where the index of the harness's tasks is kept. The panel rates the answers
        of datasets with a rubric. `max_length` is the context of the model in tokens.
        """
        self._panel = panel
        self._max_length = max_length
        self._include_path = list(include_path)
        self._kept_tasks = kept_tasks
        self._tokenizer = tokenizer
        self._seed = seed
        self._managers: dict[tuple[bool, str], TaskManager] = {}

    def prepare(self) -> None:
        """Read the user's tasks."""
        with suppress(Exception):  # whoever loads a dataset is told
            self._manager_of(False, {})

    def begin(self, dataset: Dataset) -> None:
        """Read the index that has the dataset's task, unless it is already in memory.

        Raises:
            UserError: a folder is missing, or the index cannot be read.
        """
        for folder in self._include_path:
            if not Path(folder).is_dir():
                raise UserError(f"include_path {folder} is not a folder")
        name = dataset.task or dataset.name
        with _explained(dataset, name):
            self._manager(name, dataset.metadata)

    def load(self, dataset: Dataset) -> LoadedTasks:
        """Load the dataset's tasks and apply its options to them.

        Call it inside `harness_session`: it seeds the global random generators, as the command
        does.
        """
        self.begin(dataset)
        name = dataset.task or dataset.name
        random.seed(DEFAULT_RANDOM_SEED)
        np.random.seed(self._seed)  # the generator that tasks draw from
        with _explained(dataset, name):
            manager = self._manager(name, dataset.metadata)
            if name not in manager.task_index and not Path(name).expanduser().is_file():
                raise UserError(self._unknown(dataset, name, manager))
            table = manager.load([name])
            judged: dict[str, JudgedTask] = {}
            for task_name, task in table["tasks"].items():
                if dataset.rubric is not None:
                    judged[task_name] = JudgedTask(task, dataset.name, dataset.rubric, self._panel)
                    _leave_room(task, self._max_length)
                _check(task_name, task)
                self._configure(task, dataset)
        entry = manager.task_index.get(name)
        is_tag = entry is not None and entry.kind is Kind.TAG
        top = None if is_tag else next(iter(table.get("groups") or table["tasks"]))
        return LoadedTasks(table, top, judged)

    def _manager(self, name: str, metadata: dict[str, Any]) -> TaskManager:
        own = self._manager_of(False, metadata) if self._include_path else None
        if own is not None and _is_complete(name, own.task_index):
            return own
        return self._manager_of(True, metadata)

    def _manager_of(self, defaults: bool, metadata: dict[str, Any]) -> TaskManager:
        key = defaults, json.dumps(metadata, sort_keys=True, default=str)
        if key not in self._managers:
            made = self._managers[key] = TaskManager(
                include_path=self._include_path,
                include_defaults=False,
                # The command passes the model's arguments to tasks. Some read its tokenizer.
                metadata={"pretrained": str(self._tokenizer), **metadata},
            )
            if defaults:
                for name, entry in self._defaults.items():
                    made.task_index.setdefault(name, entry)
        return self._managers[key]

    @cached_property
    def _defaults(self) -> dict[str, Entry]:
        return own_tasks(self._kept_tasks)

    def _configure(self, task: Task, dataset: Dataset) -> None:
        """Apply the dataset's options in the way of the harness's `simple_evaluate`."""
        if task.get_config("output_type") == "generate_until":
            if dataset.gen_kwargs:
                task.set_config("generation_kwargs", dict(dataset.gen_kwargs), update=True)
            if dataset.repeats is not None:
                task.set_config("repeats", dataset.repeats)
        shots = task.get_config("num_fewshot")
        if dataset.num_fewshot is not None and shots != 0:
            task.set_config("num_fewshot", dataset.num_fewshot)
        elif shots is None:
            task.set_config("num_fewshot", 0)
        task.set_fewshot_seed(seed=self._seed)

    def _unknown(self, dataset: Dataset, name: str, manager: TaskManager) -> str:
        message = no_such_task(dataset.name, name, manager.task_index, self._include_path)
        for path, words in _unreadable(self._include_path):
            message += f"\ncould not be read: {path}: {words}"
        return message


def own_tasks(kept_file: Path | None) -> dict[str, Entry]:
    """Return the tasks, groups and tags that the harness comes with, by name.

    They are as `TaskIndex.build` returns them, without their configuration: the harness reads that
    again for each task that it loads.

    Args:
        kept_file: where an earlier process may have kept them, and this one does otherwise.
    """
    kept = task_names.read(kept_file, _OWN_FOLDER) if kept_file else None
    if kept is not None:
        return {row[0]: _entry(*row) for row in kept.entries}
    state = task_names.state_of(_OWN_FOLDER)
    made: dict[str, Entry] = TaskIndex.build([_OWN_FOLDER])
    if kept_file:
        rows = [_row(entry) for entry in made.values()]
        task_names.keep(kept_file, KeptTasks(state=state, entries=rows))
    return made


def _row(entry: Entry) -> tuple[str, str, str, list[str]]:
    file = str(entry.yaml_path.relative_to(_OWN_FOLDER)) if entry.yaml_path else ""
    return entry.name, entry.kind.name, file, sorted(entry.tags)


def _entry(name: str, kind: str, file: str, tags: list[str]) -> Entry:
    return Entry(name, Kind[kind], _OWN_FOLDER / file if file else None, tags=set(tags))


def asks_questions(task: Task) -> bool:
    """Return whether a task's metric asks for programs to be run."""
    config = task.config
    functions = [
        *getattr(task, "_metric_fn_list", {}).values(),
        getattr(config, "process_results", None),
        type(task).process_results,
    ]
    return bool(getattr(task, "UNSAFE_CODE", False)) or any(map(asks_code_eval, functions))


def language_of_programs(task: Task) -> str | None:
    """Return the language of the programs that a task's metric asks for, None if it asks for none.

    It is the metric's argument `language`, or else Python.
    """
    if not asks_questions(task):
        return None
    arguments = getattr(task, "_metric_fn_kwargs", {}).values()
    given = (each["language"] for each in arguments if "language" in each)
    return str(next(given, PYTHON))


def in_words(error: BaseException) -> str:
    """Return an exception of other people's code as one line.

    The line begins with the exception's type, unless its text is usually a sentence, as it is for
    a `ValueError`. A `KeyError` has only the key.
    """
    words = " ".join(str(error).split())
    if type(error) in (ValueError, FileNotFoundError, RuntimeError) and words:
        return words
    return f"{type(error).__name__}: {words}" if words else type(error).__name__


def _check(name: str, task: Task) -> None:
    """Refuse a task that would fail only after its responses were generated."""
    kind = task.get_config("output_type") or task.OUTPUT_TYPE
    if kind not in _SUPPORTED:
        raise ValueError(f"task {name!r} has output_type {kind!r}, which is not supported")
    if getattr(task, "MULTIMODAL", False):
        raise ValueError(f"task {name!r} needs images or sound, which are not supported")
    Conversation.of(task)
    if task.get_config("process_results") is not None:
        return
    for metric, function in getattr(task, "_metric_fn_list", {}).items():
        if function is None:
            raise ValueError(
                f"metric {metric!r} of task {name!r} is not one of the harness's own and could "
                "not be loaded from the hub"
            )


def _leave_room(task: Task, max_length: int) -> None:
    """Let an answer that a judge rates take at most half of the model's context.

    Such tasks allow as many tokens as many base models have for prompt and answer together. Options
    of the dataset are applied later, and count.
    """
    wanted = (task.get_config("generation_kwargs") or {}).get("max_gen_toks", 0)
    if wanted > max_length // 2:
        limit = {"max_gen_toks": max_length // 2}
        task.set_config("generation_kwargs", limit, update=True)


def _is_complete(spec: str | dict[str, Any], index: dict[str, Entry]) -> bool:
    """Return whether an entry and everything that it refers to are in this index."""
    if isinstance(spec, dict) and "group" in spec and spec["group"] not in index:
        return all(_is_complete(member, index) for member in spec.get("task", []))
    name = spec if isinstance(spec, str) else spec.get("group") or spec.get("task")
    entry = index.get(str(name))
    if entry is None:
        return False
    members = (entry.cfg or {}).get("task") if entry.kind is Kind.GROUP else None
    return not isinstance(members, list) or all(_is_complete(one, index) for one in members)


def _unreadable(folders: Sequence[str]) -> Iterator[tuple[Path, str]]:
    """Yield the task files that the harness's index skips without a message, with the reason."""
    for folder in folders:
        for path in sorted(Path(folder).glob("**/*.yaml")):
            try:
                load_yaml(path, resolve_func=False)
            except Exception as error:
                yield path, in_words(error)


@contextmanager
def _explained(dataset: Dataset, name: str) -> Iterator[None]:
    """Turn any exception of loading a task into a `UserError` that explains it."""
    try:
        yield
    except CoordinateError:
        raise
    except Exception as error:
        offline = any(type(cause).__name__ in _OFFLINE for cause in with_causes(error))
        kind = DataMissing if offline else UserError
        raise kind(_explanation(dataset, name, error, offline=offline)) from error


def _explanation(dataset: Dataset, name: str, error: Exception, *, offline: bool) -> str:
    culprit = f"dataset {dataset.name!r}: task {name!r} cannot be loaded"
    task: Task | None = None
    asked: object = None
    # The innermost index entry on the stack belongs to the leaf task that failed.
    for frame, _ in traceback.walk_tb(error.__traceback__):
        entry = frame.f_locals.get("entry")
        if isinstance(entry, Entry) and entry.kind is not Kind.TAG:
            source = f" ({entry.yaml_path})" if entry.yaml_path else ""
            culprit = f"dataset {dataset.name!r}: task {entry.name!r}{source} cannot be loaded"
        if frame.f_code.co_name == "doc_to_target" and isinstance(error, TypeError):
            return f'{culprit}: it has no doc_to_target; without targets, set it to ""'
        asked = frame.f_locals.get("self")
        task = asked if isinstance(asked, Task) else task
    if task is not None and (wrong := _wrong_data(task, error, asked)):
        return f"{culprit}: {wrong}"
    words = in_words(error)
    if offline:
        return (
            f"{culprit}: {NO_HUB}: {words}\n"
            "`coordinate-eval prefetch` gets its data on a machine with a network, into an HF_HOME "
            "that this machine sees; or name local files in dataset_path or data_files."
        )
    if isinstance(error, IndexError):
        return f"{culprit}: it has no items, or asks for one beyond the last: {words}"
    return f"{culprit}: {words}"


def _wrong_data(task: Task, error: Exception, asked: object) -> str:
    """Return what is wrong with the data of a task, empty if that is not why it failed.

    `asked` is the object in whose method it failed.
    """
    splits = getattr(task, "dataset", None)
    if isinstance(error, KeyError) and isinstance(splits, dict) and asked is splits:
        there = ", ".join(map(repr, splits))
        return (
            f"its data has no split {error.args[0]!r}, only {there}: name one of these in "
            "test_split, validation_split, training_split or fewshot_split"
        )
    config = getattr(task, "_config", None)
    sources = data_sources(
        getattr(config, "dataset_path", None), getattr(config, "dataset_kwargs", None)
    )
    # A whole folder may have empty files that are no data, such as those that mark its state.
    empty = [
        path
        for path, state in sources.items()
        if state.startswith("0 ") and not Path(path).name.startswith((".", "_"))
    ]
    return f"its data file {empty[0]} is empty: write its documents again" if empty else ""
