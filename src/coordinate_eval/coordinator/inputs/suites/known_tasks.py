"""Say at once what a suite asks for and nobody has: tasks, a chat template, arguments.

The harness is not loaded. What only it can tell, building the prompts tells.
"""

import contextlib
import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml

from coordinate_eval import _user_files
from coordinate_eval.coordinator.inputs.checkpoints import chat_template
from coordinate_eval.errors import UserError
from coordinate_eval.evaluators.harness.prompts.generation_arguments import why_not
from coordinate_eval.evaluators.harness.tasks.task_names import (
    no_chat_template,
    no_such_task,
    unknown,
)
from coordinate_eval.records import Suite

_MOST_COUNTED = 256 * 2**20
"""Bytes of a file of data in which items are counted."""

_ITEMS_BY_CODE = {"process_docs", "custom_dataset"}
"""Keys of a task with which its code decides what is an item."""


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]  # C if it is there
    """A loader that leaves out what only the harness can read, such as `!function`."""


_Loader.add_multi_constructor("!", lambda loader, suffix, node: None)


def wrong_tasks(suite: Suite, cache: Path, folder: str = "") -> dict[str, str]:
    """Return what is wrong with datasets whatever the checkpoint is, by their names.

    That is what `unknown_tasks` and `wrong_generation` find.
    """
    return wrong_generation(suite) | unknown_tasks(suite, cache, folder)


def unknown_tasks(suite: Suite, cache: Path, folder: str = "") -> dict[str, str]:
    """Return the datasets whose task is neither the harness's own nor in the suite's folders.

    Names are looked up in the index of the installed harness that an earlier process has kept in
    the folder `cache`, or else in the text of its files. Where these do not tell, building the
    prompts does. A task may be the path of a file from `folder`.
    """
    own = _own_tasks(suite)
    names = {
        d.name: d.task
        for d in suite.datasets
        if d.task is not None
        and d.task not in own
        and not (Path(folder) / Path(d.task).expanduser()).is_file()
    }
    missing, known = unknown(names.values(), cache)
    return {
        dataset: no_such_task(dataset, name, [*known, *own], suite.include_path)
        for dataset, name in names.items()
        if name in missing
    }


def wrong_generation(suite: Suite) -> dict[str, str]:
    """Return the datasets whose generation arguments no engine honours."""
    wrong: dict[str, list[str]] = {}
    for dataset in suite.datasets:
        for name, value in dataset.gen_kwargs.items():
            if why := why_not(name, value):
                message = f"dataset {dataset.name!r}, gen_kwargs: {why}"
                wrong.setdefault(dataset.name, []).append(message)
    return {name: "\n".join(messages) for name, messages in wrong.items()}


def without_chat_template(suite: Suite, files: Sequence[str], folder: str = "") -> dict[str, str]:
    """Return the datasets that ask for a chat template, if the checkpoint has none.

    It must render a question. A task of the user's own may have a `turn_template` in place of one
    that is not there. A task may be the path of a file from `folder`.
    """
    asking = [d for d in suite.datasets if d.chat_template and d.task is not None]
    template = chat_template.find(files) if asking else None
    if template is None or not (why := chat_template.why_unusable(template, files)):
        return {}
    if template.text:
        return {d.name: no_chat_template(d.name, why) for d in asking}
    own = _own_tasks(suite)
    return {
        d.name: no_chat_template(d.name, why)
        for d in asking
        if not d.metadata
        and not _may_have_turns(own.get(str(d.task), {}), str(d.task))
        and not (Path(folder) / Path(str(d.task)).expanduser()).is_file()
    }


def with_counted_items(suite: Suite, folder: str = "") -> Suite:
    """Return the suite with the items of tasks of its own that read local JSON lines, if it can.

    They are counted in the files, whose paths are relative to `folder`.
    """
    own = _own_tasks(suite)
    counted = {}
    for dataset in suite.datasets:
        config = own.get(str(dataset.task), {})
        if dataset.items is None and config.get("task") == dataset.task:
            with contextlib.suppress(OSError, UserError):
                if items := _items_in_files(config, Path(folder)):
                    counted[dataset.name] = items
    datasets = [
        d.model_copy(update={"items": counted[d.name]}) if d.name in counted else d
        for d in suite.datasets
    ]
    return suite.model_copy(update={"datasets": datasets})


def _items_in_files(config: dict[str, Any], folder: Path) -> int:
    """Return the lines of the files that a task evaluates; 0 if it names no local JSON lines.

    Also 0 if code of the task decides which lines are items.
    """
    kwargs = config.get("dataset_kwargs")
    files = kwargs.get("data_files") if isinstance(kwargs, dict) else None
    if config.get("dataset_path") != "json" or not files or config.keys() & _ITEMS_BY_CODE:
        return 0
    if isinstance(files, dict):
        files = files.get(config.get("test_split") or config.get("validation_split"))
    names = [files] if isinstance(files, str) else files
    if not isinstance(names, list) or not all(
        isinstance(name, str) and name.endswith((".jsonl", ".json")) for name in names
    ):
        return 0
    counts = [_json_lines(folder / name) for name in names]
    return sum(counts) if all(counts) else 0


def _json_lines(path: Path) -> int:
    """Return the objects of a file of one a line; 0 if it is of another form, or too large."""
    _user_files.check_regular(path, "data of a task")
    with path.open("rb") as file:
        content = file.read(_MOST_COUNTED + 1)
    lines = [line.strip() for line in content.split(b"\n") if line.strip()]
    whole = all(line.startswith(b"{") and line.endswith(b"}") for line in lines)
    return len(lines) if whole and len(content) <= _MOST_COUNTED else 0


def _may_have_turns(config: dict[str, Any], name: str) -> bool:
    """Return whether a task, as its file is, may say itself what stands between turns.

    The harness's own tasks, which have no file here, never do. Groups and tags may hold any task.
    """
    if not config:
        return False
    metadata = config.get("metadata")
    return config.get("task") != name or (
        isinstance(metadata, dict) and bool(metadata.get("turn_template"))
    )


def _own_tasks(suite: Suite) -> dict[str, dict[str, Any]]:
    """Return the names that a suite's folders define, each with the content of its file."""
    return dict(itertools.chain.from_iterable(map(_names_in, suite.include_path)))


def _names_in(folder: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the tasks, groups and tags that the harness would find in a folder, with their files'
    content.
    """
    for path in Path(folder).glob("**/*.yaml"):
        # The harness passes over what it cannot read, and says so when the task is loaded.
        with contextlib.suppress(Exception):
            config = _merged(path, frozenset())
            tags = config.get("tag") or []
            found = [config.get("task"), config.get("group")]
            found += tags if isinstance(tags, list) else [tags]
            yield from ((name, config) for name in found if isinstance(name, str))


def _merged(path: Path, above: frozenset[Path]) -> dict[str, Any]:
    """Return a task's file merged with those that it includes. Its own keys win."""
    if path in above:
        raise ValueError(f"{path} includes itself")
    config: dict[str, Any] = yaml.load(path.read_bytes(), Loader=_Loader)  # noqa: S506 - it is a safe loader
    included = config.pop("include", [])
    merged: dict[str, Any] = {}
    for each in included if isinstance(included, list) else [included]:
        merged |= _merged(path.parent / each, above | {path})
    return merged | config
